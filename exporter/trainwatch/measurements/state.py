"""What is remembered of a run while it is read: copied in no time, so that one may ask at any moment."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Where scans end in a block of rows: `scans[i]` rows of the block (0 or more) belong to scan i or to an
# earlier one. Most blocks hold the ends of several scans, some hold none.
Scans = NDArray[np.intp]

S = TypeVar("S", bound="State")


class State:
    """Attributes are numbers, strings, states, lists and dicts of these, functions, and arrays.

    An array is replaced, never changed in place: that is what lets `copy` share it.
    """

    def copy(self: S) -> S:
        """An independent copy: what it observes later, this one does not see."""
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
