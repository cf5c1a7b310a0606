"""Defines the state that is kept while a run is read; copies are cheap, for results at any moment."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# The ends of scans in a block of rows: `scans[i]` rows of the block (0 or more) belong to scan i or to an
# earlier one. Most blocks contain the ends of several scans, some contain none.
Scans = NDArray[np.intp]

S = TypeVar("S", bound="State")


class State:
    """A state whose attributes are numbers, strings, states, lists and dicts of these, functions, and arrays.

    Arrays are replaced, never changed in place, so `copy` can share them.
    """

    def copy(self: S) -> S:
        """Returns an independent copy."""
        twin = type(self).__new__(type(self))
        twin.__dict__ = {name: _copied(value) for name, value in self.__dict__.items()}
        return twin


def _copied(value: Any) -> Any:
    if isinstance(value, State):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
