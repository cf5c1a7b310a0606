"""docs/debugger.csv: what Debugger's profiler can do, and its twin here; `make golden` renders its lists.

A row is one capability. `works` is yes, partly, no, or aws: it only administers machines of AWS, and the page
counts it by itself. `here` is its twin, or why it does not work.
What it names must exist: code, titles of the report or of dashboards (in italics), pages.
"""

import ast
import csv
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import stepscope.analysis
import yaml
from stepscope.analysis import Run, Stretch, moments, tables
from stepscope.analysis.plots import Plots
from stepscope.commands.cli import COMMANDS, parser_of
from stepscope.compat import smdebug
from stepscope.evaluation.settings import Settings
from stepscope.report.details import KINDS
from stepscope.report.html import SECTIONS
from stepscope.rules import all_rules
from stepscope.rules.parts.parameters import specifications
from stepscope.training.window_plans import parse_plans

from tests.analysis.test_moments import of
from tests.docs.test_commands import problem
from tests.docs.test_links import anchors
from tests.docs.test_lists_of_rules import wrapped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "migrating-from-debugger.md"
CLIENT = "Client library"
LEAST = 260  # that work
STATES = {"yes": "", "partly": "Partly:", "no": "Not:", "aws": "Only at AWS:"}
CODE, TITLE = re.compile(r"`([^`]+)`"), re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")
PLACE = re.compile(r"([\w./-]+\.(?:md|ipynb))(?:#([\w-]+))?")  # of a page, from docs/
PARTS = re.compile(r"(?P<callable>[\w.]+)(?:\((?P<argument>\w*)\))?")  # PandasFrame.get_x(argument)


@dataclass(frozen=True)
class Capability:
    """One row."""

    area: str
    works: str  # yes, partly, no or aws
    capability: str
    here: str


def read() -> list[Capability]:
    with (DOCS / "debugger.csv").open(encoding="utf-8", newline="") as file:
        return [Capability(**row) for row in csv.DictReader(file)]


CAPABILITIES = read()

# -- rendering -----------------------------------------------------------------------------------------


def rendered() -> str:
    """Returns the count, and the lists of what works partly or not."""
    by_state = {state: [each for each in CAPABILITIES if each.works == state] for state in STATES}
    works, partly, _, aws = map(len, by_state.values())
    count = (
        f"**{works} of {len(CAPABILITIES) - aws} capabilities work**, {partly} partly.\n\n"
        f"{aws} more have no meaning outside AWS, and do not count: see the end."
    )
    lists = [f"{title}\n\n{items(by_state[state])}" for state, title in STATES.items() if title]
    return "\n" + "\n\n".join([count, *lists]) + "\n"


def items(capabilities: Sequence[Capability]) -> str:
    """Returns a list with an item per twin or reason."""
    twins: dict[str, list[str]] = {}
    for each in capabilities:
        twins.setdefault(PLACE.sub(r"[\1](\g<0>)", each.here), []).append(each.capability)
    return "\n".join(wrapped(f"- {', '.join(together(names))}: {here}") for here, names in twins.items())


def together(names: Sequence[str]) -> Iterator[str]:
    """Yields the capabilities, with arguments of one call in one pair of parentheses: `Rule(a, b)`."""
    for call, each in groupby(names, lambda name: name.partition("(")[0].strip("`") or name):
        group = list(each)
        arguments = [match["argument"] for name in group if (match := PARTS.fullmatch(name.strip("`")))]
        if len(arguments) == len(group) > 1:
            yield f"`{call}({', '.join(filter(None, arguments))})`"
        else:
            yield from group


def test_the_page_has_the_golden_lists(golden: Callable[[Path, str], None]) -> None:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- rendered: capabilities -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert begin
    assert end
    golden(PAGE, before + begin + rendered() + "\n" + end + after)


def test_almost_every_capability_works_and_none_is_counted_twice() -> None:
    assert {each.works for each in CAPABILITIES} == set(STATES)
    assert sum(each.works == "yes" for each in CAPABILITIES) >= LEAST
    names = [(each.area, each.capability) for each in CAPABILITIES]
    assert len(set(names)) == len(names)


# -- what exists ---------------------------------------------------------------------------------------


def flags() -> set[str]:
    found: set[str] = set()
    for command in COMMANDS:
        _, *actions = parser_of([command])._actions
        (subcommands,) = [action.choices for action in actions if action.dest == "command"]
        assert isinstance(subcommands, Mapping)
        found |= {flag for action in subcommands[command]._actions for flag in action.option_strings}
    return found


FLAGS = flags()


def titles() -> set[str]:
    """Returns the titles of the report, its views and headings, and of dashboards and their panels."""
    templates = (ROOT / "exporter" / "stepscope" / "report" / "templates").glob("*.html")
    headings = {
        heading.strip()
        for page in templates
        for heading in re.findall(r"<h3[^>]*>([^<{]+)", page.read_text(encoding="utf-8"))
    }
    boards = [json.loads(path.read_text()) for path in (ROOT / "grafana" / "dashboards").glob("*.json")]
    panels = {panel.get("title", "") for board in boards for panel in board["panels"]}
    return (
        {*SECTIONS.values(), *(kind.title for kind in KINDS), *headings}
        | {board["title"].partition(" / ")[2] for board in boards}
        | panels
    )


TITLES = titles()
COLUMNS = {
    name
    for module in (tables, moments)
    for schema in vars(module).values()
    if isinstance(schema, pa.Schema)
    for name in schema.names
}
METRICS = {f"stepscope_{name}" for name in re.findall(r"(?m)^- `(\w+)", (DOCS / "metrics.md").read_text())}
RECEIVERS = {
    receiver["name"]
    for receiver in yaml.safe_load((ROOT / "alertmanager" / "alertmanager.yml").read_text())["receivers"]
}
SOURCE = "".join(path.read_text() for path in (ROOT / "exporter").rglob("*.py"))


def call_of_a_run(code: str) -> str:
    """Returns what is wrong with `run.at(time).steps()`: a name, or arguments that it does not take."""
    chain: list[ast.Call | ast.Attribute] = []
    node: Any = ast.parse(code, mode="eval").body
    while not isinstance(node, ast.Name):
        chain.append(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    kind: Any = Run
    method: Any = None
    for each in reversed(chain):
        if isinstance(each, ast.Attribute):
            if not hasattr(kind, each.attr) and each.attr not in vars(of()):
                return f"{kind.__name__} has no {each.attr}"
            method = getattr(kind, each.attr, None)
            kind = Plots if each.attr == "plot" else Stretch
        else:
            keywords = {str(keyword.arg): None for keyword in each.keywords}
            try:
                signature(method).bind(None, *each.args, **keywords)
            except TypeError as error:
                return f"{code}: {error}"
    return ""


def problem_of(code: str) -> str:
    """Returns why a code span names nothing that exists; empty if it does."""
    word, _, value = code.partition(" ")
    exists: bool
    if code.startswith("stepscope "):
        return problem(code)
    if code.startswith("run."):
        return call_of_a_run(code)
    if code.startswith("--"):
        if word == "--profile":
            parse_plans(value)
        if word == "--set":
            Settings.parse([value])
        exists = word in FLAGS
    elif code.startswith("python -m "):
        exists = find_spec(code.removeprefix("python -m ")) is not None
    elif word.partition(".")[0] in all_rules():
        rule, _, parameter = code.partition(".")
        exists = not parameter or parameter in specifications(all_rules()[rule].parameters_type)
    elif match := re.fullmatch(r"(\w+)\(\w+\)", code):
        exists = hasattr(stepscope.analysis, match[1])
    elif match := re.fullmatch(r"([A-Z][A-Z_]+)(=\w+)?", code):
        exists = match[1] in SOURCE
    else:
        exists = code in METRICS | COLUMNS | RECEIVERS | {"s3://...", "remote"}
    return "" if exists else f"{code}: does not exist"


@pytest.mark.parametrize("here", sorted({each.here for each in CAPABILITIES}))
def test_the_twin_of_a_capability_exists(here: str) -> None:
    assert list(filter(None, map(problem_of, CODE.findall(here)))) == []
    text = CODE.sub("", here)
    assert [title for title in TITLE.findall(text) if title not in TITLES] == []
    for page, anchor in PLACE.findall(text):
        assert (DOCS / page).is_file(), page
        assert not anchor or anchor in anchors(DOCS / page), anchor


def test_a_twin_that_does_not_exist_is_noticed() -> None:
    calls = "run.sampels() run.samples(begin=1) run.at(1).stepps() opn(name)"
    others = "--profil stepscope_cpu STEPSCOPE_OF=1 CPUBottleneck.gpu snz"
    wrong = [*calls.split(), *others.split(), "stepscope reprot RUN", "python -m pstatz"]
    assert [code for code in wrong if not problem_of(code)] == []


def classes() -> dict[str, type]:
    """Returns every class of the client library here, by its name."""
    modules = pkgutil.walk_packages(smdebug.__path__, smdebug.__name__ + ".")
    return {
        name: kind
        for module in modules
        for name, kind in vars(import_module(module.name)).items()
        if isinstance(kind, type)
    }


def test_calls_of_the_client_library_have_their_twin_below_the_same_name() -> None:
    known, seen = classes(), 0
    for each in CAPABILITIES:
        if each.area != CLIENT or each.works in ("no", "aws"):
            continue
        (code,) = CODE.findall(each.capability)
        match = PARTS.fullmatch(code)
        assert match, code
        name, _, method = match["callable"].partition(".")
        call = getattr(known[name], method) if method else known[name]
        assert not match["argument"] or match["argument"] in signature(call).parameters, code
        seen += 1
    assert seen > 50
