"""Tables of made-up runs whose values are known."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from stepscope.analysis import Run, samples, tables
from stepscope.common.errors import UserError
from stepscope.compare import compared_run
from stepscope.compare.figures import Figure
from stepscope.evaluation.engine import evaluate
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.model import GpuFacts, Loader, NodeFacts, Source

from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

NODES = (
    NodeFacts("node-a", ("0", "1", "2"), (GpuFacts("0"), GpuFacts("3"))),
    NodeFacts("node-b", ("0", "1", "2"), (GpuFacts("0"), GpuFacts("3"))),
)


def run_of(*chunks: Any, chunk_rows: int | None = None, **facts: Any) -> Run:
    known = run_facts(**{"nodes": NODES, **facts})
    return Run("memory", lambda: MemorySource(*chunks, facts=known, chunk_rows=chunk_rows))


def trained(step_seconds: float, steps: int = 40) -> Run:
    """A rank that trains for so many steps, a quarter of which it waits for data."""
    took = np.full(steps, step_seconds)
    end = START + float(took.sum())
    rank = rank_facts(
        first_step_start=START,
        last_step_end=end,
        end=end,
        phase_seconds={"initialization": 0.0, "train": float(took.sum())},
        component_seconds={"data_wait": float(took.sum()) / 4},
        steps={"train": steps},
    )
    return run_of(
        node_samples(np.full((4, 3), 0.5)),
        node_steps(took, data_wait=took / 4),
        ranks=[rank],
        end=end,
    )


def test_samples_of_a_node_have_the_mean_and_the_extreme_of_its_devices() -> None:
    run = run_of(
        node_samples(
            [[0.1, 0.2, 0.9], [np.nan, 0.5, 0.5]],
            gpu=[[0.75, 0.25], [np.nan, np.nan]],
            io_wait=[[0.0, 0.0, 0.3], [0.0, 0.0, 0.0]],
            memory=[0.5, 0.6],
            network=[np.nan, 200.0],
            disk=[10.0, 20.0],
        )
    )
    first, second = run.samples().to_pylist()
    assert first.pop("time") == datetime.fromtimestamp(START, UTC)
    assert first.pop("node") == "node-a"
    assert first.pop("network_bytes_per_second") is None
    assert first == pytest.approx(
        {
            "elapsed_seconds": 0.0,
            "cpu_utilization_ratio": 0.4,
            "cpu_utilization_max_ratio": 0.9,
            "cpu_io_wait_ratio": 0.1,
            "cpu_io_wait_max_ratio": 0.3,
            "gpu_utilization_ratio": 0.5,
            "gpu_utilization_min_ratio": 0.25,
            "memory_used_ratio": 0.5,
            "disk_bytes_per_second": 10.0,
        }
    )
    assert second["elapsed_seconds"] == 0.5
    assert second["cpu_utilization_ratio"] == 0.5
    assert second["cpu_utilization_max_ratio"] == 0.5
    assert second["gpu_utilization_ratio"] is None
    assert second["gpu_utilization_min_ratio"] is None
    assert second["network_bytes_per_second"] == 200.0


def test_samples_of_gpus_and_cores_have_a_row_per_sample_and_device_under_its_own_label() -> None:
    run = run_of(
        node_samples(
            [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
            gpu=[[0.5, 0.25], [1.0, np.nan]],
            of_gpus={"gpu_last_xid": [[63, np.nan], [63, np.nan]], "gpu_clock_hertz": [[1e9, 2e9]] * 2},
        )
    )
    gpus = run.samples(
        "gpu", columns=["elapsed_seconds", "gpu", "utilization_ratio", "last_xid", "clock_hertz"]
    )
    assert [tuple(row.values()) for row in gpus.to_pylist()] == [
        (0.0, "0", 0.5, 63, 1e9),
        (0.0, "3", 0.25, None, 2e9),
        (0.5, "0", 1.0, 63, 1e9),
        (0.5, "3", None, None, 2e9),
    ]
    cpus = run.samples("cpu")
    assert cpus["cpu"].to_pylist() == ["0", "1", "2"] * 2
    assert cpus["utilization_ratio"].to_pylist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_samples_can_be_chosen_by_time_and_columns_and_come_in_pieces_that_make_the_whole() -> None:
    chunks = [
        node_samples(np.linspace(0, 1, 60).reshape(20, 3), gpu=np.full((20, 2), 0.5), node=node)
        for node in ("node-a", "node-b")
    ]
    run = run_of(*chunks, chunk_rows=7)
    chosen = run.samples(start=2.0, end=4.0, columns=["node", "elapsed_seconds"])
    assert chosen.column_names == ["node", "elapsed_seconds"]
    assert chosen["elapsed_seconds"].to_pylist() == [2.0, 2.5, 3.0, 3.5] * 2
    for device in samples.SCHEMAS:
        pieces = list(run.iter_samples(device))
        assert len(pieces) == 6
        assert pa.concat_tables(pieces).to_pylist() == run.samples(device).to_pylist()
    by_gpu = run.samples("gpu").group_by(["node", "gpu"]).aggregate([("utilization_ratio", "mean")])
    assert by_gpu["utilization_ratio_mean"].to_pylist() == [0.5] * 4


def test_a_node_without_gpus_has_no_row_of_a_gpu_and_no_ratio_of_one() -> None:
    run = run_of(node_samples([[0.5]]), nodes=[NodeFacts("node-a", ("0",))])
    assert len(run.samples("gpu")) == 0
    assert run.samples("gpu").schema == samples.SCHEMAS["gpu"]
    assert run.samples()["gpu_utilization_min_ratio"].to_pylist() == [None]
    assert list(run.iter_samples("gpu")) == []


def test_steps_have_their_components_and_come_in_the_order_in_which_they_began() -> None:
    run = run_of(
        node_steps([2.0, 3.0], rank=1, start=START + 1, data_wait=[0.5, 0.75], gc=0.1),
        node_steps([4.0], rank=0, start=START + 2, phase="eval", first_number=7),
    )
    rows = run.steps().to_pylist()
    assert [(row["rank"], row["phase"], row["number"]) for row in rows] == [
        (1, "train", 1),
        (0, "eval", 7),
        (1, "train", 2),
    ]
    assert [row["elapsed_seconds"] for row in rows] == [1.0, 2.0, 3.0]
    assert [row["duration_seconds"] for row in rows] == [2.0, 4.0, 3.0]
    assert [row["data_wait_seconds"] for row in rows] == [0.5, 0.0, 0.75]
    assert [row["gc_seconds"] for row in rows] == [0.1, 0.0, 0.1]
    assert rows[1]["start"] == datetime.fromtimestamp(START + 2, UTC)


def test_phases_and_components_add_up_what_all_processes_of_a_rank_counted() -> None:
    of_process: dict[str, Any] = {
        "phase_seconds": {"initialization": 5.0, "train": 60.0, "eval": 20.0},
        "component_seconds": {"data_wait": 30.0, "forward": 2.0},
        "steps": {"train": 6, "eval": 2},
    }
    run = run_of(ranks=[rank_facts(3, start=START + restart, **of_process) for restart in (0, 100)])
    assert run.ranks == [3]
    assert [tuple(row.values()) for row in run.phases().to_pylist()] == [
        ("node-a", 3, "initialization", None, 10.0),
        ("node-a", 3, "train", 12, 120.0),
        ("node-a", 3, "eval", 4, 40.0),
    ]
    assert [tuple(row.values()) for row in run.components().to_pylist()] == [
        ("node-a", 3, "data_wait", 60.0, 0.375),
        ("node-a", 3, "forward", 4.0, 0.025),
    ]


def test_findings_are_what_the_evaluation_says_in_its_order() -> None:
    run = trained(1.0)
    rules = evaluate(run._reopen()).rules
    table = run.findings()
    assert table["rule"].to_pylist() == [rule.rule for rule in rules]
    assert table.to_pylist() == [{name: getattr(rule, name) for name in table.column_names} for rule in rules]


def test_usage_is_in_base_units_and_has_no_row_for_what_was_not_read() -> None:
    run = run_of(node_samples([[0.25, 0.75]] * 8, gpu=[[np.nan]] * 8, network=[1e6] * 8))
    rows = {row["resource"]: row for row in run.usage().to_pylist()}
    assert rows["CPU"]["unit"] == "ratio"
    assert rows["CPU"]["p95"] == 0.5
    assert (rows["Network"]["unit"], rows["Network"]["p50"]) == ("bytes/second", 1e6)
    assert "GPU" not in rows


def test_a_loader_has_a_row_and_what_is_not_known_of_it_is_null() -> None:
    loader = Loader(0, "train", 4, True, None, fetches=10, fetch_seconds=2.5, batch_size=64)
    (row,) = run_of(ranks=[rank_facts(loaders=[loader])]).loaders().to_pylist()
    assert row == {
        "node": "node-a",
        "rank": 0,
        "phase": "train",
        "workers": 4,
        "pin_memory": True,
        "prefetch_factor": None,
        "batch_size": 64,
        "fetches": 10,
        "fetch_seconds": 2.5,
        "fetch_cpu_seconds": 0.0,
        "fetch_core_wait_seconds": 0.0,
    }


def test_a_comparison_has_the_figures_of_both_runs_in_base_units() -> None:
    rows = {row["figure"]: row for row in trained(2.0).compare(trained(1.0)).to_pylist()}
    assert rows["step_mean"] == {
        "figure": "step_mean",
        "name": rows["step_mean"]["name"],
        "unit": "seconds",
        "a": 2.0,
        "b": 1.0,
        "change_ratio": -0.5,
        "change_low_ratio": -0.5,
        "change_high_ratio": -0.5,
    }
    assert (rows["data_wait"]["unit"], rows["data_wait"]["a"]) == ("ratio", 0.25)
    (share,) = tables.figures([Figure("data_wait", "waiting", "%", True, 40.0, 10.0)]).to_pylist()
    assert share["change_ratio"] == pytest.approx(share["b"] - share["a"]) == pytest.approx(-0.3)
    assert (rows["cpu_p50"]["unit"], rows["cpu_p50"]["b"]) == ("ratio", 0.5)
    assert (rows["steps"]["unit"], rows["steps"]["a"]) == ("", 40)
    assert rows["duration"]["change_low_ratio"] is None


def test_the_rules_are_evaluated_once_and_only_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Source] = []

    def counting(source: Source, *more: Any) -> Any:
        evaluated.append(source)
        return evaluate(source, *more)

    monkeypatch.setattr(compared_run, "evaluate", counting)
    run = trained(1.0)
    assert (run.name, run.start) == ("made-up", datetime.fromtimestamp(START, UTC))
    assert len(run.samples()) == 4
    assert len(run.steps()) == 40
    assert evaluated == []
    assert (run.duration, run.nodes, run.ranks) == (40.0, ["node-a", "node-b"], [0])
    run.findings(), run.usage(), run.loaders(), run.phases(), run.components(), run.compare(run)
    assert len(evaluated) == 1


def test_a_run_whose_start_is_not_known_has_no_elapsed_time_and_says_so_when_it_is_asked_for_one() -> None:
    run = run_of(node_samples([[0.5]]), start=None)
    assert run.start is None
    assert run.samples()["elapsed_seconds"].to_pylist() == [None]
    assert run.samples()["time"].to_pylist() == [datetime.fromtimestamp(START, UTC)]
    with pytest.raises(UserError, match="memory: does not know when the run began; omit start and end"):
        run.samples(start=0)


def test_a_wrong_device_or_column_is_refused_with_what_there_is() -> None:
    run = run_of(node_samples([[0.5]]))
    wrong: Any = "disk"
    with pytest.raises(UserError, match=r"samples\('disk'\): choose one of node, cpu, gpu"):
        run.samples(wrong)
    with pytest.raises(
        UserError, match="columns: 'use' does not exist; choose from time, elapsed_seconds, node, cpu,"
    ):
        run.samples("cpu", columns=["cpu", "use"])


DOCUMENTED: list[tuple[pa.Schema, Callable[..., Any]]] = [
    *((schema, Run.samples) for schema in samples.SCHEMAS.values()),
    (tables.STEPS, Run.steps),
    (tables.RANK_PHASES, Run.phases),
    (tables.RANK_COMPONENTS, Run.components),
    (tables.FINDINGS, Run.findings),
    (tables.USAGE, Run.usage),
    (tables.LOADERS, Run.loaders),
    (tables.WINDOWS, Run.windows),
    (tables.FIGURES, Run.compare),
    (tables.GAUGES, Run.gauges),
]


@pytest.mark.parametrize(("schema", "method"), DOCUMENTED, ids=lambda value: getattr(value, "__name__", ""))
def test_each_column_is_documented_and_each_quantity_has_its_unit(
    schema: pa.Schema, method: Callable[..., Any]
) -> None:
    words = (method.__doc__ or "").replace(",", " ").split()
    for field in schema:
        assert field.name in words
        unit = (field.metadata or {}).get(b"unit", b"").decode()
        assert unit or not pa.types.is_floating(field.type), field.name
        for ending in ("seconds", "ratio", "watts", "celsius", "hertz"):
            if field.name.endswith(ending):
                assert unit == ending


def test_gauges_are_rows_by_time_and_a_loss_that_is_not_a_number_stays_one() -> None:
    times = np.array([START, START + 1, START + 2])
    loss, rate = (
        GaugeHistory("node-a", 0, 7, START, name, times[: len(values)], np.array(values))
        for name, values in (("loss", [2.0, np.nan, np.inf]), ("learning_rate", [0.5]))
    )
    found = run_of(gauges=(loss, rate)).gauges()
    assert found["name"].to_pylist() == ["loss", "loss", "loss", "learning_rate"]
    assert found["elapsed_seconds"].to_pylist() == [0.0, 1.0, 2.0, 0.0]
    assert repr(found["value"].to_pylist()) == "[2.0, nan, inf, 0.5]"
    assert run_of().gauges().num_rows == 0


def test_units_are_there_in_the_tables_too() -> None:
    run = trained(1.0)
    for table in (run.samples("gpu"), run.steps(), run.components()):
        for field in table.schema:
            if field.name.endswith("seconds"):
                assert field.metadata == {b"unit": b"seconds"}
    assert pc.sum(run.steps()["duration_seconds"]).as_py() == 40.0
