"""Takes over what Debugger's own reports say, if the data that they judged are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import count, number, percent
from stepscope.measurements.usage import UsageRow
from stepscope.rules.overall_system_usage import OverallSystemUsage
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.starvation import Starvation
from stepscope.rules.parts.topics import Effect
from stepscope.runs.model import RunFacts

RESOURCES = {"I/O": "I/O wait"}  # Debugger's name: ours
STATISTICS = ("max", "p99", "p95", "p50", "min")


def verdict(rule: Rule[Any, Any], facts: RunFacts) -> Verdict:
    """Returns the verdict that Debugger's report of a rule gives; there are none for rules of our own."""
    content = facts.reported.get(rule.name)
    if content is None:
        return Verdict(Status.NOT_ENOUGH_DATA, "Debugger left no report of this rule.")
    triggered, violations, points = (content[name] for name in ("RuleTriggered", "Violations", "Datapoints"))
    if rule.effect is Effect.OVERVIEW:
        return Verdict(Status.HEALTHY, "As Debugger reported it.", datapoints=points)
    lost = 0.0
    said = f"Debugger's rule fired at {count(triggered, 'scan')} of the job"
    if isinstance(rule, Starvation) and points:
        share = percent(100 * violations / points)
        cores = "a core busy" if rule.cause == "cpu" else "a core waiting for I/O"
        samples = f"{number(violations)} of {count(points, 'sample')} ({share} of all)"
        said += f"; {samples} have {cores} and an idle GPU"
        if triggered and facts.start is not None and facts.end is not None:
            lost = max(facts.end - facts.start, 0.0) * min(violations / points, 1.0)
    return Verdict(status_of(triggered, points), f"{said}.", triggered, violations, points, lost)


def usage(reported: Mapping[str, Any]) -> list[UsageRow]:
    """Returns the rows of Debugger's OverallSystemUsage; percentages of each sample, and bytes per second."""
    found = reported.get(OverallSystemUsage.__name__, {}).get("Details", {})
    return [
        UsageRow(node, RESOURCES.get(name, name), "B/s" if name == "Network" else "%", *map(float, values))
        for name, nodes in found.items()
        for node, row in nodes.items()
        if (values := [row.get(each) for each in STATISTICS]) and None not in values
    ]
