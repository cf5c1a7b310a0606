"""When a finding accuses a rank, this rank and a median peer are asked for the same steps, once."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.commands.run.on_findings import FindingWindows
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.exporter.ledgers.asked_windows import DISTANCE, LONGEST_WAIT
from stepscope.exporter.ledgers.reader import LedgerReader
from stepscope.runs.traces.source import KinetoTraces
from stepscope.training import layout, window_request
from stepscope.training.ledger import Ledger, create_ledger
from stepscope.training.ranks import Ranks
from stepscope.training.recorder import make_recorder
from stepscope.training.window_plans import USUAL_STEPS

from tests.support.analysis import nothing_found, rule
from tests.support.chrome_trace import Slice, read_chrome_trace
from tests.support.observing import two_ranks
from tests.support.pytorch import needs_torch
from tests.support.slow_operator import assert_it_is_named_with_its_line, write_script


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Ledger]]:
    """Four ranks that made 10 steps of 0.1 s and more by rank."""
    made = {}
    # The kernel does not show a process its own locks.
    monkeypatch.setattr(LedgerReader, "holder", lambda _: os.getpid())
    for rank in range(4):
        ledger = create_ledger(str(tmp_path), "bert-1", Ranks(rank, None, 4))
        recorder = make_recorder(lambda: True)
        recorder.attach(ledger.memory)
        for number in range(10 + rank):
            recorder.record_step("train", 100.0 + number, 100.1 + number + rank / 100)
        made[rank] = ledger
    yield made
    for ledger in made.values():
        ledger.remove()


class Case:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.windows = FindingWindows(folder, lambda: self.now)

    def accuse(self, rank: int | None, status: Status = Status.FOUND) -> None:
        self.windows.update(_accusing(rank, status))


def _accusing(rank: int | None, status: Status) -> Analysis:
    return replace(nothing_found(), rules=[rule("Straggler", status, details={"rank": rank})])


def requests(ledgers: dict[int, Ledger]) -> dict[int, tuple[int, int]]:
    """Returns first step and steps of each rank that is asked."""
    found = {rank: window_request.read_request(ledger.memory) for rank, ledger in ledgers.items()}
    return {rank: (request.first, request.steps) for rank, request in found.items() if request is not None}


def look_at(ledger: Ledger) -> float:
    at = layout.COUNTERS_AT + layout.COUNTER_LOOK_AT * 8
    return float(layout.DOUBLE.unpack_from(ledger.memory, at)[0])


def test_the_accused_and_a_median_peer_are_asked_for_the_same_steps(
    tmp_path: Path, ledgers: dict[int, Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path)
    case.accuse(3)
    asked = requests(ledgers)
    assert set(asked) == {3, 1}  # of the ranks 0, 1 and 2
    assert set(asked.values()) == {(13 + 4, USUAL_STEPS)}  # 0.5 s of steps of 0.13 s later
    assert "Straggler accuses rank 3: 5 steps of ranks 3 and 1 are profiled" in capsys.readouterr().err


def test_nobody_is_asked_without_an_accused_rank(tmp_path: Path, ledgers: dict[int, Ledger]) -> None:
    case = Case(tmp_path)
    case.accuse(None)
    case.accuse(3, Status.HEALTHY)
    assert requests(ledgers) == {}


def test_a_rank_is_asked_once_and_another_one_after_a_distance(
    tmp_path: Path, ledgers: dict[int, Ledger]
) -> None:
    case = Case(tmp_path)
    case.accuse(3)
    for ledger in ledgers.values():
        window_request.drop_request(ledger.memory)
    case.now = DISTANCE - 1
    case.accuse(0)
    assert requests(ledgers) == {}
    case.now = DISTANCE
    case.accuse(3)
    assert requests(ledgers) == {}
    case.accuse(0)
    assert set(requests(ledgers)) == {0, 2}


def test_a_rank_is_woken_until_it_answers(tmp_path: Path, ledgers: dict[int, Ledger]) -> None:
    case = Case(tmp_path)
    case.accuse(3)
    for _ in range(2):
        ledgers[3].look_at(layout.NEVER)
        case.accuse(3)
        assert look_at(ledgers[3]) == 0.0
    request = window_request.read_request(ledgers[3].memory)
    assert request is not None
    window_request.write_answer(
        ledgers[3].memory, window_request.Answer(request.number, window_request.WAITS, 17, 21)
    )
    ledgers[3].look_at(layout.NEVER)
    case.accuse(3)
    assert look_at(ledgers[3]) == layout.NEVER


def test_a_rank_that_stands_still_is_not_asked_for_ever(tmp_path: Path, ledgers: dict[int, Ledger]) -> None:
    case = Case(tmp_path)
    case.accuse(3)
    assert set(requests(ledgers)) == {3, 1}
    case.now = LONGEST_WAIT
    ledgers[3].look_at(layout.NEVER)
    case.accuse(3)
    assert requests(ledgers) == {}
    assert look_at(ledgers[3]) == layout.NEVER


def test_a_rank_on_another_node_is_named(
    tmp_path: Path, ledgers: dict[int, Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path)
    case.accuse(9)
    assert requests(ledgers) == {}
    assert "rank 9 is on another node" in capsys.readouterr().err


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real ranks of PyTorch: while both run, a finding accuses one, and both are profiled."""
    folder = tmp_path_factory.mktemp("two-ranks")
    flags = "--interval", "200ms", "--scan-interval", "2s", "--live-interval", "2s"
    two_ranks(write_script(folder), folder / "recording", "--profile-findings", *flags)
    return folder / "recording"


@needs_torch
def test_a_slow_operator_of_one_rank_is_named_with_its_line_without_help(recording: Path) -> None:
    assert_it_is_named_with_its_line(recording)


@needs_torch
def test_the_traces_of_both_ranks_name_the_one_that_comes_late_at_collectives(recording: Path) -> None:
    rules = {result.rule: result for result in evaluate(KinetoTraces(recording / "profiles")).rules}
    found = rules["Straggler"]
    assert (found.status, found.details["rank"]) == ("found", 1)
    assert found.details["excess_seconds"] > 0.03
    assert found.details["ranks"][0]["waited_seconds"] > found.details["ranks"][1]["waited_seconds"]


def overlap(one: Slice, other: Slice) -> float:
    return min(one.end, other.end) - max(one.start, other.start)


@needs_torch
def test_the_timeline_aligns_steps_of_samples_and_of_traces_of_both_ranks(
    recording: Path, tmp_path: Path
) -> None:
    assert main(["timeline", str(recording), "-o", str(tmp_path / "timeline.json.gz")]) == 0
    read = read_chrome_trace(tmp_path / "timeline.json.gz")
    ranks = sorted({each.process for each in read.slices if each.process.startswith("Rank ")})
    assert len(ranks) == 2
    of_ranks = [[each for each in read.slices if each.process == rank] for rank in ranks]
    profiled = sorted({each.name for each in of_ranks[0] if each.name.startswith("ProfilerStep#")})
    assert len(profiled) == USUAL_STEPS
    third = []
    for of_rank in of_ranks:
        (marked,) = [each for each in of_rank if each.name == profiled[2]]
        (counted,) = [each for each in of_rank if each.name == f"train {profiled[2].partition('#')[2]}"]
        assert overlap(counted, marked) > 0.8 * (counted.end - counted.start)
        assert "aten::addmm" in [each.name for each in of_rank if overlap(marked, each) > 0]
        third.append(marked)
    assert overlap(*third) > 0.5 * (third[0].end - third[0].start)
    cpu = [values for (_, name), values in read.counters.items() if name == "CPU, mean of cores (%)"]
    assert len(cpu[0]) > 3
