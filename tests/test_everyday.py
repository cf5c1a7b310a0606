"""Everyday scripts with what slows them: the truths and the scoring of `python -m trials.everyday`."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from trials.everyday import __main__ as command
from trials.everyday.__main__ import main, observe
from trials.everyday.clock import Clock, clocked
from trials.everyday.judge import (
    FOLDER,
    Score,
    Seen,
    holds,
    is_silent,
    judge,
    marked_lines,
    rows,
    saved,
    script,
)
from trials.everyday.truths import FIRST, SECOND, Situation
from trials.processes import Processes

METRIC = next(each for each in FIRST if each.name == "metric_in_loop")
LINE = min(marked_lines("metric_in_loop"))
FINDING = {
    "title": "Your own code",
    "rule": "Account",
    "also": [],
    "finding": f"90 % of the run at metric_in_loop.py:{LINE} (confusion).",
    "recommendation": "Make it cheaper.",
    "seconds_lost": 9.0,
}
RIGHT = Seen(
    "metric_in_loop", False, 0, {"status": "found", "sentences": [""], "findings": [FINDING]}, 10.0, 17.0
)
SILENT = Seen(
    "metric_in_loop", True, 0, {"status": "healthy", "sentences": ["Healthy."], "findings": []}, None, 9.0
)


def seen(**changed: object) -> Seen:
    return replace(RIGHT, verdict={**RIGHT.verdict, "findings": [{**FINDING, **changed}]})


def test_every_script_has_its_truth() -> None:
    names = [each.name for each in FIRST + SECOND]
    assert sorted(names) == sorted(file.stem for file in FOLDER.glob("*.py"))
    assert len(set(names)) == len(names) >= 40
    assert all(each.leaves or each.rules or each.says for each in FIRST + SECOND)


@pytest.mark.parametrize("name", [each.name for each in FIRST + SECOND])
def test_the_healthy_twin_differs_from_its_script_and_the_cause_has_lines(name: str) -> None:
    tree = ast.parse(script(name).read_text())
    assert any(isinstance(node, ast.Name) and node.id == "GOOD" for node in ast.walk(tree))
    says = {each.name: each.says for each in FIRST + SECOND}[name]
    assert marked_lines(name) or says  # no line runs while a setting slows the run


def test_a_finding_with_cause_line_and_seconds_is_right_and_any_other_is_not() -> None:
    assert judge(METRIC, RIGHT) == Score(finding=True, line=True, seconds=True)
    assert judge(METRIC, seen(title="Waiting for data")) == Score(finding=False, line=True, seconds=True)
    assert not judge(METRIC, seen(finding="at metric_in_loop.py:1")).line
    assert not judge(METRIC, seen(finding="nowhere")).line
    assert not judge(METRIC, seen(seconds_lost=7.9)).seconds
    assert not judge(METRIC, seen(seconds_lost=None)).seconds
    assert judge(METRIC, replace(RIGHT, clocked=None)).seconds is None
    assert judge(METRIC, replace(RIGHT, status=1)) == Score(finding=False, line=False, seconds=False)
    assert judge(METRIC, replace(RIGHT, verdict={})) == Score(finding=False, line=False, seconds=False)


def test_words_that_name_or_contradict_the_cause_decide() -> None:
    lock = Situation(
        "metric_in_loop", "a lock", rules=("DataStarved",), says=r"\block", never="storage is slow"
    )
    assert judge(lock, seen(rule="DataStarved", finding="workers wait for one lock")).finding
    assert not judge(lock, seen(rule="DataStarved", finding="blocked")).finding
    assert not judge(lock, seen(rule="DataStarved", finding="a lock, or storage is slow")).finding
    assert not judge(lock, seen(finding="workers wait for one lock")).finding


def test_a_twin_is_silent_only_if_it_ended_well_and_has_no_finding() -> None:
    assert is_silent(SILENT)
    assert not is_silent(replace(SILENT, status=1))
    assert not is_silent(replace(SILENT, verdict={}))
    assert not is_silent(replace(RIGHT, good=True))


def test_it_holds_only_if_all_ran_and_no_twin_is_accused() -> None:
    results = {("metric_in_loop", False): RIGHT, ("metric_in_loop", True): SILENT}
    assert holds([METRIC], results)
    assert not holds([METRIC], {("metric_in_loop", False): RIGHT})
    assert not holds([METRIC], {**results, ("metric_in_loop", True): replace(RIGHT, good=True)})
    assert not holds([METRIC], {**results, ("metric_in_loop", False): seen(title="Forward pass")})


def test_the_table_has_a_row_per_situation_and_totals() -> None:
    results = {("metric_in_loop", False): RIGHT, ("metric_in_loop", True): SILENT}
    row, total = rows([METRIC], results)
    assert row[0] == "`metric_in_loop`"
    assert row[3:] == ("yes", "yes", "yes: 9.0 s for 10.0 s", "", "yes")
    assert total == ("**first set**", "", "", "1 of 1", "1 of 1", "1 of 1", "0 of 0", "1 of 1")


def test_advice_about_time_outside_the_loop_is_compared_with_that() -> None:
    bad = replace(seen(title="After the last step"), loop=3.0, steps=10)  # 14 s outside, 9 of them said
    good = replace(SILENT, loop=4.0, steps=10)  # 5 s outside
    shares = saved(bad, good)
    assert shares is not None
    assert list(shares) == pytest.approx([9 / 14, 9 / 14])


@pytest.mark.parametrize(
    ("steps", "loop", "word"),
    [(500, 12.0, "yes: 40 %"), (1500, 12.0, "no: 80 %"), (250, 12.0, "no: -20 %"), (300, 0.0, "")],
)
def test_advice_helps_if_the_twin_is_faster_by_no_more_than_was_said(
    steps: int, loop: float, word: str
) -> None:
    bad = replace(RIGHT, loop=15.0, steps=375)  # 40 ms per step, of which 24 ms are said to be lost
    good = replace(SILENT, loop=loop, steps=steps)
    results = {("metric_in_loop", False): bad, ("metric_in_loop", True): good}
    row, total = rows([METRIC], results)
    assert row[6] == (word and f"{word} of up to 60 %")
    assert total[6] == ("0 of 0" if not word else "1 of 1" if word.startswith("yes") else "0 of 1")
    assert holds([METRIC], results) is (not word.startswith("no"))


def test_a_clock_sums_seconds_and_the_slowest_rank_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert clocked(tmp_path) is None
    monkeypatch.setenv("EVERYDAY_CLOCK", str(tmp_path))
    for rank, seconds in (("0", 1.5), ("1", 2.5)):
        monkeypatch.setenv("RANK", rank)
        clock = Clock()
        clock.seconds = seconds
        clock.write()
    assert clocked(tmp_path) == 2.5


def test_results_in_the_file_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(_: Situation, good: bool, __: Processes) -> Seen:
        ran.append(good)
        return SILENT

    monkeypatch.setattr(command, "run", run)
    file = tmp_path / "results"
    file.write_text(f"{RIGHT.as_json()}\n")
    assert list(observe([METRIC], file=file)) == [RIGHT, SILENT]
    assert ran == [True]
    assert len(file.read_text().splitlines()) == 2


def test_an_unknown_name_is_an_error_and_a_missing_package_skips(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["no_such"])
    assert ended.value.code == 2
    assert "no situation has the name no_such" in capsys.readouterr().err
    needy = replace(METRIC, needs=("no_such_package",))
    assert command._possible([METRIC, needy]) == [METRIC]
    assert "skipped metric_in_loop: it needs no_such_package" in capsys.readouterr().err
