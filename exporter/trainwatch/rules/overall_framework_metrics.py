"""OverallFrameworkMetrics: what the time went into, as the framework tells it. It never fires.

Source: SageMaker Debugger's OverallFrameworkMetrics: the shares of phases, of forward and backward pass, of
operators on each device, and of collective operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwatch.measurements.component_time import ComponentTime
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.rules.base import Overview, Verdict
from trainwatch.rules.judgement import Tallies
from trainwatch.rules.parameters import Parameters
from trainwatch.rules.registry import rule
from trainwatch.rules.shares import OTHERS, PHASE_NAMES, inside_steps, large, of_phases, percentages
from trainwatch.runs.model import COMPONENTS, OperatorTime, RunFacts
from trainwatch.status import Status
from trainwatch.words import percent

OPERATORS_LISTED = 20  # of each device
# Kinds of event in Debugger's files that are shown elsewhere: as forward and backward pass.
SUBMODULES = ("Forward-SubModuleInternal", "Backward-SubModuleInternal")


@dataclass(frozen=True)
class OverallFrameworkMetricsParameters(Parameters):
    """There is nothing to set."""


@rule
class OverallFrameworkMetrics(Overview[OverallFrameworkMetricsParameters]):
    parameters_type = OverallFrameworkMetricsParameters
    subject = "The time by phase and component"
    question = "What did the time go into?"
    description = (
        "Shows how the time of all ranks divides into phases, and that of steps into their components, "
        "operators and collective operations, as far as these were timed."
    )
    recommendation = "Nothing to do: this is the overview that the other findings refer to."

    @property
    def measure(self) -> ComponentTime:
        return ComponentTime("data_wait")  # for its number of steps

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        details = _details(run.facts)
        return Verdict(
            Status.HEALTHY if details else Status.NOT_ENOUGH_DATA,
            _finding(details, run.facts) if details else "Neither steps nor operators were timed.",
            datapoints=sum(
                rank.steps for node in run.of(self.measure).values() for rank in node.ranks.values()
            ),
            details=details,
        )


def _details(facts: RunFacts) -> dict[str, Any]:
    """Debugger's fields in percent (CPU_total, GPU_total: microseconds), then our own in seconds.

    All are sums over ranks; a field about which nothing is known is left out.
    """
    phases = _summed(one.phase_seconds for one in facts.ranks)
    components = _summed(one.component_seconds for one in facts.ranks)
    components = {name: components[name] for name in COMPONENTS if components.get(name)}
    collectives = _summed({one.operation: one.seconds} for one in facts.collectives)
    operators = {device: _operators(facts.operators, device) for device in _devices(facts.operators)}
    fields: dict[str, Any] = {
        **_phases(phases),
        **inside_steps(components),
        "ratio": percentages({device: sum(its.values()) for device, its in operators.items()}),
        **_of_device_kind("CPU", operators),
        **_of_device_kind("GPU", operators),
        "horovod": percentages(large(collectives)),
        "phase_seconds": {name: value for name, value in phases.items() if value},
        "component_seconds": components,
        "operator_seconds": {device: _first(its) for device, its in operators.items()},
        "operator_total_seconds": {device: sum(its.values()) for device, its in operators.items()},
        "communication_seconds": _first(collectives),
        "communication_total_seconds": sum(collectives.values()),
        "communication_exposed_seconds": _exposed(facts),
    }
    activities = _summed({one.activity: one.seconds} for one in facts.activities)
    others = {name: value for name, value in activities.items() if name not in SUBMODULES}
    if others:
        fields["general"] = percentages(others)
    fields = {name: value for name, value in fields.items() if value}
    if "general" in fields:
        fields.setdefault("phase", {OTHERS: 100.0})  # the notebook looks it up; without steps, all is other
    return fields


def _phases(seconds: Mapping[str, float]) -> dict[str, Any]:
    """The phases of steps, and the time between steps; not what came before the first and after the last."""
    shares = of_phases(seconds, seconds.get("other", 0.0))
    return {"phase": {**shares, OTHERS: shares.get(OTHERS, 0.0)}} if shares else {}


def _of_device_kind(kind: str, operators: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The operators of all CPUs or of all GPUs that took more than 2 %."""
    found = large(_summed(its for device, its in operators.items() if device.upper().startswith(kind)))
    microseconds = {name: 1e6 * seconds for name, seconds in found.items()}
    return {kind: percentages(found), f"{kind}_total": microseconds}


def _devices(operators: Iterable[OperatorTime]) -> list[str]:
    return sorted({one.device for one in operators})


def _operators(operators: Iterable[OperatorTime], device: str) -> dict[str, float]:
    """Seconds by operator, without what it called where that is known."""
    return _summed(
        {one.operator: one.seconds if one.self_seconds is None else one.self_seconds}
        for one in operators
        if one.device == device
    )


def _exposed(facts: RunFacts) -> float | None:
    """Seconds of communication during which the device did nothing else; None: not known."""
    known = [one.exposed_seconds for one in facts.collectives if one.exposed_seconds is not None]
    return sum(known) if known else None


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _first(amounts: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:OPERATORS_LISTED])


def _finding(details: Mapping[str, Any], facts: RunFacts) -> str:
    clauses = []
    phases = details.get("phase", {})
    if phases:
        training = phases.get(PHASE_NAMES["train"], 0.0)
        clauses.append(
            f"training steps took {percent(training)} of the time between the first step and the last, "
            f"the time between steps {percent(phases[OTHERS])}"
        )
    components = percentages(details.get("component_seconds", {}))
    if components:
        most = max(components, key=components.__getitem__)
        clauses.append(
            f"of the components of steps, {most.replace('_', ' ')} took most ({percent(components[most])})"
        )
    if not clauses:
        clauses.append(
            f"{len(facts.operators)} operators and {len(facts.collectives)} collectives were timed"
        )
    sentence = "; ".join(clauses)
    return f"{sentence[0].upper()}{sentence[1:]}."
