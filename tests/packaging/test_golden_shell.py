"""The completions and the man page that the wheel installs: what --help says, read by real shells."""

import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
import shtab
from argparse_manpage.manpage import Manpage
from stepscope.commands.cli import COMMANDS, parser_of

SHELL = Path(__file__).parents[2] / "deploy" / "shell"
Golden = Callable[[Path, str], None]


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> ArgumentParser:
    monkeypatch.setenv("COLUMNS", "80")
    return parser_of(COMMANDS)


@pytest.mark.parametrize(("file", "shell"), [("stepscope.bash", "bash"), ("_stepscope", "zsh")])
def test_completions_are_of_todays_commands_and_flags(
    file: str, shell: str, parser: ArgumentParser, golden: Golden
) -> None:
    golden(SHELL / file, shtab.complete(parser, shell) + "\n")


def test_the_man_page_is_todays_help(parser: ArgumentParser, golden: Golden) -> None:
    parser.man_short_description = "finds out why a training job leaves its GPUs idle"  # type: ignore[attr-defined]
    page = Manpage(parser)
    page.date, page.manual = "", "Stepscope"
    golden(SHELL / "stepscope.1", str(page))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("stepscope cross", ["crosscheck"]),
        ("stepscope rules ren", ["render"]),
        ("stepscope report --form", ["--format"]),
        ("stepscope report --format mark", ["markdown"]),
    ],
)
def test_bash_completes(words: str, completed: list[str]) -> None:
    typed = words.split()
    script = f"""
        source {SHELL / "stepscope.bash"}
        COMP_WORDS=({words}) COMP_CWORD={len(typed) - 1}
        _shtab_stepscope
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == completed


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_man_page_is_set_without_a_warning() -> None:
    command = ["groff", "-man", "-ww", "-Tutf8", str(SHELL / "stepscope.1")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    assert "crosscheck" in shown.stdout
