"""Converts values to what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def json_value(value: Any) -> Any:
    """Returns the value with null instead of NaN and infinity, which mean that a number is unknown."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
