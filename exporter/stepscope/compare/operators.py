"""The operators, kernels and Python functions whose self time per step differs most between both runs."""

from __future__ import annotations

from stepscope.evaluation.analysis import Analysis, OperatorChange
from stepscope.evaluation.operator_changes import operator_changes


def compared_operators(a: Analysis, b: Analysis) -> list[OperatorChange]:
    """Returns what changed most, on devices that windows of both runs recorded; lines are those of B."""
    if a.profile is None or b.profile is None:
        return []
    places = a.profile.places() | b.profile.places()
    return operator_changes(a.profile.per_step, b.profile.per_step, places)
