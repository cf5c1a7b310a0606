"""Takes over what Debugger's own reports say, if the data that they judged are gone."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import count, duration, number, percent
from stepscope.measurements.usage import UsageRow
from stepscope.rules.dataloader import Dataloader
from stepscope.rules.overall_system_usage import OverallSystemUsage
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.starvation import Starvation
from stepscope.rules.parts.topics import Effect
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import RunFacts

RESOURCES = {"I/O": "I/O wait"}  # Debugger's name: ours
MOST_PROCESSES = 4  # whose steps are reported
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
    said += "".join(f". {sentence}" for sentence in _figures(rule, content["Details"]))
    return Verdict(status_of(triggered, points), f"{said}.", triggered, violations, points, lost)


def _figures(rule: Rule[Any, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """Yields clauses with the figures of loaders and steps that the report of a rule has."""
    if isinstance(rule, Dataloader):
        workers, cores = (_number(details, name) for name in ("num_workers", "cores"))
        if workers is not None:
            of = f" for {count(int(cores), 'core')}" if cores is not None else ""
            yield f"The loader had {count(int(workers), 'worker')}{of}"
        if (wait := _number(details, "dataloading_time", "p50")) is not None:
            yield f"Half of its batches took {duration(wait)} or more"
    if isinstance(rule, StepOutlier) and isinstance(details.get("step_details"), dict):
        for process in sorted(details["step_details"])[:MOST_PROCESSES]:
            median, late = (
                _number(details, "step_details", process, "step_stats", name) for name in ("p50", "p95")
            )
            if median is not None and late is not None:
                times = f"{duration(median)} or less, 95 % {duration(late)}"
                yield f"Half of the steps of {process} took {times}"


def _number(details: Any, *names: str) -> float | None:
    """Returns a finite number that is not negative, by its path; None for anything else in a report."""
    for name in names:
        details = details.get(name) if isinstance(details, dict) else None
    if isinstance(details, bool) or not isinstance(details, int | float):
        return None
    return float(details) if 0 <= details < inf else None


def usage(reported: Mapping[str, Any]) -> list[UsageRow]:
    """Returns the rows of Debugger's OverallSystemUsage; percentages of each sample, and bytes per second."""
    found = reported.get(OverallSystemUsage.__name__, {}).get("Details", {})
    return [
        UsageRow(node, RESOURCES.get(name, name), "B/s" if name == "Network" else "%", *values)
        for name, nodes in found.items()
        for node, row in nodes.items()
        if len(values := [known for each in STATISTICS if (known := _number(row, each)) is not None])
        == len(STATISTICS)
    ]
