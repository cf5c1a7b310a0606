"""Computes percentages of time by name, for the fields of SageMaker Debugger's details."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from stepscope.runs.model import COMPONENTS, PHASES

SMALLEST = 2.0  # per cent: operators below are left out
OTHERS = "others"
# Debugger's names of phases and passes.
PHASE_NAMES = {phase: f"Step:ModeKeys.{phase.upper()}" for phase in PHASES}
PASSES = {"forward": "Forward pass", "backward": "Backward pass"}
K = TypeVar("K")


def summed(parts: Iterable[Mapping[K, float]]) -> dict[K, float]:
    """Returns the sum of the amounts of each name."""
    sums: dict[K, float] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def percentages(amounts: Mapping[str, float]) -> dict[str, float]:
    """Returns each amount above 0 as a percentage of their sum."""
    total = sum(amounts.values())
    return {name: 100 * (amount / total) for name, amount in amounts.items() if amount > 0}


def large(amounts: Mapping[str, float]) -> dict[str, float]:
    """Returns the amounts above 2 % of their sum, the largest first."""
    shares = percentages(amounts)
    ordered = sorted(shares, key=lambda name: (-amounts[name], name))
    return {name: amounts[name] for name in ordered if shares[name] > SMALLEST}


def inside_steps(components: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns `forward_backward`, if both passes took time, and `general` with the other components."""
    passes = {label: components.get(name, 0.0) for name, label in PASSES.items()}
    both = all(amount > 0 for amount in passes.values())
    rest = {name: components.get(name, 0.0) for name in COMPONENTS if not (both and name in PASSES)}
    fields = {"forward_backward": percentages(passes) if both else {}, "general": percentages(rest)}
    return {name: shares for name, shares in fields.items() if shares}


def of_phases(seconds: Mapping[str, float], others: float) -> dict[str, float]:
    """Returns the shares of phases under Debugger's names, and of `others`: the time between steps."""
    named = {PHASE_NAMES[phase]: seconds.get(phase, 0.0) for phase in PHASES}
    return percentages({**named, OTHERS: others})
