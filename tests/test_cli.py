"""The command line as a whole: what a mistyped word says, and what it exits with."""

from __future__ import annotations

import subprocess
import sys

import pytest


def trainwatch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainwatch", *words], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("words", [["nonsense"], ["--nonsense"], []])
def test_a_wrong_word_gets_one_line_that_names_it_and_status_2(words: list[str]) -> None:
    result = trainwatch(*words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("trainwatch: ")
    assert "--help" in result.stderr
    assert all(word in result.stderr for word in words)


def test_help_shows_every_command_and_examples() -> None:
    result = trainwatch("--help")
    assert result.returncode == 0
    for word in ("run", "exporter", "report", "examples:"):
        assert word in result.stdout
