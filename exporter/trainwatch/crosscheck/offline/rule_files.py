"""Reads the rules of Prometheus rule files."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from trainwatch.crosscheck.server import Milliseconds
from trainwatch.durations import parse_duration
from trainwatch.errors import UserError
from trainwatch.rules.promql import MINUTE

_METRIC = re.compile(r"\btrainwatch_\w+")


@dataclass(frozen=True)
class FileRule:
    """A recording rule (`record`) or an alerting one (`alert`); durations are seconds."""

    name: str
    is_alert: bool
    expression: str
    labels: Mapping[str, str]
    pending: float = 0.0
    keep_firing: float = 0.0


@dataclass(frozen=True)
class FileGroup:
    """A group of rules."""

    name: str
    interval: Milliseconds
    rules: Sequence[FileRule]


def read_groups(text: str, place: str) -> list[FileGroup]:
    """Returns the groups of a file. Raises UserError, which names `place`, if it is not a rule file."""
    try:
        return [_group(group) for group in yaml.safe_load(text)["groups"]]
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ArgumentTypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{place}: is not a Prometheus rule file ({reason}); see `promtool check rules`"
        ) from None


def metrics(groups: Sequence[FileGroup]) -> set[str]:
    """Returns the names of the raw series that the rules read."""
    return {name for group in groups for rule in group.rules for name in _METRIC.findall(rule.expression)}


def _group(group: Mapping[str, Any]) -> FileGroup:
    interval = round(1000 * _seconds(group.get("interval", f"{MINUTE:g}s")))
    return FileGroup(group["name"], interval, [_rule(rule) for rule in group["rules"]])


def _rule(rule: Mapping[str, Any]) -> FileRule:
    is_alert = "alert" in rule
    return FileRule(
        rule["alert" if is_alert else "record"],
        is_alert,
        rule["expr"],
        rule.get("labels") or {},
        _seconds(rule.get("for", 0)),
        _seconds(rule.get("keep_firing_for", 0)),
    )


def _seconds(written: Any) -> float:
    return parse_duration(str(written)) if written else 0.0
