"""Defines expressions: each is written once, and has a PromQL and the value that Prometheus must compute.

`str()` returns the PromQL, so an expression can be a part of a longer text, if need be `bracketed`. `value()`
computes the same from the series that Prometheus scraped. These combine expressions:

- `+`, `-`, `*`, `/` and `**` compute; `function` applies `sqrt` or `clamp_min`.
- `>`, `>=`, `<` and `<=` keep the series for which they are true.
- `&`, `|` and `unless` are PromQL's `and`, `or` and `unless`.
- `sum_without`, `max_without` and `min_without` aggregate; `over_run` does so over the ranks of a run.

Series are matched by all labels, except those that the matchers of only one side fix. So
`scraping.held('x{kind="a"}') / scraping.held("y")` is `x{kind="a"} / ignoring (kind) y`. A right side that
is `Shared` has one value for many series.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.measurements.scraped import (
    OF_RUN,
    SAMPLES,
    Labels,
    Moment,
    Vector,
    Window,
    divided,
    run_of,
    without,
)

LONG = 80  # characters of a left side after which the line ends
OPERATORS = (("or",), ("and", "unless"), (">", ">=", "<", "<="), ("+", "-"), ("*", "/"), ("^",))
BINDING = {each: level for level, equal in enumerate(OPERATORS, 1) for each in equal}
TIGHT = 9  # binds tighter than all operators
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divided,
    "^": operator.pow,
}
# A maximum or minimum is NaN only if all values are.
AGGREGATIONS: Mapping[str, Callable[[list[float]], Any]] = {
    "sum": sum,
    "max": np.fmax.reduce,
    "min": np.fmin.reduce,
    "median": np.median,
}
FUNCTIONS: Mapping[str, Callable[..., float]] = {"sqrt": math.sqrt, "clamp_min": max}


class Expression(ABC):
    """An instant vector: its PromQL, and its value at a moment."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def value(self, now: Moment) -> Vector: ...

    @property
    def fixed(self) -> tuple[str, ...]:
        """Returns the labels whose value matchers fix."""
        return ()

    @property
    def binding(self) -> int:
        """Returns how tightly the outermost operator binds."""
        return TIGHT

    def __add__(self, other: Expression) -> Operation:
        return Operation(self, "+", other)

    def __sub__(self, other: Expression) -> Operation:
        return Operation(self, "-", other)

    def __mul__(self, other: Expression | float) -> Operation:
        return Operation(self, "*", other)

    def __truediv__(self, other: Expression | float) -> Operation:
        return Operation(self, "/", other)

    def __pow__(self, other: float) -> Operation:
        return Operation(self, "^", other)

    def __gt__(self, other: Expression | float) -> Operation:
        return Operation(self, ">", other)

    def __ge__(self, other: Expression | float) -> Operation:
        return Operation(self, ">=", other)

    def __lt__(self, other: Expression | float) -> Operation:
        return Operation(self, "<", other)

    def __le__(self, other: Expression | float) -> Operation:
        return Operation(self, "<=", other)

    def __and__(self, other: Expression) -> Operation:
        return Operation(self, "and", other)

    def __or__(self, other: Expression) -> Operation:
        return Operation(self, "or", other)

    def unless(self, other: Expression) -> Operation:
        return Operation(self, "unless", other)

    def sum_without(self, *labels: str) -> Expression:
        return _Aggregation("sum", labels, self)

    def max_without(self, *labels: str) -> Expression:
        return _Aggregation("max", labels, self)

    def min_without(self, *labels: str) -> Expression:
        return _Aggregation("min", labels, self)

    def over_run(self, aggregation: str) -> Shared:
        """Returns the "max" or "median" of all ranks of a run, to compare each rank with it."""
        return Shared(_Aggregation(aggregation, (), self))

    def function(self, name: str, *numbers: float) -> Expression:
        return _Function(name, self, numbers)


@dataclass(frozen=True)
class Operation(Expression):
    """Two vectors, or a vector and a number, and the operator between them."""

    left: Expression
    operator: str
    right: Expression | float
    is_on_one_line: bool = False

    def on_one_line(self) -> Operation:
        """Returns the same with PromQL on one line, although it is long."""
        return replace(self, is_on_one_line=True)

    def __str__(self) -> str:
        # Comparisons are put into brackets within each other.
        left = bracketed(self.left, self.binding + (self.operator in COMPARISONS))
        if not isinstance(self.right, Expression):
            return f"{left} {self.operator} {self.right:.12g}"
        matching = f" ignoring ({', '.join(self._unmatched)})" if self._unmatched else ""
        if isinstance(self.right, Shared):
            is_of_sets = self.binding <= BINDING["and"]  # they match many series with many
            matching = f" {self.right.matching}" + ("" if is_of_sets else " group_left ()")
        right = bracketed(self.right, self.binding + 1)
        before = after = " "
        if len(left) > LONG:
            before, after = ("\n", "\n") if self.operator == "or" else ("\n  ", " ")
        text = f"{left}{before}{self.operator}{matching}{after}{right}"
        return " ".join(text.split()) if self.is_on_one_line else text

    def value(self, now: Moment) -> Vector:
        left, shared = self.left.value(now), isinstance(self.right, Shared)
        if isinstance(self.right, Expression):
            right = self.right.value(now)
        else:
            right = dict.fromkeys(left, float(f"{self.right:.12g}"))
        by = {labels: self._matched(labels) for labels in (*left, *right)}
        there = {by[labels]: value for labels, value in right.items()}
        if self.operator == "or":
            here = {by[labels] for labels in left}
            return left | {labels: value for labels, value in right.items() if by[labels] not in here}
        if self.operator == "unless":
            return {labels: value for labels, value in left.items() if by[labels] not in there}
        matched = {labels: value for labels, value in left.items() if by[labels] in there}
        if self.operator in COMPARISONS:
            holds = COMPARISONS[self.operator]
            return {labels: value for labels, value in matched.items() if holds(value, there[by[labels]])}
        if self.operator in ARITHMETIC:
            combine = ARITHMETIC[self.operator]
            return {
                labels if shared else by[labels]: combine(value, there[by[labels]])
                for labels, value in matched.items()
            }
        return matched

    def _matched(self, labels: Labels) -> Labels:
        """Returns the labels that series of both sides must have in common."""
        right = self.right
        return right.matched(labels) if isinstance(right, Shared) else without(labels, *self._unmatched)

    @property
    def _unmatched(self) -> tuple[str, ...]:
        """Returns the labels that only one side fixes."""
        if not isinstance(self.right, Expression) or isinstance(self.right, Shared):
            return ()
        one, other = self.left.fixed, self.right.fixed
        return tuple(label for label in (*one, *other) if label not in one or label not in other)

    @property
    def fixed(self) -> tuple[str, ...]:
        dropped = self._unmatched if self.operator in ARITHMETIC else ()
        return tuple(label for label in self.left.fixed if label not in dropped)

    @property
    def binding(self) -> int:
        return BINDING[self.operator]


@dataclass(frozen=True)
class Shared(Expression):
    """A right side with one value for all series of a run, or for all that differ only in `ignoring`."""

    inner: Expression
    ignoring: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.inner}"

    def value(self, now: Moment) -> Vector:
        return self.inner.value(now)

    @property
    def binding(self) -> int:
        return self.inner.binding

    @property
    def matching(self) -> str:
        return f"ignoring ({', '.join(self.ignoring)})" if self.ignoring else f"on ({', '.join(OF_RUN)})"

    def matched(self, labels: Labels) -> Labels:
        return without(labels, *self.ignoring) if self.ignoring else run_of(labels)


@dataclass(frozen=True)
class _Function(Expression):
    """A function of each value, and of numbers."""

    name: str
    inner: Expression
    numbers: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join((f'{self.inner}', *map('{:.12g}'.format, self.numbers)))})"

    def value(self, now: Moment) -> Vector:
        function = FUNCTIONS[self.name]
        return {labels: function(value, *self.numbers) for labels, value in self.inner.value(now).items()}

    @property
    def fixed(self) -> tuple[str, ...]:
        return self.inner.fixed


@dataclass(frozen=True)
class _Aggregation(Expression):
    """One value of all series that differ only in some labels; without `labels`, of all series of a run."""

    operator: str
    labels: tuple[str, ...]
    inner: Expression

    def __str__(self) -> str:
        over = f"without ({', '.join(self.labels)})" if self.labels else f"by ({', '.join(OF_RUN)})"
        if self.operator == "median":
            return f"quantile {over} (0.5, {self.inner})"
        return f"{self.operator} {over} ({self.inner})"

    def value(self, now: Moment) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in self.inner.value(now).items():
            group = without(labels, *self.labels) if self.labels else run_of(labels)
            groups.setdefault(group, []).append(value)
        aggregate = AGGREGATIONS[self.operator]
        return {labels: float(aggregate(values)) for labels, values in groups.items()}

    @property
    def fixed(self) -> tuple[str, ...]:
        return tuple(label for label in self.inner.fixed if label not in self.labels)


@dataclass(frozen=True)
class Record(Expression):
    """A recording rule. As a part of other expressions, it is the values that it has recorded.

    `name` is level:metric:operations. If `expression` is text, the rule's `scraped` returns the values.
    """

    name: str
    expression: Expression | str

    def __str__(self) -> str:
        return self.name

    def value(self, now: Moment) -> Vector:
        return now.recorded(self.name)

    @property
    def fixed(self) -> tuple[str, ...]:
        return self.expression.fixed if isinstance(self.expression, Expression) else ()


@dataclass(frozen=True)
class LastValues(Expression):
    """The last scraped values of a selector in the `hold` seconds until `ago` seconds before.

    Failed scrapes end every series at once; these values last over a gap in scraping. `of_run`: whether the
    series have the label `run`.
    """

    selector: str
    hold: float
    ago: float
    of_run: bool = True

    def __str__(self) -> str:
        earlier = f" offset {time_span(self.ago)}" if self.ago else ""
        return f"last_over_time({self.selector}[{time_span(self.hold)}]{earlier})"

    def value(self, now: Moment) -> Vector:
        name, _, matchers = self.selector.removesuffix("}").partition("{")
        return now.held(name, self.hold, matchers, self.ago, self.of_run)

    @property
    def fixed(self) -> tuple[str, ...]:
        return tuple(re.findall(r"(\w+)=", self.selector))


@dataclass(frozen=True)
class Gain(Expression):
    """The exact gain of a run's counters in a window, without the extrapolation of `increase`.

    It is the difference of two scraped values. `each` is applied to both, such as a sum over phases.
    A counter without the earlier value counts from its beginning, unless the window must be `whole`. It does
    so only if it began in the window: its run did, or Prometheus had scraped the run before without it. A
    counter that fell has no gain, nor has any of an exporter that lost its counts.

    `joined`: what it is combined with contains a gain of the same run. Then cheaper PromQL has the same
    result: where the run's counters are not known, no gain is recorded.
    """

    selector: str
    window: Window
    each: Callable[[Expression], Expression] = lambda values: values
    whole: bool = False
    joined: bool = False
    of_run: bool = True

    def __str__(self) -> str:
        now, before = (bracketed(self.each(end)) for end in self._ends(self.selector))
        if self.whole:
            return f"{now} - {before} >= 0"
        if self.joined:
            return _added(now, f"-{before}")
        samples, samples_before = self._ends(SAMPLES)
        lost = f"resets({SAMPLES}[{time_span(self.window.seconds + self.window.hold)}]) > 0"
        # `< 0`: nothing is left of a counter that was 0 and is gone.
        return (
            f"(\n  {_added(now, f'-{before} < 0')}\n"
            f"    and on (cluster, job, instance, run)\n"
            f"  (({samples} < {self.window.young:.12g} or {samples_before}) unless {lost})\n)"
        )

    def value(self, now: Moment) -> Vector:
        late, early = (self.each(end).value(now) for end in self._ends(self.selector))
        if self.whole:
            gains = {labels: value - early[labels] for labels, value in late.items() if labels in early}
        else:
            known = self._known(now)
            gains = {
                labels: value - early.get(labels, 0.0)
                for labels, value in late.items()
                if _of_run(labels) in known
            }
        return {labels: gain for labels, gain in gains.items() if gain >= 0}

    def _known(self, now: Moment) -> set[Labels]:
        """Returns the runs, by node, whose counters began in the window or were scraped at its beginning."""
        samples, samples_before = (end.value(now) for end in self._ends(SAMPLES))
        known = {labels for labels, count in samples.items() if count < self.window.young}
        known |= samples_before.keys()
        for labels, (_, values) in now.over(SAMPLES, self.window.seconds + self.window.hold).items():
            if (np.diff(values) < 0).any():  # the exporter lost its counts
                known.discard(labels)
        return {_of_run(labels) for labels in known}

    def _ends(self, selector: str) -> list[LastValues]:
        """Returns the values now, and those at the beginning of the window."""
        window = self.window
        return [LastValues(selector, window.hold, ago, self.of_run) for ago in (0.0, window.seconds)]

    @property
    def fixed(self) -> tuple[str, ...]:
        return self.each(self._ends(self.selector)[0]).fixed

    @property
    def binding(self) -> int:
        return BINDING[">="] if self.whole else TIGHT


def bracketed(expression: Expression | str, binding: int = TIGHT) -> str:
    """Returns the PromQL as a part of an expression whose operator binds this tightly."""
    is_compound = isinstance(expression, Expression) and expression.binding < binding
    return f"({expression})" if is_compound else f"{expression}"


def _added(now: str, negative_before: str) -> str:
    """Returns the sums of two vectors that are not negative; a series may be missing from one of them.

    `now - before or now` would find all series of `now` twice, and finding them is the main cost of a rule.
    """
    earlier = f'label_replace({negative_before}, "end", "before", "", "")'
    return f"(sum without (end) ({now} or {earlier}) >= 0)"


def _of_run(labels: Labels) -> Labels:
    return frozenset(label for label in labels if label[0] in ("cluster", "job", "instance", "run"))


def time_span(seconds: float) -> str:
    """Returns "4m15s" for 255, as Prometheus writes it."""
    left = round(seconds * 1000)
    parts = []
    for unit, milliseconds in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        amount, left = divmod(left, milliseconds)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
