"""Which steps a profile window has, as STEPSCOPE_PROFILE and `stepscope run --profile` say it.

    2:9                  steps 2 to 9, both included; steps are counted from 0
    at=60s,for=5s        5 seconds, from the end of the first step that ends 60 s after the first one began
    every=1000,steps=3   3 steps after every 1000 steps

`at=@1800000000` is a time in seconds since the epoch. `ranks=0,7` in any of them limits it to these ranks.
`python` records Python functions instead of operators. `memory` also records what operators allocate, and
`shapes` the shapes of their inputs. With `python=cpu`, times of functions are those on a core, with
`python=off-cpu` the others. Several are separated by `;` or spaces.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from math import inf

from stepscope.common.durations import positive_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "STEPSCOPE_PROFILE"
OPERATORS, PYTHON, MEMORY, SHAPES = "", "python", "memory", "shapes"  # what a window records
ON_CPU, OFF_CPU = "python=cpu", "python=off-cpu"
PYTHONS = (PYTHON, ON_CPU, OFF_CPU)
KINDS = (OPERATORS, PYTHON, MEMORY, ON_CPU, OFF_CPU, SHAPES)  # by their numbers in requests
FORMS = "2:9, at=60s,for=5s or every=1000,steps=3"
USUAL_STEPS, MOST_STEPS = 5, 1000  # of a window
LONGEST = 60.0  # seconds of a window: traces grow by megabytes per second
GLANCE = 16  # steps, after which to look again whether a window begins at this time


class Plan:
    """Windows to come. `first`: the number of steps at which the next one begins; inf: there is none."""

    def __init__(
        self, text: str = "", first: float = inf, steps: int | None = None, request: int = 0
    ) -> None:
        self.text = text
        self.first, self.steps = first, steps
        self.last = inf  # the latest step that it may have
        self.every = 0  # steps from one window to the next
        self.at = inf  # seconds after the begin of the first step
        self.date: float | None = None  # seconds since the epoch, instead: `at` follows from the first step
        self.seconds = LONGEST
        self.ranks: frozenset[int] = frozenset()  # empty: all
        self.kind = OPERATORS  # of KINDS
        self.request = request  # the number of the request that asks for it; 0: none does

    def wait(self, done: int, seconds: float) -> float:
        """Returns after how many steps to look again; 0: the window begins now; inf: it never does.

        `done` steps have ended, and `seconds` have passed since the first one began.
        """
        if self.at < inf:
            steps_left = (self.at - seconds) * done / seconds if seconds > 0 else 1
            return 0 if seconds >= self.at else max(1, min(GLANCE, steps_left // 2))
        return max(0.0, self.first - done)

    def take(self, done: int) -> float:
        """Begins the window after `done` steps. Returns its last step, inf if it ends after some time."""
        self.first, self.at = (done // self.every + 1) * self.every if self.every else inf, inf
        return min(self.last, inf if self.steps is None else done + self.steps - 1)


def parse_plans(text: str) -> list[Plan]:
    """Returns the plans in a text. Raises ValueError with one line: the cause and the fix."""
    plans = [_parse(part) for part in re.split(r"[;\s]+", text) if part]
    if not plans:
        raise ValueError(f"no window given: use {FORMS}")
    return plans


def _parse(text: str) -> Plan:
    plan, begins = Plan(text), 0
    for name, value in _settings(text):
        if name in _SETTINGS:
            begins += name in ("", "at", "every")
            _SETTINGS[name](plan, value)
        else:
            raise ValueError(
                f"{text!r}: {name!r} is no setting of a window; use {FORMS}, ranks=0,7, "
                "python, memory and shapes"
            )
    if begins != 1:
        raise ValueError(f"{text!r} says {'twice' if begins else 'not'} when the window begins: use {FORMS}")
    if plan.last < inf and (plan.steps is not None or plan.seconds < LONGEST):
        raise ValueError(f"{text!r} says twice how long the window is: leave out steps= and for=")
    if plan.steps is None and plan.seconds == LONGEST and plan.last == inf:
        plan.steps = USUAL_STEPS
    if plan.every and plan.steps is not None and plan.steps >= plan.every:
        raise ValueError(f"{text!r}: the window has {plan.steps} of {plan.every} steps; make `every` larger")
    return plan


def _settings(text: str) -> list[tuple[str, str]]:
    """Returns names and values: a part without a name continues the ranks, or has the first and last step."""
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if part in (PYTHON, MEMORY, SHAPES):
            found.append((name, ""))
        elif not equals and found and found[-1][0] == "ranks":
            found[-1] = "ranks", f"{found[-1][1]},{name}"
        else:
            found.append((name, value) if equals else ("", name))
    return found


def _steps_from_to(plan: Plan, value: str) -> None:
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", value)
    if match is None:
        raise ValueError(f"{value!r} is no window: use {FORMS}")
    first, last = map(int, match.groups())
    if not first:
        raise ValueError(
            f"{value!r}: a window begins when a step has ended, so step 1 is the earliest: use 1:{last}"
        )
    if last < first:
        raise ValueError(f"{value!r}: the last step is before the first: use {last}:{first}")
    if last - first >= MOST_STEPS:
        raise ValueError(f"{value!r} has {last - first + 1} steps: use at most {MOST_STEPS}")
    plan.first, plan.last = first, last


def _count(name: str, value: str, most: int) -> int:
    if not re.fullmatch(r"\d{1,15}", value) or not 0 < int(value) <= most:
        raise ValueError(f"{name}={value}: use a number of steps from 1 to {most}")
    return int(value)


def _duration(name: str, value: str) -> float:
    try:
        return positive_duration(value)
    except ArgumentTypeError as error:
        raise ValueError(f"{name}={value}: {error}") from error


def _at(plan: Plan, value: str) -> None:
    if not value.startswith("@"):
        plan.at = _duration("at", value)
    elif re.fullmatch(r"@\d{1,11}(\.\d{1,6})?", value):
        plan.date = float(value[1:])
    else:
        raise ValueError(f"at={value}: use seconds since the epoch, as in at=@1800000000")


def _for(plan: Plan, value: str) -> None:
    plan.seconds = _duration("for", value)
    if plan.seconds >= LONGEST:
        raise ValueError(f"for={value}: a window is shorter than {LONGEST:g}s; use for=5s")


def _every(plan: Plan, value: str) -> None:
    plan.every = _count("every", value, 10**15)
    plan.first = plan.every


def _steps(plan: Plan, value: str) -> None:
    plan.steps = _count("steps", value, MOST_STEPS)


def _ranks(plan: Plan, value: str) -> None:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", value):
        raise ValueError(f"ranks={value}: use numbers, as in ranks=0,7")
    plan.ranks = frozenset(map(int, value.split(",")))


def _kind(name: str) -> Callable[[Plan, str], None]:
    def setting(plan: Plan, value: str) -> None:
        kind = f"{name}={value}" if value else name
        if kind not in KINDS:
            raise ValueError(f"{kind}: use {PYTHON}, {ON_CPU}, {OFF_CPU}, {MEMORY} or {SHAPES}")
        if plan.kind not in (OPERATORS, kind):
            raise ValueError(f"{plan.text!r} has {plan.kind} and {kind}: use two windows")
        plan.kind = kind

    return setting


_SETTINGS: dict[str, Callable[[Plan, str], None]] = {
    "": _steps_from_to,
    "at": _at,
    "for": _for,
    "every": _every,
    "steps": _steps,
    "ranks": _ranks,
    PYTHON: _kind(PYTHON),
    MEMORY: _kind(MEMORY),
    SHAPES: _kind(SHAPES),
}
