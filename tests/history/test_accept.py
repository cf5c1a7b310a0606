"""`trainwatch accept` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainwatch.accepted import Acceptance, read_accepted
from trainwatch.cli import main

FILE = Path("trainwatch-runs") / "accepted.yml"
NEW = ("accept", "CPUBottleneck", "--run", "resnet", "--reason", "new loader", "--until", "2999-12-31")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_accepted_finding_is_listed_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NEW, "--by", "alice"]) == 0
    assert (
        "CPUBottleneck of resnet is accepted until 2999-12-31: new loader (by alice)"
        in capsys.readouterr().out
    )
    assert main(["accept", "IdleGPU", "--run", "bert", "--reason", "debugging", "--until", "2999-01-01"]) == 0
    assert main(["accept", "--list"]) == 0
    *_, heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["Rule", "Run", "Until", "State", "By", "Reason"]
    assert first.split() == ["CPUBottleneck", "resnet", "2999-12-31", "accepted", "alice", "new", "loader"]
    assert second.split() == ["IdleGPU", "bert", "2999-01-01", "accepted", "–", "debugging"]
    assert main(["accept", "CPUBottleneck", "--run", "resnet", "--remove"]) == 0
    assert [entry.rule for entry in read_accepted(FILE)] == ["IdleGPU"]


def test_accepting_again_replaces_the_entry() -> None:
    main(NEW)
    main([*NEW[:-1], "2999-06-30"])
    assert read_accepted(FILE) == [Acceptance("CPUBottleneck", "resnet", "new loader", "2999-06-30")]


def test_an_ended_entry_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    FILE.parent.mkdir()
    FILE.write_text("- {rule: IdleGPU, run: bert, reason: why, until: 2020-01-01}\n")
    main(["accept", "--list"])
    assert "ended, counts again" in capsys.readouterr().out


def test_nothing_is_accepted_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "--list"]) == 0
    assert capsys.readouterr().out == f"Nothing is accepted in {FILE}.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["accept"], "give RULE and --run NAME, or --list"),
        (["accept", "IdleGPU", "--run", "bert", "--until", "2999-01-01"], "--reason is missing"),
        (["accept", "IdleGPU", "--run", "bert", "--reason", "why"], "--until is missing"),
        ([*NEW[:-1], "2020-01-01"], "--until 2020-01-01 is in the past"),
        ([*NEW[:-1], "January"], "until 'January' is not a date or time"),
        (
            ["accept", "cpubottlenek", *NEW[2:]],
            "there is no rule 'cpubottlenek'; did you mean CPUBottleneck?",
        ),
        (["accept", "OverallSystemUsage", *NEW[2:]], "there is no rule 'OverallSystemUsage'"),
        (["accept", "IdleGPU", "--run", "bert", "--remove"], "IdleGPU of bert is not accepted"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not FILE.exists()
