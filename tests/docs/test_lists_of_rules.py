"""Lists and tables of rules in the documentation: `make golden` writes them from the rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from stepscope.common.words import listing
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules
from stepscope.rules import all_rules
from stepscope.rules.parts.topics import IDLE_GPUS

ROOT = Path(__file__).parents[2]
COMPARES_NODES = re.compile(r"(?:by|on) \([^)]*\bcluster, run\b")
COMMAND = "stepscope rules render --out rules --only"


def needs() -> dict[str, str]:
    """Returns what each rule needs, by the table of docs/heuristics.md, in its order."""
    page = (ROOT / "docs" / "heuristics.md").read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^\| \[(\w+)\]\(#\w+\) \| .+? \| (.+) \|$", page))


def what_rules_find() -> str:
    rows = ["| rule | asks | needs |", "|---|---|---|"]
    rows += [
        f"| [{name}](#{name.lower()}) | {all_rules()[name].question} | {what} |"
        for name, what in needs().items()
    ]
    return "\n" + "\n".join(rows) + "\n"


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


LISTS: dict[str, tuple[str, Callable[[], str]]] = {
    "what rules find": ("docs/heuristics.md", what_rules_find),
    "rules by profile": ("docs/rules.md", with_the_lean_profile),
    "causes and symptoms": ("docs/notifications.md", causes_of_idle_gpus),
    "commands": ("docs/sizing.md", commands_for_parts_and_top),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_golden_list_says_what_the_rules_say(name: str, golden: Callable[[Path, str], None]) -> None:
    page, written = LISTS[name]
    text = (ROOT / page).read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- rendered: {name} -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    assert begin, f"{page} has no list of {name}"
    assert end, f"the list of {name} in {page} has no end"
    golden(ROOT / page, before + begin + written() + end + after)


def test_every_rule_that_can_fire_is_in_the_table() -> None:
    assert set(needs()) == {name for name in all_rules() if not name.startswith("Overall")}
