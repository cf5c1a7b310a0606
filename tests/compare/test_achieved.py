"""Which predictions of A have an outcome in B, and what the comparison records."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepscope.commands.cli import main
from stepscope.common.status import Status
from stepscope.compare.achieved import outcomes, record_outcomes
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import Comparison, compare
from stepscope.report.predicted_savings import PredictedSaving
from stepscope.report.track_record import RECORD, Outcome, read_record
from stepscope.report.write import write_report
from stepscope.runs.recording.files import RunFile

from tests.support.analysis import rule
from tests.support.compared import run_of
from tests.support.comparisons import MORE_WORKERS
from tests.support.rented_nodes import rented_nodes
from tests.support.scenarios import WrittenScenarios
from tests.support.world import copy

NOISE = 1 + 0.02 * np.random.default_rng(1).normal(size=(2, 400))
STARVED = rule("DataStarved", Status.FOUND, seconds_lost=80.0)  # of the 200 s that the steps of A took
FED = rule("DataStarved")
EXPECTED = PredictedSaving("more_workers", 0.5, 0.0, 0.6, 0.0, 0, 0)


def before(place: str = "before", *rules: Any, **more: Any) -> ComparedRun:
    return _run(0.5 * NOISE[0], 0.0, place, rules or (STARVED,), **more)


def after(step: float = 0.32, *rules: Any, **more: Any) -> ComparedRun:
    return _run(step * NOISE[1], 3600.0, "after", rules or (FED,), **{"loader": {"workers": 4}, **more})


def _run(durations: np.ndarray, later: float, place: str, rules: Any, **more: Any) -> ComparedRun:
    loader = {"workers": 2, "batch_size": 32, **more.pop("loader", {})}
    run = run_of(durations, place=place, loader=loader, **more)
    analysis = run.analysis
    moved = {name: getattr(analysis, name) + later for name in ("start", "end")}
    run_name = os.path.basename(place)
    return replace(run, analysis=replace(analysis, rules=list(rules), run=run_name, finished=True, **moved))


def only(comparison: Comparison) -> Outcome:
    (outcome,) = outcomes(comparison)
    return outcome


def test_a_finding_that_went_away_has_an_outcome() -> None:
    outcome = only(compare(before(), after()))
    assert (outcome.kind, outcome.a, outcome.b) == ("DataStarved", "before", "after")
    assert outcome.predicted == outcome.high == pytest.approx(0.4, abs=0.01)
    assert outcome.low == 0
    assert outcome.achieved == pytest.approx(0.36, abs=0.01)
    assert 0 < outcome.noise < 0.02
    assert outcome.held


def test_a_run_that_became_slower_without_the_finding_is_a_failed_prediction() -> None:
    outcome = only(compare(before(), after(0.6)))
    assert outcome.achieved == pytest.approx(-0.2, abs=0.02)
    assert not outcome.held


STRAGGLER = rule("Straggler", Status.FOUND, seconds_lost=20.0)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (before(), after(0.32, STARVED), "the finding is still there"),
        (before(), after(0.32, rule("DataStarved", Status.NOT_ENOUGH_DATA)), "nobody knows whether it is"),
        (before("before", STARVED, STRAGGLER), after(0.32, FED, rule("Straggler")), "two went away"),
        (
            before("before", STARVED, STRAGGLER),
            after(0.32, FED, rule("Straggler", Status.NOT_ENOUGH_DATA)),
            "two may have gone away",
        ),
        (before("before", FED), after(0.32, FED), "nothing was predicted"),
        (after(), before("before", FED), "B is the earlier run"),
        (before(), after(loader={"workers": 4, "batch_size": 64}), "the batch differs"),
        (before(), after(ranks=2), "the number of ranks differs"),
        (before(gpu=0.5), after(gpu=0.5, nodes=("a", "b")), "the number of nodes differs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_outcome_if(a: ComparedRun, b: ComparedRun, why: str) -> None:
    assert outcomes(compare(a, b)) == [], why


def test_the_same_cases_have_an_outcome_without_the_difference() -> None:
    only(compare(before("before", STARVED, STRAGGLER), after(0.32, FED, STRAGGLER)))
    only(compare(before(gpu=0.5), after(gpu=0.5)))
    only(compare(before(ranks=2), after(ranks=2)))


@pytest.mark.parametrize("changes", [{"exit_status": 1}, {"finished": False}, {"start": 5.0}])
@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_run_that_failed_did_not_finish_or_has_no_date_shows_no_outcome(
    letter: str, changes: dict[str, Any]
) -> None:
    runs = {"a": before(), "b": after()}
    runs[letter] = replace(runs[letter], analysis=replace(runs[letter].analysis, **changes))
    assert outcomes(compare(runs["a"], runs["b"])) == []


def test_too_few_steps_show_no_outcome() -> None:
    few = _run(np.full(10, 0.32), 3600.0, "after", (FED,))
    assert outcomes(compare(before(), few)) == []


# ------------------------------------------------------------------------------- suggested changes


def suggested(place: Path, *more: Any) -> str:
    """A report that suggests 4 loader workers instead of 2, and may suggest more."""
    place.mkdir(parents=True)
    stored = {
        "schema_version": 1,
        "predictions": [MORE_WORKERS.__dict__, *(each.__dict__ for each in more)],
        "predicted_savings": [
            EXPECTED.__dict__,
            *(replace(EXPECTED, kind=each.change).__dict__ for each in more),
        ],
    }
    (place / "report.json").write_text(json.dumps(stored))
    return str(place)


def test_a_change_made_as_suggested_has_an_outcome_whatever_became_of_the_finding(tmp_path: Path) -> None:
    a = before(suggested(tmp_path / "before"), STARVED)
    outcome = only(compare(a, after(0.48, STARVED)))
    assert (outcome.kind, outcome.predicted, outcome.low, outcome.high) == ("more_workers", 0.5, 0.0, 0.6)
    assert outcome.achieved == pytest.approx(0.04, abs=0.02)
    assert outcome.held


def test_a_change_that_went_further_than_suggested_has_none(tmp_path: Path) -> None:
    a = before(suggested(tmp_path / "before"), STARVED)
    assert outcomes(compare(a, after(0.3, STARVED, loader={"workers": 8}))) == []


def test_two_changes_at_once_have_none(tmp_path: Path) -> None:
    batch = replace(MORE_WORKERS, change="larger_batch", current=32, suggested=64)
    a = before(suggested(tmp_path / "before", batch), STARVED)
    only(compare(a, after(0.4, STARVED, loader={"workers": 4})))
    both = after(0.4, STARVED, loader={"workers": 4, "batch_size": 64})
    assert outcomes(compare(a, both)) == []


def test_a_larger_batch_is_scored_per_item(tmp_path: Path) -> None:
    batch = replace(MORE_WORKERS, change="larger_batch", current=32, suggested=64)
    a = before(suggested(tmp_path / "before", batch), FED)
    outcome = only(compare(a, after(0.6, FED, loader={"workers": 2, "batch_size": 64})))
    assert outcome.kind == "larger_batch"
    assert outcome.achieved == pytest.approx(0.4, abs=0.01), "0.6 s for twice the items of 0.5 s"


def test_what_the_report_said_counts_not_what_the_rules_of_today_say(tmp_path: Path) -> None:
    a = before(str(tmp_path / "before"))
    write_report(replace(a.analysis, rules=[replace(STARVED, seconds_lost=20.0)]), tmp_path / "before")
    assert only(compare(a, after())).predicted == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("damage", [{"high": float("nan")}, {"low": 0.55}, {"widened": -1.0}, {"kind": 7}])
def test_a_report_with_numbers_that_make_no_sense_is_no_report(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    a = before(suggested(tmp_path / "before"), STARVED)
    stored = json.loads((tmp_path / "before" / "report.json").read_text())
    stored["predicted_savings"][0].update(damage)
    (tmp_path / "before" / "report.json").write_text(json.dumps(stored))
    assert only(compare(a, after(0.4, FED))).kind == "DataStarved", "computed from the recording instead"


# ------------------------------------------------------------------------------ stepscope compare


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs in the current directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stepscope-runs"
    folder.mkdir()
    return folder


def test_compare_records_an_outcome_once(
    runs: Path, scenarios: WrittenScenarios, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "few-dataloaders").symlink_to(scenarios.written("few-dataloaders").recording_directory)
    later = copy(scenarios.written("healthy").recording_directory, runs / "healthy")
    began = RunFile.read(later)
    assert began
    assert began.start
    replace(began, start=began.start + 1).write(later)
    words = ["compare", "stepscope-runs/few-dataloaders", "stepscope-runs/healthy"]
    assert main(words) == 0
    said = capsys.readouterr()
    (outcome,) = read_record(runs).recorded
    assert outcome.kind == "DataStarved"
    assert (outcome.predicted, outcome.achieved) == pytest.approx((0.468, 0.363), abs=0.005)
    assert said.err == (
        "stepscope: recorded for `stepscope score stepscope-runs`: DataStarved, 47 % of the step time "
        "predicted, 36 % saved\n"
    )
    assert main(words) == 0
    assert capsys.readouterr() == (said.out, "")
    assert read_record(runs).recorded == (outcome,)
    assert main(["score"]) == 0
    assert "DataStarved         1     1     100 %       47 %      36 %" in capsys.readouterr().out


def test_a_damaged_record_never_costs_the_comparison(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / RECORD).write_text("damaged\n")
    places = [rented_nodes(runs / name, 1, seconds) for name, seconds in (("a", 100.0), ("b", 50.0))]
    assert main(["compare", *map(str, places)]) == 0
    out, err = capsys.readouterr()
    assert "PREDICTED AGAINST MEASURED" in out
    (line,) = err.splitlines()
    assert line.startswith("stepscope: outcomes of predictions are not recorded: ")
    assert f"{RECORD}, line 1: not the outcome of a prediction" in line
    assert (runs / RECORD).read_text() == "damaged\n"


def test_a_record_that_cannot_be_written_stays_as_it_was(runs: Path) -> None:
    places = [runs / name for name in ("before", "after")]
    for place in places:
        place.mkdir()
    comparison = compare(before(str(places[0])), replace(after(), place=str(places[1])))
    blocked = runs / f".{RECORD}.{os.getpid()}.unfinished"
    (blocked / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="unfinished"):
        record_outcomes(comparison)
    assert not (runs / RECORD).exists()
    shutil.rmtree(blocked)
    recorded = record_outcomes(comparison)
    assert recorded is not None
    assert recorded == (runs, list(read_record(runs).recorded))
    assert len(recorded[1]) == 1


def test_runs_outside_a_folder_of_runs_leave_no_record(tmp_path: Path) -> None:
    for folders in (("copies", "copies"), ("stepscope-runs", "copies")):
        places = [tmp_path / folder / name for folder, name in zip(folders, ("before", "after"), strict=True)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        assert (
            record_outcomes(compare(before(str(places[0])), replace(after(), place=str(places[1])))) is None
        )
    assert not list(tmp_path.glob(f"**/{RECORD}"))
