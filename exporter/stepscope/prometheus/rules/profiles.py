"""Leaves out the rules that cannot work with the exporter's lean profile (sampling/profiles.py)."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.common.errors import UserError
from stepscope.exporter.sampling.profiles import LEAN
from stepscope.prometheus.rules.groups import STATUS, Entry, Group, rule_groups
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.base import Rule

_SELECTOR = re.compile(r"(?<![\w:])((?:stepscope|process)_\w+)(?![\w:])(?:\{([^}]*)\})?")
_NAME = re.compile(r"[\w:]+")
_MATCHER = re.compile(r'(\w+)(=~?|!~|!=)"([^"]*)"')


def works_with_lean(entry: Entry) -> bool:
    """Returns whether the lean profile has every series that a rule selects."""
    return all(_is_lean(name, matchers) for name, matchers in _SELECTOR.findall(entry["expr"]))


def working(groups: Sequence[Group], options: Options) -> list[Group]:
    """Returns the groups that are left with a profile, with the entries that are left in each."""
    if options.profile != "lean":
        return list(groups)
    kept, left = None, [{**group, "rules": list(filter(works_with_lean, group["rules"]))} for group in groups]
    while kept != left:  # what reads a record that is gone goes, too
        kept, lost = left, _recorded(groups) - _recorded(left)
        left = [
            {
                **group,
                "rules": [each for each in group["rules"] if lost.isdisjoint(_NAME.findall(each["expr"]))],
            }
            for group in kept
        ]
    return [group for group in left if group["rules"]]


def _recorded(groups: Sequence[Group]) -> set[str]:
    return {entry["record"] for group in groups for entry in group["rules"] if "record" in entry}


def working_rules(options: Options) -> list[Group]:
    """Returns the groups of rules that work with a profile; a rule with only some of its series does not.

    Raises UserError if a setting asks for series that the profile lacks, although the default does not.
    """
    groups = rule_groups(options)
    left = _whole(groups)
    if options.profile != "lean":
        return [group if group["name"] in left else _unknown_if_lean(group) for group in groups]
    for name in _whole(rule_groups(replace(options, words=()))).keys() - left.keys():
        rule = name.removeprefix("stepscope-")
        words = " ".join(f"--set {word}" for word in options.words if word.startswith(f"{rule}."))
        raise UserError(
            f"{words} is not available with --profile lean: that profile counts samples only at the bounds "
            "of the defaults; leave it out, or use --profile default"
        )
    if without := [name for name in options.only if f"stepscope-{name}" not in left]:
        raise UserError(f"--only {' '.join(without)}: needs metrics that exporters with --profile lean lack")
    return list(left.values())


def alerting_rules(options: Options) -> list[Rule[Any, Any]]:
    """Returns the rules that have alerts."""
    groups = {group["name"] for group in working_rules(options)}
    return [rule for rule in options.settings.rules() if f"stepscope-{rule.name}" in groups]


def _unknown_if_lean(group: Group) -> Group:
    """Returns the group without the status of targets whose exporter lacks what the rule needs."""
    lean = '\nunless on (cluster, job, instance) stepscope_exporter_build_info{profile="lean"}'
    rules = [
        {**rule, "expr": rule["expr"] + lean} if rule.get("record") == STATUS else rule
        for rule in group["rules"]
    ]
    return {**group, "rules": rules}


def _whole(groups: Sequence[Group]) -> dict[str, Group]:
    return {group["name"]: group for group in groups if all(map(works_with_lean, group["rules"]))}


def _is_lean(name: str, matchers: str) -> bool:
    family = name if name in LEAN else re.sub("_(bucket|sum|count)$", "", name)
    if family not in LEAN:
        return False
    chosen = {label: (operator, value) for label, operator, value in _MATCHER.findall(matchers)}
    return all(
        _among(*chosen.get(label, ("", "")), set(values))
        for label, values in LEAN[family].items()
        if label != "le" or name.endswith("_bucket")
    )


def _among(operator: str, value: str, values: set[str]) -> bool:
    """Returns whether a matcher selects nothing but these values."""
    return (operator == "=" and value in values) or (operator == "=~" and set(value.split("|")) <= values)
