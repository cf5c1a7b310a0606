"""Charts of a run: valid Vega-Lite with the numbers of the run, small however long that was."""

import sys
from typing import Any

import numpy as np
import pytest
from stepscope.analysis import Run, UserError
from stepscope.analysis.plots import MOST_MARKS, MOST_STEPS, ROWS, STEP_BINS

from tests.analysis.test_moments import of, trained_and_evaluated
from tests.support.source import START, node_samples, node_steps


def drawn(chart: Any) -> dict[str, Any]:
    """The chart as a notebook gets it. Altair checks it against Vega-Lite's schema."""
    specification: dict[str, Any] = chart.to_dict()
    return specification


def values(chart: Any) -> list[dict[str, Any]]:
    """The rows of a chart's only data."""
    specification = drawn(chart)
    rows: list[dict[str, Any]] = specification["data"]["values"]
    return rows


def test_a_histogram_counts_the_samples_of_each_gpu() -> None:
    rows = values(trained_and_evaluated().plot.histogram())
    assert sorted((row["device"], row["from"], row["count"]) for row in rows) == [
        ("GPU 0", 0.05, 12),
        ("GPU 0", 0.95, 8),
        ("GPU 1", 0.95, 20),
    ]
    of_cores = values(trained_and_evaluated().plot.histogram("cpu"))
    assert {row["device"]: row["count"] for row in of_cores if row["from"] == 0.25} == {"CPU 0": 8}


def test_a_step_histogram_counts_the_steps_of_each_rank() -> None:
    run = of(node_steps([1.0, 1.0, 3.0]), node_steps([2.0], rank=1))
    rows = values(run.plot.step_histogram())
    counted = [(row["rank"], round(row["seconds"], 2), row["count"]) for row in rows if row["count"]]
    assert counted == [(0, 1.0, 2), (0, 2.95, 1), (1, 2.0, 1)]
    assert len(rows) == 2 * STEP_BINS  # no line skips a bin without steps


def test_charts_of_several_nodes_and_ranks_may_be_of_all_together() -> None:
    two = [node_samples([[use]] * 4, gpu=[[use]] * 4, node=node) for node, use in (("a", 0.2), ("b", 0.6))]
    run = of(*two, node_steps([1.0, 1.0, 3.0]), node_steps([2.0], rank=1))
    each = values(run.plot.histogram("gpu"))
    assert [(row["device"], row["from"], row["count"]) for row in each] == [
        ("a GPU 0", 0.2, 4),
        ("b GPU 0", 0.6, 4),
    ]
    both = values(run.plot.histogram("gpu", by_node=False))
    assert [(row["device"], row["from"], row["count"]) for row in both] == [
        ("GPU 0", 0.2, 4),
        ("GPU 0", 0.6, 4),
    ]
    of_nodes = values(run.plot.histogram("node", "cpu_utilization_ratio", by_node=False))
    assert {row["device"] for row in of_nodes} == {"NODE all"}
    cells = values(run.plot.heatmap(["gpu"], by_node=False))
    assert {(cell["row"], round(cell["used"], 3)) for cell in cells} == {("GPU 0", 0.4)}
    steps = [row for row in values(run.plot.step_histogram(by_rank=False)) if row["count"]]
    assert {row["rank"] for row in steps} == {"all"}
    assert sum(row["count"] for row in steps) == 4


def test_a_step_timeline_has_a_bar_per_step_and_of_many_the_longest() -> None:
    rows = values(trained_and_evaluated().plot.step_timeline(start=6.0))
    assert {(row["rank"], row["phase"], row["number"]) for row in rows} == {
        (rank, "eval", number) for rank in (0, 1) for number in (1, 2, 3, 4)
    }
    took = np.full(3 * MOST_STEPS, 0.5)
    took[4321] = 9.0
    many = values(of(node_steps(took)).plot.step_timeline())
    assert len(many) <= MOST_STEPS
    assert max(row["duration_seconds"] for row in many) == 9.0


def test_a_heatmap_has_the_chosen_rows_in_bins_of_their_means() -> None:
    rows = values(trained_and_evaluated().plot.heatmap(["gpu", "network"], end=3.0))
    assert [(row["row"], row["elapsed_seconds"]) for row in rows if row["row"] == "GPU 0"] == [
        ("GPU 0", 0.0),
        ("GPU 0", 1.0),
        ("GPU 0", 2.0),
    ]
    assert [row["used"] for row in rows if row["row"] == "GPU 0"] == pytest.approx([0.05, 0.525, 1.0])
    assert {row["row"] for row in rows} == {"GPU 0", "GPU 1"}  # the network was not read
    long = of(node_samples(np.full((500, 150), 0.5), gpu=np.full((500, 2), 0.5)))
    assert len(long.plot.heatmap().data.values) <= MOST_MARKS  # a check of each cell would take seconds
    rates = of(node_samples(np.full((4, 1), 0.5), network=[50.0, 50.0, 75.0, 125.0])).plot.heatmap(
        ["network"]
    )
    assert [row["used"] for row in values(rates)] == [0.5, 1.0]


def test_a_click_on_the_utilisation_shows_what_ran_then() -> None:
    took = np.full(4, 0.5)
    run = of(
        node_samples(np.full((8, 1), 0.5), gpu=np.full((8, 2), 0.5)),
        node_steps(took, start=START + 1, data_wait=took / 2),
    )
    chart = drawn(run.plot.utilization())
    upper, lower = chart["vconcat"]
    (parameter,) = chart["params"]
    assert parameter["select"]["fields"] == ["column"]
    assert lower["transform"] == [{"filter": {"param": parameter["name"], "empty": False}}]
    columns = {row["column"] for row in upper["data"]["values"]}
    ran = lower["data"]["values"]
    assert {row["column"] for row in ran} <= columns
    assert sum(row["seconds"] for row in ran if row["component"] == "data_wait") == pytest.approx(1.0)
    assert sum(row["seconds"] for row in ran) == pytest.approx(2.0)


def test_a_click_shows_all_that_ran_then_although_a_reading_began_later() -> None:
    network = np.full(2000, 5.0)
    network[:3] = np.nan  # rates need a sample before
    samples = node_samples(np.full((2000, 1), 0.5), gpu=np.full((2000, 1), 0.5), network=network)
    chart = drawn(of(samples, node_steps(np.full(999, 1.0))).plot.utilization(rows=["gpu", "network"]))
    upper, lower = (part["data"]["values"] for part in chart["vconcat"])
    columns = [{cell["column"] for cell in upper if cell["row"] == row} for row in ("GPU 0", "Network")]
    assert columns[0] == columns[1]
    assert {row["seconds"] for row in lower} == {5.0, 4.0}  # of 5 s; the last one is short


@pytest.mark.parametrize("draw", ["histogram", "step_histogram", "step_timeline", "heatmap", "utilization"])
def test_nothing_to_draw_is_said(draw: str) -> None:
    with pytest.raises(UserError, match="memory: has no"):
        getattr(of().plot, draw)()


def test_a_wrong_row_is_refused_with_what_there_is() -> None:
    with pytest.raises(UserError, match=", ".join(ROWS)):
        trained_and_evaluated().plot.heatmap(["tpu"])


def test_without_altair_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    run: Run = trained_and_evaluated()
    assert len(run.steps())
    with pytest.raises(UserError, match=r"pip install 'stepscope\[notebook\]'"):
        run.plot.heatmap()
