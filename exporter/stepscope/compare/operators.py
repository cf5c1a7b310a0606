"""The operators, kernels and Python functions whose self time per step differs most between both runs."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.evaluation.analysis import Analysis, Profile

SHOWN = 10
LEAST = 0.01  # of all self time on the device, in the run that has more


@dataclass(frozen=True)
class ComparedOperator:
    """Self seconds per step of the profile windows, the mean of the ranks; 0: not seen."""

    device: str  # "cpu", "gpu" or "python"
    operator: str
    a: float
    b: float
    place: str  # file:line of the user's code that calls it most, in B if it is known there; "": not known

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
            seconds = before.get(operator, 0.0), after.get(operator, 0.0)
            each = ComparedOperator(device, operator, *seconds, _place(operator, b.profile, a.profile))
            if abs(each.difference) >= least > 0:
                found.append(each)
    return sorted(found, key=lambda each: -abs(each.difference))[:SHOWN]


def _place(operator: str, *profiles: Profile) -> str:
    """Returns the first place of an operator that is known."""
    devices = (device for profile in profiles for device in profile.devices)
    known = (each.place for device in devices for each in device.operators if each.operator == operator)
    return next(filter(None, known), "")
