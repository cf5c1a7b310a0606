"""How long ago things happened in a process, on the exporter's own monotonic clock.

Wall clocks step, and those of two machines differ: `time() - timestamp` of another machine is no age. Here an
age begins when the exporter sees a change, at most one look late. While a machine is suspended, the clock
stops.
"""

from math import inf
from typing import NamedTuple

from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerTotals

INITIALIZATION, OTHER, DATA_WAIT, HOST = "initialization", "other", "data_wait", "host"


class Now(NamedTuple):
    """One moment on the wall clock (since the epoch) and on the monotonic clock."""

    wall: float
    monotonic: float


class Place(NamedTuple):
    """The place of training: a component, `initialization` before the first step, or `host`: none of them."""

    component: str
    operation: str  # of communication; "": not known
    since: float  # the epoch, by the process's own clock


class Ages:
    """The moments of one process at which its present state began, on the monotonic clock."""

    def __init__(self) -> None:
        self.start = -inf  # of the process
        self.last_step: float | None = None  # its end; None before the first step
        self.phase = ""  # in which the process is: of a step, data_wait, initialization or other
        self.phase_began = -inf
        self._looked = -inf
        self._steps = 0
        self._state: tuple[str, float] = "", 0.0
        self.place: Place | None = None  # None: not known
        self.place_began = -inf

    def look(self, header: LedgerHeader, totals: LedgerTotals, clock_offset: float, now: Now) -> None:
        """Notes what changed since the last look; `clock_offset` is the epoch minus the process's clock."""

        def when(moment: float) -> float:
            """Returns the monotonic moment: after the last look, and the later one if the clocks disagree."""
            ages = now.wall - moment, now.monotonic - (moment - clock_offset)
            return max(now.monotonic - max(0.0, min(ages)), self._looked)

        if self.start == -inf:
            self.start = when(header.start)
        if totals.steps_recorded != self._steps and totals.last_step_end is not None:
            self.last_step, self._steps = when(totals.last_step_end), totals.steps_recorded
        state = _state(header, totals)
        if state != self._state:
            self._state, self.phase, self.phase_began = state, state[0], when(state[1])
        place = _place(header, totals)
        if place != self.place:
            began = when(max(place.since, header.start)) if place else -inf
            self.place, self.place_began = place, began
        self._looked = now.monotonic


def _state(header: LedgerHeader, totals: LedgerTotals) -> tuple[str, float]:
    """Returns the phase in which the process is, and since when by its own account."""
    if totals.waiting_since is not None:
        return DATA_WAIT, totals.waiting_since
    if totals.open_since is not None:
        return totals.open_phase, totals.open_since
    if totals.last_step_end is not None:
        return OTHER, totals.last_step_end
    return INITIALIZATION, header.start


def _place(header: LedgerHeader, totals: LedgerTotals) -> Place | None:
    """Returns where the process is by its own account; None if its writer does not say."""
    if totals.component and totals.component_since is not None:
        return Place(totals.component, totals.operation, totals.component_since)
    if totals.waiting_since is not None:
        return Place(DATA_WAIT, "", totals.waiting_since)
    if not totals.steps_recorded and totals.open_since is None:
        return Place(INITIALIZATION, "", max(header.start, totals.component_since or 0.0))
    if totals.component_since is None:
        return None
    # The end of a step is progress, even if the step had no component.
    return Place(HOST, "", max(totals.component_since, totals.last_step_end or 0.0, totals.open_since or 0.0))
