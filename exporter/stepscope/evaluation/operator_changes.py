"""The operators, kernels and Python functions whose self time per step differs most, before and after."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.evaluation.analysis import OperatorChange

SHOWN = 10
LEAST = 0.01  # of all self time on the device, in the one that has more

PerStep = Mapping[str, Mapping[str, float]]  # self seconds by kind of device and operator


def operator_changes(a: PerStep, b: PerStep, places: Mapping[str, str]) -> list[OperatorChange]:
    """Returns what changed most, on devices that both have. `places`: the lines of operators, if known."""
    found = []
    for device in sorted(a.keys() & b.keys()):
        before, after = a[device], b[device]
        least = LEAST * max(sum(before.values()), sum(after.values()))
        for operator in sorted({*before, *after}):
            seconds = before.get(operator, 0.0), after.get(operator, 0.0)
            each = OperatorChange(device, operator, *seconds, places.get(operator, ""))
            if abs(each.difference) >= least > 0:
                found.append(each)
    return sorted(found, key=lambda each: -abs(each.difference))[:SHOWN]
