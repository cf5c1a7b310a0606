"""The commands that documentation and --help show: each is one that `stepscope` or make takes."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from stepscope.commands.cli import COMMANDS, parser_of
from stepscope.common.errors import UserError

REPOSITORY = Path(__file__).parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *REPOSITORY.glob("examples/*.md")]
BLOCK = re.compile(r"(?ms)^ *```[\w-]*\n(.*?)^ *```")
# After a prompt, a variable, or another command.
COMMAND = re.compile(r"(?:^|\$ |&& |; |sudo |exec |\| |\b[A-Z_]+=\S+ )(stepscope [a-z].*)$")
SPOKEN = re.compile(r"`(stepscope [a-z][^`]*)`")  # in a sentence
# What follows in the line: an explanation, or what the shell does with the output.
REST = re.compile(r"\s{2,}|\s#|\s(?:[|>&]|2>)")


def commands(text: str) -> set[str]:
    """Returns the commands of a page's code blocks, or of the examples of a command's help."""
    lines = (line.strip() for line in text.replace("\\\n", "").splitlines())
    found = (match[1] for line in lines if (match := COMMAND.search(line)))
    return {REST.split(re.sub(r"(\S) +(-)", r"\1 \2", command))[0].rstrip(";") for command in found}


def problem(command: str) -> str:
    """Returns what `stepscope` says against the words of a command; empty if it takes them."""
    words = shlex.split(command)[1:]
    try:
        parser_of(words[:1]).parse_args(words)
    except UserError as error:
        return f"{command}: {error}"
    except SystemExit as asked_for_help:
        return "" if asked_for_help.code == 0 else command
    return ""


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_every_command_of_a_page_has_flags_and_arguments_that_exist(page: Path) -> None:
    shown = {command for block in BLOCK.findall(page.read_text()) for command in commands(block)}
    assert list(filter(None, map(problem, sorted(shown)))) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_help_have_flags_and_arguments_that_exist(command: str) -> None:
    module = import_module(f"stepscope.commands.{COMMANDS[command][0]}")
    shown = commands(module.EXAMPLES)
    assert shown
    assert list(filter(None, map(problem, sorted(shown)))) == []


def test_the_commands_that_messages_name_have_flags_that_exist() -> None:
    trees = [ast.parse(file.read_text()) for file in (REPOSITORY / "exporter").rglob("*.py")]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    named = {command for text in constants if isinstance(text, str) for command in SPOKEN.findall(text)}
    wrong = re.compile("unrecognized|invalid")  # what is required may follow
    assert len(named) > 20
    assert list(filter(wrong.search, map(problem, sorted(named)))) == []


def test_commands_are_found_in_pages_and_wrong_ones_are_reported() -> None:
    text = "```sh\nA=1 stepscope list --json | jq .     # all\nstepscope open \\\n    --prnt\n```\n"
    assert commands(text) == {"stepscope list --json", "stepscope open --prnt"}
    assert problem("stepscope list --json") == ""
    assert "--prnt" in problem("stepscope open --prnt")
    assert "reprot" in problem("stepscope reprot DIR")
    assert problem("stepscope compare --out") != ""


def test_every_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"(?m)^([\w-]+):", (REPOSITORY / "Makefile").read_text()))
    texts = [page.read_text() for page in PAGES]
    blocks = "".join(block for text in texts for block in BLOCK.findall(text))
    in_blocks = re.findall(r"(?m)^make ([a-z][\w-]*)", blocks)
    named = {*in_blocks, *re.findall(r"`make ([a-z][\w-]*)", "".join(texts))}
    assert {"run", "test"} <= named <= targets
