"""The short form of every trial, and their table in trials/README.md."""

from pathlib import Path

import pytest

from benchmarks.page import read_table
from trials import Attempt, NotPossibleError, Trial, all_trials
from trials.__main__ import NAME, PAGE, main, perform, write_page

TRIALS = all_trials()


# Trials that only `make trials` performs: they kill, or take long. These tests have a smaller case of each.
SMALLER = {
    "dead_ledgers": "exporter/ledgers/test_folder.py",
    "hostile_neighbour": "exporter/ledgers/test_planted_names.py",
    "interrupted_run": "commands/run/test_signals.py",
    "killed_both": "commands/run/test_run.py",
    "killed_exporter": "exporter/test_exporter.py",
    "killed_run": "commands/run/test_run.py",
    "killed_trainer": "commands/run/test_run.py",
    "line_sampling": "training/test_line_sampler.py",
    "signal_storm": "commands/run/test_signals.py",
    "simultaneous_runs": "commands/run/test_directory.py",
}
USES_UP = pytest.mark.alone("it uses up what other tests need: connections, shared memory, cores")
ALONE = {"crowded_node", "hostile_clients"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[USES_UP] if name in ALONE else []) for name in TRIALS if name not in SMALLER],
)
def test_the_promise_holds_in_the_trials_short_form(name: str, tmp_path: Path) -> None:
    trial = TRIALS[name]
    try:
        assert trial.perform(Attempt(trial, trial.short, seed=1, folder=tmp_path))
    except NotPossibleError as error:
        pytest.skip(str(error))


def test_each_trial_that_is_not_performed_here_has_a_smaller_case() -> None:
    assert SMALLER.keys() <= TRIALS.keys()
    assert {file for file in SMALLER.values() if not (Path(__file__).parent / file).exists()} == set()


def test_every_trial_has_its_row_in_the_page_and_no_other_has() -> None:
    rows = read_table(PAGE, NAME)
    assert [(row[1], row[0]) for row in rows] == [
        (f"`{name}`", each.promise) for name, each in TRIALS.items()
    ]
    assert [row for row in rows if "BROKEN" in row[4] or "NOT TRIED" in row[4]] == []


def test_a_failed_assertion_and_any_other_exception_is_a_broken_promise() -> None:
    def fails(attempt: Attempt) -> str:
        raise AssertionError("two steps\nwere lost") if attempt.count > 1 else ValueError("odd")

    trial = Trial("fails", "Nothing is lost.", fails, 200, 1, "kills")
    result = perform(trial, 200, seed=3)
    assert result.row == ("Nothing is lost.", "`fails`", "200 kills", "3", "BROKEN: two steps were lost")
    assert not result.holds
    assert perform(trial, 1, seed=3).row[4] == "BROKEN: ValueError: odd"


def test_a_trial_that_cannot_be_tried_here_does_not_hold_and_says_what_it_needs() -> None:
    def refuses(_: Attempt) -> str:
        raise NotPossibleError("only root can become other users")

    result = perform(Trial("refuses", "Nothing is lost.", refuses, 200, 1, "kills"), 200, seed=3)
    assert result.row[4] == "NOT TRIED: only root can become other users"
    assert not result.holds


def test_the_exit_status_says_whether_every_promise_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(attempt: Attempt) -> str:
        raise AssertionError(f"broken at {attempt.count}")

    trials = {
        "holds": Trial("holds", "It holds.", lambda attempt: f"{attempt.count} tried", 200, 1, "kills"),
        "breaks": Trial("breaks", "It holds, too.", breaks, 200, 1, "kills"),
    }
    monkeypatch.setattr("trials.__main__.all_trials", lambda: trials)
    assert main(["holds", "--short"]) == 0
    assert main(["holds", "breaks"]) == 1


def test_the_rows_of_trials_that_were_not_performed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trials.__main__.all_trials", lambda: ["a", "b"])
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- {NAME}: begin -->\n<!-- {NAME}: end -->\nafter\n")
    write_page(page, [("B.", "`b`", "2 kills", "1", "first")])
    write_page(page, [("A.", "`a`", "2 kills", "1", "seen"), ("C.", "`gone`", "1", "1", "never")])
    write_page(page, [("B.", "`b`", "3 kills", "1", "second")])
    assert [row[1:5:3] for row in read_table(page, NAME)] == [["`a`", "seen"], ["`b`", "second"]]
