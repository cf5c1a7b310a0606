"""Samples and steps together: by time, by step and by phase; and a run that goes on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import stepscope.analysis
from stepscope.analysis import Run, UserError, moments, tables
from stepscope.runs.model import (
    CollectiveTime,
    GpuFacts,
    LineTime,
    NodeFacts,
    NodeSamples,
    OperatorTime,
    RunFacts,
    Source,
    Steps,
    ThreadTime,
)

from tests.support.run_folder import recorded
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

NODES = (NodeFacts("node-a", ("0",), (GpuFacts("0"), GpuFacts("1"))),)


def of(*chunks: NodeSamples | Steps, **facts: Any) -> Run:
    known = run_facts(**{"nodes": NODES, **facts})
    return Run("memory", lambda: MemorySource(*chunks, facts=known))


def trained_and_evaluated() -> Run:
    """Ranks 0 and 1 train for 4 s from 1 s on, and evaluate for 2 s from 6 s on, in steps of half a second.

    GPU 0 is busy in training and idle otherwise, GPU 1 is always busy.
    """
    times = np.arange(20) * 0.5
    busy = (times > 1) & (times <= 5)
    samples = node_samples(
        np.where(busy, 0.25, 0.75)[:, None],
        gpu=np.column_stack([np.where(busy, 1.0, 0.05), np.ones(20)]),
        network=np.full(20, np.nan),
    )
    steps = [
        node_steps([0.5] * count, rank=rank, start=START + begin, phase=phase, first_number=1)
        for rank in (0, 1)
        for phase, begin, count in (("train", 1.0, 8), ("eval", 6.0, 4))
    ]
    return of(samples, *steps, ranks=[rank_facts(), rank_facts(1)])


def test_a_step_has_the_samples_and_the_steps_of_all_ranks_meanwhile() -> None:
    run = trained_and_evaluated()
    stretch = run.at(step=3)
    assert (stretch.start, stretch.end, stretch.duration) == (2.0, 2.5, 0.5)
    assert [(row["rank"], row["number"]) for row in stretch.steps().to_pylist()] == [(0, 3), (1, 3)]
    assert stretch.samples()["elapsed_seconds"].to_pylist() == [2.5]  # it measured the half second before
    assert run.between((2.0, 2.1)).samples()["elapsed_seconds"].to_pylist() == [2.5]
    assert run.between((2.0, 3.5)).samples()["elapsed_seconds"].to_pylist() == [2.5, 3.0, 3.5]
    assert run.at(step=3, phase="eval").start == 7.0
    assert len(run.at(step=3, rank=1).steps()) == 1
    assert (run.between(steps=(2, 4)).start, run.between(steps=(2, 4)).end) == (1.5, 3.0)


def test_a_time_has_the_steps_that_ran_then() -> None:
    run = trained_and_evaluated()
    assert [row["number"] for row in run.at(2.1).steps().to_pylist()] == [3, 3, 4, 4]
    assert run.at(5.2).steps()["number"].to_pylist() == []
    assert run.between((0, 1.25)).steps()["number"].to_pylist() == [1, 1]


def test_a_wrong_moment_is_refused_with_what_there_is() -> None:
    run = trained_and_evaluated()
    with pytest.raises(UserError, match="steps 9 to 9: were not recorded; train has steps 1 to 8"):
        run.at(step=9)
    with pytest.raises(UserError, match="predict has none"):
        run.at(step=1, phase="predict")
    with pytest.raises(UserError, match="a time or a step, not both"):
        run.at(2.0, step=3)
    with pytest.raises(UserError, match=r"give times, or steps"):
        run.at()


def test_joined_rows_name_the_step_and_the_phase_of_each_rank_in_the_middle_of_a_sample() -> None:
    run = trained_and_evaluated()
    rows = run.between((0, 10)).joined().to_pylist()
    assert len(rows) == 19 * 2  # the first sample measured the time before the run
    of_rank_1 = {row["elapsed_seconds"]: (row["phase"], row["step"]) for row in rows if row["rank"] == 1}
    assert of_rank_1[0.5] == ("initialization", None)
    assert of_rank_1[2.5] == ("train", 3)  # it measures the time from 2.0 to 2.5 s
    assert of_rank_1[5.5] == ("other", None)
    assert of_rank_1[8.0] == ("eval", 4)
    assert of_rank_1[9.0] == ("finalization", None)
    gpus = run.at(step=3).joined("gpu").to_pylist()
    assert {(row["gpu"], row["rank"]) for row in gpus} == {("0", 0), ("0", 1), ("1", 0), ("1", 1)}


def test_samples_without_steps_join_with_nothing() -> None:
    run = of(node_samples([[0.5]], gpu=[[0.5, 0.5]]))
    (row,) = run.between((-0.5, 0)).joined().to_pylist()
    assert (row["rank"], row["phase"], row["step"]) == (None, None, None)
    assert len(run.utilization_by_phase()) == len(run.phases_while_gpu_low()) == len(run.intervals()) == 0


def test_utilisation_by_phase_is_the_mean_of_the_samples_in_it() -> None:
    rows = {row["phase"]: row for row in trained_and_evaluated().utilization_by_phase().to_pylist()}
    assert {phase: row["samples"] for phase, row in rows.items()} == {
        "initialization": 3,
        "train": 8,
        "other": 2,
        "eval": 4,
        "finalization": 3,
    }
    assert rows["train"]["cpu_utilization_ratio"] == 0.25
    assert rows["train"]["gpu_utilization_ratio"] == 1.0
    assert rows["eval"]["cpu_utilization_ratio"] == 0.75
    assert rows["eval"]["gpu_utilization_ratio"] == pytest.approx(0.525)
    assert rows["eval"]["network_bytes_per_second"] is None


def test_the_phases_in_which_a_gpu_was_low_are_those_of_its_low_samples() -> None:
    rows = trained_and_evaluated().phases_while_gpu_low().to_pylist()
    assert {row["gpu"] for row in rows} == {"0"}
    found = {row["phase"]: (row["samples"], row["low_ratio"], row["phase_ratio"]) for row in rows}
    assert found["eval"] == (4, pytest.approx(4 / 12), 1.0)
    assert "train" not in found
    assert len(trained_and_evaluated().phases_while_gpu_low(below=0.05)) == 0  # strictly below


def test_ranges_count_the_samples_of_each_device_and_all_of_them() -> None:
    run = of(
        node_samples(np.full((6, 1), 0.5), gpu=np.array([[0.0, 0.1, 0.5, 0.9, 1.0, np.nan], [0.95] * 6]).T)
    )
    keys = ("device", "from_ratio", "to_ratio", "samples", "samples_ratio")
    assert [tuple(row[key] for key in keys) for row in run.utilization_ranges().to_pylist()] == [
        ("0", 0.0, 0.1, 1, 0.2),
        ("0", 0.1, 0.9, 2, 0.4),
        ("0", 0.9, 1.0, 2, 0.4),
        ("1", 0.0, 0.1, 0, 0.0),
        ("1", 0.1, 0.9, 0, 0.0),
        ("1", 0.9, 1.0, 6, 1.0),
    ]
    assert [row["samples"] for row in run.utilization_ranges("cpu", [0.5]).to_pylist()] == [0, 6]
    assert len(of(node_steps([1.0])).utilization_ranges()) == 0
    with pytest.raises(UserError, match="must rise, and be between 0 and 1"):
        run.utilization_ranges(edges=(0.9, 0.1))
    with pytest.raises(UserError, match="choose gpu or cpu"):
        run.utilization_ranges("node")


def test_intervals_are_stretches_of_one_phase() -> None:
    run = trained_and_evaluated()
    rows = [row for row in run.intervals().to_pylist() if row["rank"] == 0]
    keys = ("phase", "elapsed_seconds", "duration_seconds", "steps", "first", "last")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("train", 1.0, 4.0, 8, 1, 8),
        ("eval", 6.0, 2.0, 4, 1, 4),
    ]
    assert rows[0]["start"] == run.steps()["start"][0].as_py()


def test_steps_that_a_restarted_rank_made_again_are_another_stretch_and_the_ones_that_are_meant() -> None:
    processes = [
        node_steps([0.5] * steps, rank=rank, start=START + begin, first_number=0)
        for rank in (0, 1)
        for begin, steps in ((0.0, 8), (100.0, 4))
    ]
    run = of(node_samples(np.full((240, 1), 0.5)), *processes)
    of_first = [row for row in run.intervals().to_pylist() if row["rank"] == 0]
    assert [
        (row["elapsed_seconds"], row["duration_seconds"], row["first"], row["last"]) for row in of_first
    ] == [
        (0.0, 4.0, 0, 7),
        (100.0, 2.0, 0, 3),
    ]
    assert (run.at(step=3).start, run.at(step=3).duration) == (101.5, 0.5)
    assert len(run.at(step=3).steps()) == 2
    assert run.at(step=7).start == 3.5


def test_statistics_of_steps_are_exact() -> None:
    (row,) = of(node_steps([1.0, 2.0, 3.0, 6.0])).step_statistics().to_pylist()
    assert (row["node"], row["rank"], row["phase"], row["steps"]) == ("node-a", 0, "train", 4)
    assert (row["sum_seconds"], row["mean_seconds"]) == (12.0, 3.0)
    assert row["deviation_seconds"] == pytest.approx(3.5**0.5)
    assert (row["min_seconds"], row["p50_seconds"], row["max_seconds"]) == (1.0, 2.5, 6.0)
    assert row["p99_seconds"] == pytest.approx(5.91)


def test_lines_operators_and_collectives_are_tables_with_most_time_first() -> None:
    lines = tuple(
        LineTime("train", "host", place, "loss", "", "train.py:30", "main", {"running": spent, "lock": 1.0})
        for place, spent in (("train.py:8", 1.0), ("train.py:9", 4.0))
    )
    run = of(
        node_steps([1.0]),
        threads=(ThreadTime("node-a", 0, "training", 1, 7.0, 5.0, 0.0, 0.0, lines),),
        operators=(OperatorTime("node-a", 0, "gpu0", "gemm", 7, 2.0, None),),
        collectives=(CollectiveTime("node-a", 0, "allreduce", 3, 1.5, 0.5),),
    )
    assert run.lines()["place"].to_pylist() == ["train.py:9", "train.py:8"]
    assert run.lines()["seconds"].to_pylist() == [5.0, 2.0]
    assert run.lines()["running_seconds"].to_pylist() == [4.0, 1.0]
    assert run.lines()["caller"].to_pylist() == ["train.py:30"] * 2
    (operator,) = run.operators().to_pylist()
    assert (operator["operator"], operator["calls"], operator["self_seconds"]) == ("gemm", 7, None)
    (collective,) = run.collectives().to_pylist()
    assert (collective["operation"], collective["exposed_seconds"]) == ("allreduce", 0.5)
    empty = of(node_steps([1.0]))
    assert len(empty.lines()) == len(empty.operators()) == len(empty.collectives()) == 0


@pytest.mark.parametrize(
    ("schema", "method"),
    [
        (moments.INTERVALS, Run.intervals),
        (moments.STATISTICS, Run.step_statistics),
        (moments.BY_PHASE, Run.utilization_by_phase),
        (moments.WHILE_LOW, Run.phases_while_gpu_low),
        (moments.RANGES, Run.utilization_ranges),
        (tables.LINES, Run.lines),
        (tables.OPERATORS, Run.operators),
        (tables.COLLECTIVES, Run.collectives),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_column_is_documented(schema: pa.Schema, method: Callable[..., Any]) -> None:
    words = (method.__doc__ or "").replace(",", " ").split()
    for field in schema:
        assert field.name in words
        assert field.metadata or not pa.types.is_floating(field.type), field.name


# -- a run that goes on --------------------------------------------------------------------------------


class Growing(Source):
    """A run that has one chunk more at each opening."""

    def __init__(self, chunks: list[Any], facts: RunFacts) -> None:
        self._chunks, self._facts = chunks, facts

    @property
    def facts(self) -> RunFacts:
        return self._facts

    def read(self) -> Iterator[NodeSamples | Steps]:
        yield from self._chunks


def growing(*chunks: Any, end: float | None = None) -> Run:
    opened: list[int] = []

    def reopen() -> Source:
        opened.append(1)
        return Growing([each for each in chunks[: len(opened)] if each is not None], run_facts(end=end))

    return Run("memory", reopen)


def test_refresh_reads_what_came_meanwhile_and_evaluates_again() -> None:
    run = growing(None, node_samples([[0.5]] * 9), None, node_samples([[1.0]], start=START + 60), None)

    def busiest() -> Any:
        return max(row["max"] for row in run.usage().to_pylist() if row["resource"] == "CPU")

    assert [busiest(), busiest()] == [0.5, 0.5]  # evaluated once
    assert run.refresh() is run
    assert busiest() == 1.0
    assert not run.finished


def test_waiting_for_data_ends_with_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepscope.analysis, "LOOK_AGAIN", 0.0)
    run = growing(None, None, node_samples([[0.5]]), None, node_steps([1.0]), None)
    assert run.wait_for_data("steps") is run
    assert len(run.steps()) == 1


def test_waiting_for_data_that_never_comes_ends_with_the_reason() -> None:
    with pytest.raises(UserError, match="memory: has ended without steps; the run's verdict says"):
        growing(node_samples([[0.5]]), end=START + 9).wait_for_data("steps")
    with pytest.raises(UserError, match="has no samples after 0 s; wait longer with timeout="):
        growing(None).wait_for_data(timeout=0)
    with pytest.raises(UserError, match="choose one of samples, steps"):
        growing(None).wait_for_data("losses")


def test_a_run_opens_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stepscope-runs").mkdir()
    with pytest.raises(UserError, match="resnet"):
        stepscope.analysis.open("resnet")


def test_a_notebook_links_the_report_of_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(tmp_path, "lr 1e-3 #2", 0)
    (folder / "report.html").touch()
    monkeypatch.chdir(tmp_path)
    assert 'href="lr%201e-3%20%232/report.html"' in stepscope.analysis.open(folder)._repr_html_()


def test_a_notebook_shows_the_verdict_with_names_as_text() -> None:
    run = of(node_steps([1.0] * 200), name="<b>", end=START + 200, start=START)
    shown = run._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>?" in shown  # not enough data
