"""Defines the parameters of rules: typed, bounded, documented, and checked when they are set."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, Protocol, get_args, get_type_hints

from stepscope.runs.model import PHASES

Value = float | int | str | None


class Bounds(NamedTuple):
    """The allowed numbers."""

    lowest: float
    highest: float
    unit: str


class Choices(NamedTuple):
    """The allowed words."""

    values: tuple[str, ...]


Percent = Annotated[float, Bounds(0, 100, "%")]
AnyPercent = Annotated[float, Bounds(0, math.inf, "%")]  # may exceed 100, such as workers per core
Samples = Annotated[int, Bounds(0, math.inf, "samples")]
Window = Annotated[int, Bounds(1, math.inf, "samples")]
StepCount = Annotated[int, Bounds(0, math.inf, "steps")]
Minutes = Annotated[float, Bounds(0, math.inf, "minutes")]
LiveMinutes = Annotated[float, Bounds(2, 24 * 60, "minutes")]
Runs = Annotated[int, Bounds(1, math.inf, "runs")]
Errors = Annotated[int, Bounds(0, math.inf, "errors")]
Values = Annotated[int, Bounds(0, math.inf, "values")]
Norm = Annotated[float, Bounds(0, math.inf, "norm")]
Factor = Annotated[float, Bounds(1, math.inf, "times")]
GigabytesPerSecond = Annotated[float, Bounds(0, math.inf, "GB/s")]
Seconds = Annotated[float, Bounds(0, math.inf, "seconds")]
Milliseconds = Annotated[float, Bounds(0, math.inf, "milliseconds")]
Deviations = Annotated[float, Bounds(0, math.inf, "standard deviations")]
StandardErrors = Annotated[float, Bounds(0, math.inf, "standard errors")]
PhaseOrNone = Annotated[str | None, Choices(PHASES)]


LIVE_WINDOW = "alerts and bands judge the last minutes, this many"  # the meaning of every `live_window`


@dataclass(frozen=True)
class Parameters:
    """Base of a rule's parameters: fields `name: Annotated[Percent, "what it means"] = 50`.

    Raises ValueError, naming the field and the allowed values, if a value is out of bounds.
    """

    def __post_init__(self) -> None:
        for specification in specifications(type(self)).values():
            specification.check(getattr(self, specification.name))


@dataclass(frozen=True)
class Specification:
    """A parameter: its bounds or choices, its default and its meaning."""

    name: str
    whole: bool  # an integer
    limits: Bounds | Choices
    default: Value
    doc: str

    @property
    def allowed(self) -> str:
        """Returns the allowed values, such as "a number from 0 to 100 (%)"."""
        if isinstance(self.limits, Choices):
            return f"one of {', '.join(self.limits.values)} or none"
        kind = "a whole number" if self.whole else "a number"
        lowest, highest, unit = self.limits
        upwards = "" if highest == math.inf else f" to {highest:g}"
        return f"{kind} {'from' if upwards else 'of at least'} {lowest:g}{upwards} ({unit})"

    def check(self, value: object) -> None:
        """Raises ValueError if the value is not allowed."""
        if isinstance(self.limits, Choices):
            allowed = value is None or value in self.limits.values
        elif isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            allowed = False
        else:
            allowed = self.limits.lowest <= value <= self.limits.highest and math.isfinite(value)
        if not allowed:
            raise ValueError(f"{self.name} must be {self.allowed}, not {value}")

    def parse(self, text: str) -> Value:
        """Returns the value of a text. Raises ValueError if it is not allowed."""
        value: Value = text
        if isinstance(self.limits, Choices):
            value = None if text.lower() == "none" else text
        else:
            try:
                value = int(text) if self.whole else float(text)
            except ValueError:
                raise ValueError(f"{self.name} must be {self.allowed}, not {text}") from None
        self.check(value)
        return value


def fraction(percent: float) -> float:
    """Returns 0.7 for 70: exactly the number that the rule's PromQL contains."""
    return float(f"{percent / 100:.12g}")


class ShareLimits(Protocol):
    """The parameters of rules that fire if a part of a live window is too large a share of it."""

    @property
    def threshold(self) -> float: ...

    @property
    def patience(self) -> int: ...

    @property
    def live_window(self) -> float: ...


def live_minimum(parameters: ShareLimits, sample_interval: float) -> float:
    """Returns the samples above which a rule decides on its live window.

    These are `patience`, or nine tenths of a full window if that has fewer.
    """
    return min(parameters.patience, 0.9 * 60 * parameters.live_window / sample_interval)


_known: dict[type[Parameters], Mapping[str, Specification]] = {}  # type hints are slow to read


def specifications(parameters: type[Parameters]) -> Mapping[str, Specification]:
    """Returns the parameters of a rule by name, in order."""
    if parameters not in _known:
        hints = get_type_hints(parameters, include_extras=True)
        parts = {item.name: get_args(hints[item.name]) for item in fields(parameters)}
        _known[parameters] = {
            name: Specification(name, kind is int, limits, getattr(parameters, name), doc)
            for name, (kind, limits, doc) in parts.items()
        }
    return _known[parameters]
