"""The operators, kernels and Python functions whose self time per step differs most between both runs."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.evaluation.analysis import Analysis

SHOWN = 10
LEAST = 0.01  # of all self time on the device, in the run that has more


@dataclass(frozen=True)
class ComparedOperator:
    """Self seconds per step of the profile windows, the mean of the ranks; 0: not seen."""

    device: str  # "cpu", "gpu" or "python"
    operator: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        return self.b - self.a


def compared_operators(a: Analysis, b: Analysis) -> list[ComparedOperator]:
    """Returns what changed most, on devices that windows of both runs recorded."""
    if a.profile is None or b.profile is None:
        return []
    both, found = (a.profile.per_step, b.profile.per_step), []
    for device in sorted(both[0].keys() & both[1].keys()):
        before, after = both[0][device], both[1][device]
        least = LEAST * max(sum(before.values()), sum(after.values()))
        for operator in sorted({*before, *after}):
            each = ComparedOperator(device, operator, before.get(operator, 0.0), after.get(operator, 0.0))
            if abs(each.difference) >= least > 0:
                found.append(each)
    return sorted(found, key=lambda each: -abs(each.difference))[:SHOWN]
