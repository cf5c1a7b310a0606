"""Which cases of a long list `make test` tries; `make trials` tries all."""

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def smallest(cases: Iterable[object], kept: Collection[int] = range(5)) -> list[ParameterSet]:
    """Returns the parameters of a test: the cases whose numbers are not in `kept` are marked `trial`."""
    return [
        pytest.param(case, marks=[] if number in kept else pytest.mark.trial)
        for number, case in enumerate(cases)
    ]
