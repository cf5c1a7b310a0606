"""Timelines of Horovod: invented ones, in the form that Horovod 0.28 writes, with exact numbers.

In each step of 100 ms, the ranks become ready for the first of two gradients after 60 ms, and for the second
one after 70 ms. The second one's allreduce ends after 80 ms at the earliest.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.evaluation.engine import evaluate
from stepscope.runs.horovod import HorovodTimeline
from stepscope.runs.model import COMPONENTS, RunFacts, Steps
from stepscope.runs.open import open_source

BASE = 1_700_000_000_000_000  # microseconds
STEP, FIRST, SECOND, TRANSFER = 100_000, 60_000, 70_000, 10_000
COMMUNICATION = COMPONENTS.index("communication")
ROUNDED = 1e-6  # seconds: what a float of a time since the epoch can tell apart
Row = dict[str, Any]


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=ROUNDED)


def metadata(pid: int, **args: Any) -> Row:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": args}


def collective(pid: int, ready: Sequence[int], end: int, ticks: bool) -> list[Row]:
    """One allreduce; if its response is cached, there are no ticks and rank 0 begins."""
    begin = min(ready) if ticks else ready[0]
    rows = [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": pid}]
    if ticks:
        order = sorted(range(len(ready)), key=lambda rank: ready[rank])
        rows += [{"ph": "X", "name": str(rank), "ts": ready[rank], "pid": pid, "dur": 0} for rank in order]
    return [
        *rows,
        {"ph": "E", "ts": max(ready), "pid": pid},
        {"ph": "B", "name": "ALLREDUCE", "ts": max(ready), "pid": pid},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": max(ready), "pid": pid},
        {"ph": "E", "ts": end, "pid": pid},
        {"ph": "E", "ts": end, "pid": pid, "args": {"dtype": "float32"}},
    ]


def timeline(late: Sequence[int] = (0, 0, 0), ticks: bool = True, steps: int = 40) -> list[Row]:
    """A job whose ranks are late by `late` microseconds in each step."""
    rows = [
        metadata(0, start_time_since_epoch_in_micros=BASE),
        *(metadata(1 + n, name=f"grad {n}") for n in (0, 1)),
    ]
    begin = 0
    for _ in range(steps):
        first, second = ([begin + at + each for each in late] for at in (FIRST, SECOND))
        rows += collective(1, first, max(first) + TRANSFER, ticks)
        end = max(second) + TRANSFER
        rows += collective(2, second, end, ticks)
        rows.append({"ph": "i", "name": "CYCLE_START", "ts": end, "s": "g"})
        begin = end + STEP - SECOND - TRANSFER
    return rows


def write(path: Path, rows: list[Row], end: str = "]") -> Path:
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + end, encoding="utf-8")
    return path


def read(path: Path) -> tuple[RunFacts, dict[int, Steps]]:
    source = open_source(path)
    assert isinstance(source, HorovodTimeline)
    steps = {chunk.rank: chunk for chunk in source.read() if isinstance(chunk, Steps)}
    return source.facts, steps


def test_a_step_ends_with_its_last_allreduce_and_each_rank_communicates_from_its_last_tick(
    tmp_path: Path,
) -> None:
    facts, steps = read(write(tmp_path / "hvd.json", timeline(late=(0, 0, 30_000))))
    assert sorted(steps) == [0, 1, 2]
    assert [len(each) for each in steps.values()] == [39, 39, 39]
    for rank, waits in ((0, 0.040), (1, 0.040), (2, 0.010)):
        assert steps[rank].durations == near(0.130)
        assert steps[rank].components[:, COMMUNICATION] == near(waits)
        assert steps[rank].components.sum() == pytest.approx(39 * waits, rel=1e-4)
    assert steps[0].starts[0] == pytest.approx(BASE / 1e6 + 0.110)
    assert facts.start == pytest.approx(BASE / 1e6 + 0.060)
    assert [rank.world_size for rank in facts.ranks] == [3, 3, 3]
    calls = {each.operation: each.calls for each in facts.collectives}
    seconds = {each.operation: each.seconds for each in facts.collectives}
    assert calls == dict.fromkeys(("ALLREDUCE", "GLOO_ALLREDUCE", "NEGOTIATE_ALLREDUCE"), 80)
    assert seconds["NEGOTIATE_ALLREDUCE"] == pytest.approx(80 * 0.030, rel=1e-4)
    assert seconds["GLOO_ALLREDUCE"] == pytest.approx(80 * 0.010, rel=1e-4)


def test_the_rank_that_is_late_is_named_and_what_it_does_is_not_guessed(tmp_path: Path) -> None:
    found = {
        each.rule: each
        for each in evaluate(open_source(write(tmp_path / "h.json", timeline((0, 0, 30_000))))).rules
    }
    straggler = found["Straggler"]
    assert straggler.status.value == "found"
    assert straggler.details["slow_ranks"] == [2]
    assert "What it does in this time was not timed" in straggler.finding
    assert "outside" not in straggler.finding + straggler.recommendation


def test_equal_ranks_are_not_accused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "hvd.json", timeline(late=(0, 500, 0)))
    found = {each.rule: each.status.value for each in evaluate(open_source(path)).rules}
    assert found["Straggler"] == "healthy"
    shown = write(tmp_path / "waits.json", timeline(late=(0, 40_000, 0), ticks=False))
    assert main(["report", str(shown), "--out", str(tmp_path / "report")]) == 0
    assert "Exposed communication: 36 % of the run" in capsys.readouterr().err


def test_cached_responses_show_only_when_rank_0_was_ready(tmp_path: Path) -> None:
    facts, steps = read(write(tmp_path / "hvd.json", timeline(late=(0, 40_000), ticks=False)))
    assert list(steps) == [0]
    assert steps[0].components[:, COMMUNICATION] == near(0.050)
    assert any("HOROVOD_CACHE_CAPACITY=0" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize("end", [",\n", ',\n{"ph": "B", "na'])
def test_a_list_that_was_never_ended_is_read_to_its_end(tmp_path: Path, end: str) -> None:
    facts, steps = read(write(tmp_path / "hvd.json", timeline(), end))
    assert len(steps[0]) == 39
    assert any("What would follow is missing" in sentence for sentence in facts.unknowns)


def test_a_tick_of_an_impossible_rank_is_no_rank(tmp_path: Path) -> None:
    rows = timeline()
    tick = next(place for place, row in enumerate(rows) if row.get("name") == "1")
    rows.insert(tick, {**rows[tick], "name": "9" * 11})
    facts, steps = read(write(tmp_path / "timeline.json", rows))
    assert steps.keys() == {0, 1, 2}
    assert {rank.world_size for rank in facts.ranks} == {3}


def test_without_a_date_times_count_from_the_start(tmp_path: Path) -> None:
    facts, _ = read(write(tmp_path / "hvd.json", timeline()[1:]))
    assert facts.start == pytest.approx(0.060)
    assert any("does not contain the date" in sentence for sentence in facts.unknowns)


def test_tensors_that_are_sometimes_reduced_end_no_step(tmp_path: Path) -> None:
    rows = timeline()
    metric = collective(9, [65_000, 65_000, 65_000], 66_000, ticks=True)
    _, steps = read(write(tmp_path / "hvd.json", [*rows[:3], *metric, *rows[3:]]))
    assert len(steps[0]) == 39
    assert steps[0].durations == near(0.100)


def test_too_few_rounds_are_no_steps(tmp_path: Path) -> None:
    facts, steps = read(write(tmp_path / "hvd.json", timeline(steps=2)))
    assert not steps
    assert any("Steps are not known" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize(
    "row",
    [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": 1},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": "soon", "pid": 1},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1e400, "pid": 1},
        {"ph": "X", "name": "NEGOTIATE_", "ts": [], "pid": {}},
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "hvd.json"
    path.write_text(json.dumps([row]), encoding="utf-8")
    with pytest.raises(UserError, match=r"hvd\.json"):
        list(open_source(path).read())
