"""Lists and tables of rules in the documentation: `make golden` writes them from the rules."""

import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from stepscope.common.words import listing
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules
from stepscope.rules import all_rules
from stepscope.rules.parts.parameters import Bounds, Specification, specifications
from stepscope.rules.parts.silences import SILENCES
from stepscope.rules.parts.topics import IDLE_GPUS

from tests.docs.test_pictures import NEVER_FIRE

ROOT = Path(__file__).parents[2]
COMPARES_NODES = re.compile(r"(?:by|on) \([^)]*\bcluster, run\b")
COMMAND = "stepscope rules render --out rules --only"


def needs() -> dict[str, str]:
    """Returns what each rule needs, by the list of docs/heuristics.md, in its order."""
    page = (ROOT / "docs" / "heuristics.md").read_text(encoding="utf-8")
    items = re.findall(r"(?m)^- \[(\w+)\]\(#\w+\): ((?:.+\n)(?:  .+\n)*)", page)
    return {name: re.sub(r"\s+", " ", text).rpartition("? Needs ")[2].strip() for name, text in items}


def what_rules_find() -> str:
    rules = [
        wrapped(f"- [{name}](#{name.lower()}): {all_rules()[name].question} Needs {what}")
        for name, what in needs().items()
    ]
    return "\n" + "\n".join(rules) + "\n"


def with_the_lean_profile() -> str:
    lean, every = ([rule.name for rule in alerting_rules(Options(profile=of))] for of in ("lean", "default"))
    left_out = [name for name in every if name not in lean]
    return f"- with both: {listing(lean)}\n- only with the default profile: {listing(left_out)}"


def causes_of_idle_gpus() -> str:
    groups = yaml.load(render(Options())[RULES], yaml.CSafeLoader)["groups"]
    labels = [rule["labels"] for group in groups for rule in group["rules"] if "alert" in rule]
    causes, symptoms = (
        sorted(
            {
                each["rule"]
                for each in labels
                if each.get("symptom") == IDLE_GPUS.name and each["kind"] == kind
            }
        )
        for kind in ("cause", "symptom")
    )
    return f"- these silence: {listing(causes)}\n- these are silenced: {listing(symptoms)}"


def commands_for_parts_and_top() -> str:
    names: dict[bool, list[str]] = {False: [], True: []}
    for rule in alerting_rules(Options()):
        rendered = render(Options(only=(rule.name,)))[RULES]
        names[bool(COMPARES_NODES.search(rendered))].append(rule.name)
    return "\n".join(["```sh", *(f"{COMMAND} {' '.join(some)}" for some in names.values()), "```"])


def words_of_a_rule(name: str) -> str:
    """Returns the picture and the parameters of a rule; its advice is in each finding and alert."""
    parameters = [
        described("", each)
        for each in specifications(all_rules()[name].parameters_type).values()
        if each.name != "live_window"  # the page has a table of the windows
    ]
    picture = [f"![{name} fires](pictures/rules/{name}.svg)"] if name not in NEVER_FIRE else []
    return "\n" + "\n\n".join([*picture, "\n".join(parameters)]) + "\n"


def parameters_of_silences() -> str:
    all_rules()  # imports the files of rules on hardware, which register themselves
    parameters = [
        described(f"{name}.", each)
        for name, silence in sorted(SILENCES.items())
        for each in specifications(silence).values()
    ]
    return "\n" + "\n".join(parameters) + "\n"


def described(prefix: str, parameter: Specification) -> str:
    """Returns a parameter with its default, as `--set` takes it, its unit and its meaning."""
    default = "none" if parameter.default is None else f"{parameter.default:g}"
    unit = f" ({parameter.limits.unit})" if isinstance(parameter.limits, Bounds) else ""
    explained = parameter.name == "patience"  # at the top of heuristics.md
    meaning = "" if explained else f": {parameter.doc}"
    return wrapped(f"- `{prefix}{parameter.name}={default}`{unit}{meaning}")


def wrapped(text: str) -> str:
    """Returns an item of a list in lines of 120 characters."""
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


LISTS: dict[str, dict[str, Callable[[], str]]] = {
    "heuristics": {
        "what rules find": what_rules_find,
        **{name: partial(words_of_a_rule, name) for name in all_rules() if not name.startswith("Overall")},
    },
    "rules": {"rules by profile": with_the_lean_profile, "parameters": parameters_of_silences},
    "notifications": {"causes and symptoms": causes_of_idle_gpus},
    "sizing": {"commands": commands_for_parts_and_top},
}


@pytest.mark.parametrize("page", LISTS)
def test_the_golden_lists_of_a_page_say_what_the_rules_say(
    page: str, golden: Callable[[Path, str], None]
) -> None:
    path = ROOT / "docs" / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    for name, written in LISTS[page].items():
        before, begin, rest = text.partition(f"<!-- rendered: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin, f"{page} has no list of {name}"
        assert end, f"the list of {name} in {page} has no end"
        text = before + begin + written() + "\n" + end + after
    golden(path, text)


def test_every_rule_that_can_fire_is_in_the_list() -> None:
    assert set(needs()) == {name for name in all_rules() if not name.startswith("Overall")}
