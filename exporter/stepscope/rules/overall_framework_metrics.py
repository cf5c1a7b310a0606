"""OverallFrameworkMetrics: where the time went, according to the framework. It never fires.

Source: SageMaker Debugger's OverallFrameworkMetrics: the shares of phases, of forward and backward pass, of
operators on each device, and of collective operations.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.rules.parts.base import Overview, Verdict
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.parameters import Parameters
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.shares import (
    OTHERS,
    PHASE_NAMES,
    inside_steps,
    large,
    of_phases,
    percentages,
    summed,
)
from stepscope.runs.model import COMPONENTS, OperatorTime, RunFacts

OPERATORS_LISTED = 20  # per device
# Events in Debugger's files that are shown as forward and backward pass.
SUBMODULES = ("Forward-SubModuleInternal", "Backward-SubModuleInternal")


@rule
class OverallFrameworkMetrics(Overview[Parameters]):
    subject = "The time by phase and component"
    question = "Where did the time go?"
    description = (
        "Shows how the time of all ranks divides into phases, and the time of steps into components, "
        "operators and collective operations, if these were timed."
    )
    recommendation = "Nothing to do: this is the overview that the other findings refer to."

    measure = STEP_DURATIONS

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        details = _details(run.facts)
        return Verdict(
            Status.HEALTHY if details else Status.NOT_ENOUGH_DATA,
            _finding(details, run.facts) if details else "Neither steps nor operators were timed.",
            datapoints=sum(node.count() for node in run.of(self.measure).values()),
            details=details,
        )


def _details(facts: RunFacts) -> dict[str, Any]:
    """Returns Debugger's fields in percent (CPU_total, GPU_total: microseconds), then our own in seconds.

    All fields are sums over ranks; unknown ones are left out.
    """
    phases = summed(rank.phase_seconds for rank in facts.ranks)
    components = summed(rank.component_seconds for rank in facts.ranks)
    components = {name: components[name] for name in COMPONENTS if components.get(name)}
    collectives = summed({call.operation: call.seconds} for call in facts.collectives)
    devices = sorted({operator.device for operator in facts.operators})
    operators = {device: _operators(facts.operators, device) for device in devices}
    fields: dict[str, Any] = {
        **_phases(phases),
        **inside_steps(components),
        "ratio": percentages({device: sum(seconds.values()) for device, seconds in operators.items()}),
        **_of_device_kind("CPU", operators),
        **_of_device_kind("GPU", operators),
        "horovod": percentages(large(collectives)),
        "phase_seconds": {name: value for name, value in phases.items() if value},
        "component_seconds": components,
        "operator_seconds": {device: _first(seconds) for device, seconds in operators.items()},
        "operator_total_seconds": {device: sum(seconds.values()) for device, seconds in operators.items()},
        "communication_seconds": _first(collectives),
        "communication_total_seconds": sum(collectives.values()),
        "communication_exposed_seconds": _exposed(facts),
    }
    activities = summed({activity.activity: activity.seconds} for activity in facts.activities)
    others = {name: value for name, value in activities.items() if name not in SUBMODULES}
    if others:
        fields["general"] = percentages(others)
    fields = {name: value for name, value in fields.items() if value}
    if "general" in fields:
        fields.setdefault("phase", {OTHERS: 100.0})  # the notebook reads it; without steps, all time is other
    return fields


def _phases(seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns the phases of steps and the time between steps, without initialization and finalization."""
    shares = of_phases(seconds, seconds.get("other", 0.0))
    return {"phase": {**shares, OTHERS: shares.get(OTHERS, 0.0)}} if shares else {}


def _of_device_kind(kind: str, operators: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Returns the operators of all CPUs or all GPUs that took more than 2 %."""
    found = large(summed(seconds for device, seconds in operators.items() if device.upper().startswith(kind)))
    microseconds = {name: 1e6 * seconds for name, seconds in found.items()}
    return {kind: percentages(found), f"{kind}_total": microseconds}


def _operators(operators: Iterable[OperatorTime], device: str) -> dict[str, float]:
    """Returns seconds by operator: self time if known, otherwise with the operators that it called."""
    return summed(
        {found.operator: found.seconds if found.self_seconds is None else found.self_seconds}
        for found in operators
        if found.device == device
    )


def _exposed(facts: RunFacts) -> float | None:
    """Returns seconds of communication during which the device did nothing else; None if unknown."""
    known = [call.exposed_seconds for call in facts.collectives if call.exposed_seconds is not None]
    return sum(known) if known else None


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
