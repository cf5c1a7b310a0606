"""The counters of runs on this node, summed over all processes of each rank, dead ones included."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf, isfinite
from operator import add
from typing import Any, NamedTuple

from stepscope.exporter.ledgers.ages import Ages, Now
from stepscope.exporter.ledgers.presence import RUNNING, Presence, left, presence
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerReader, LedgerTotals, StepRecord
from stepscope.exporter.ledgers.spent import Spent
from stepscope.exporter.sampling.families import Exemplar, HistogramValue
from stepscope.exporter.sampling.limits import cut
from stepscope.training.layout import FETCH_BOUNDS, LARGEST, STEP_BOUNDS, WAIT_BOUNDS

MOST_RETIRED = 256  # ranks of a run whose removed ledgers are counted
SHOWN = 20  # operators of a rank and device: those with most seconds in its latest windows
OTHER_OPERATORS = "other"  # all others
KNOWN = 100  # operators of a rank and device whose seconds are kept: those shown last
FADES = 0.5  # what a window counts for, at each later one, when operators are chosen
STAYS = 2.0  # one that is shown is replaced only by another with more than twice its seconds
NAME_BYTES = 200  # of an operator
MOST_NAMES = 256  # of numbers of a rank; a ledger has far fewer, but a rank may have many ledgers


class RunKey(NamedTuple):
    """A run on this node: nobody can add to the run of another user."""

    run: str
    owner: int  # the user who owns its ledgers


class Ledger:
    """One ledger and its last totals. Times are seconds since the epoch."""

    def __init__(self, reader: LedgerReader, counts_losses: bool) -> None:
        self.reader = reader
        self.key = RunKey(reader.header.run, reader.owner)
        self.totals: LedgerTotals = reader.totals()
        self.ages = Ages()
        self.spent = Spent()
        self.presence = Presence(RUNNING)
        self.alive = False
        self.pid: int | None = None  # of its process in the exporter's procfs; None: not known
        self.died: float | None = None  # when it was first seen dead, on the monotonic clock
        self.end: float | None = None  # of the process: from the ledger, otherwise the nearest known time
        self.exception: tuple[str, str] | None = None  # that ended its process: type and place
        self.failing_since: float | None = None  # of its file system, for a reason that may pass
        self.traced_steps = 0  # training steps up to the end of the last window that is in `Run.operators`
        # Records that were overwritten before this exporter started are not this exporter's loss.
        self._counts_losses = counts_losses

    @property
    def header(self) -> LedgerHeader:
        return self.reader.header

    def read(self, now: Now) -> tuple[list[StepRecord], int]:
        """Returns new step records and how many were lost. Raises LedgerError, OSError."""
        was_alive, alive = self.alive, self.reader.alive()
        self.totals = self.reader.totals()  # after the look at the lock: final if the process is dead
        records, lost = self.reader.new_steps()
        self.ages.look(self.header, self.totals, self.reader.clock_offset, now)
        if not alive:
            self.exception = self.reader.exception()
            self.end_at(now, None if was_alive else self.totals.last_step_end or self.header.start)
        self.alive, self.failing_since = alive, None
        start, ages = self.header.start, self.ages
        wall = now.monotonic - ages.start if self.end is None else self.end - start
        stay = now.monotonic - ages.place_began if self.alive and ages.place else 0.0
        self.spent.look(start, self.totals, ages.place, stay, wall)
        counted, self._counts_losses = self._counts_losses, True
        return records, lost if counted else 0

    def look(self, now: float, state: "Callable[[Ledger], str]") -> None:
        """Notes what its process does at `now`, on the monotonic clock; `state` reads that of its thread."""
        living = self.alive
        self.presence = presence(self.ages, now, partial(state, self)) if living else left(self.totals)

    def end_at(self, now: Now, end: float | None = None) -> None:
        """Notes that its process is dead: since the end in its ledger, otherwise since `end` (None: now).

        Now is on the clock of the process, which counts on from its start: nobody sets it.
        """
        lived = now.monotonic - self.ages.start  # inf: never looked at
        latest = self.header.start + lived if isfinite(lived) else now.wall
        latest = max(latest, self.totals.last_step_end or 0.0)
        self.alive, self.died, self.end = False, now.monotonic, self.totals.end or end or latest


@dataclass
class Histogram:
    """Counts per bucket (not cumulative) and their sum in seconds."""

    counts: list[int]
    sum: float = 0.0

    def add(self, counts: Sequence[int], sum: float) -> None:
        self.counts = list(map(add, self.counts, counts))
        self.sum += sum

    def value(self, exemplars: Mapping[int, Exemplar] | None = None) -> HistogramValue:
        """Returns it without its first empty buckets, except the last: quantiles begin at its bound."""
        empty = next((index for index, count in enumerate(self.counts) if count), 0)
        return HistogramValue(self.counts, self.sum, exemplars, max(0, empty - 1))


@dataclass
class RankTotals:
    """The counters of one rank, summed over its processes."""

    steps: dict[str, Histogram] = field(default_factory=dict)  # by phase
    squared_seconds: dict[str, float] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    component_seconds: dict[str, float] = field(default_factory=dict)
    device_seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)  # of the script, by name
    spent: dict[str, float] = field(default_factory=dict)  # see Spent
    own_seconds: float = 0.0  # of training steps; NaN: not known of one of its processes
    own_squared_seconds: float = 0.0
    waits: Histogram | None = None  # None: no loader is watched
    fetches: Histogram = field(default_factory=lambda: Histogram([0] * (len(FETCH_BOUNDS) + 1)))

    def add(self, totals: LedgerTotals, spent: Mapping[str, float]) -> None:
        for phase, (counts, seconds) in totals.step_histogram.items():
            self.steps.setdefault(phase, Histogram([0] * len(counts))).add(counts, seconds)
        _add_to(self.squared_seconds, totals.step_squared_seconds)
        _add_to(self.phase_seconds, totals.phase_seconds)
        _add_to(self.component_seconds, totals.component_seconds)
        _add_to(self.device_seconds, totals.component_device_seconds)
        _add_to(self.counts, totals.counts)
        _add_to(self.spent, spent)
        self.own_seconds += totals.own_seconds
        self.own_squared_seconds += totals.own_squared_seconds
        for loader in totals.loaders:
            self.waits = self.waits or Histogram([0] * (len(WAIT_BOUNDS) + 1))
            self.waits.add(loader.wait_counts, loader.wait_sum)
        self.fetches.add(totals.fetch_counts, totals.fetch_sum)

    def copy(self) -> "RankTotals":
        return RankTotals.from_json(asdict(self))

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "RankTotals":
        """Returns the totals of which `asdict` gave `state`."""
        steps = {phase: Histogram(**histogram) for phase, histogram in state["steps"].items()}
        waits = Histogram(**state["waits"]) if state["waits"] else None
        return cls(**{**state, "steps": steps, "waits": waits, "fetches": Histogram(**state["fetches"])})


def _add_to(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for key, value in values.items():
        if key in sums or len(sums) < MOST_NAMES:
            sums[key] = sums.get(key, 0.0) + value


class OperatorSeconds:
    """The seconds of the operators of one rank on one kind of device: few, those of its latest windows."""

    def __init__(self) -> None:
        self._counted: dict[str, float] = {}  # the one counted last is last; those that return continue
        self._recent: dict[str, float] = {}  # by all names, old windows count less
        self._shown: set[str] = set()

    def add(self, operators: dict[str, float]) -> None:
        """Adds those of a window."""
        window: dict[str, float] = {}
        for name, seconds in operators.items():
            name = cut(name, NAME_BYTES) or OTHER_OPERATORS
            window[name] = window.get(name, 0.0) + seconds
        self._choose(window)
        for name, seconds in window.items():
            name = name if name in self._shown else OTHER_OPERATORS
            self._counted[name] = min(self._counted.pop(name, 0.0) + seconds, LARGEST)
        for name in [name for name in self._counted if name != OTHER_OPERATORS][:-KNOWN]:
            del self._counted[name]

    def _choose(self, window: dict[str, float]) -> None:
        names = {*self._recent, *window} - {OTHER_OPERATORS}
        recent = {name: FADES * self._recent.get(name, 0.0) + window.get(name, 0.0) for name in names}
        ranked = sorted(
            recent, key=lambda name: (-recent[name] * (STAYS if name in self._shown else 1), name)
        )
        self._recent = {name: recent[name] for name in ranked[:KNOWN]}
        self._shown = {*ranked[:SHOWN]}

    def values(self) -> dict[str, float]:
        """Returns the seconds of those that are shown, and of all others."""
        shown = {*self._shown, OTHER_OPERATORS}
        return {name: seconds for name, seconds in self._counted.items() if name in shown}


Times = tuple[float, float | None, float | None]  # start, start of the first step, end of the last step


class Run:
    """One run: its ledgers, and the sums of its ledgers that are removed."""

    def __init__(self, retired: dict[int, RankTotals] | None = None, times: Times | None = None) -> None:
        self.ledgers: list[Ledger] = []
        self.retired = retired or {}
        self.retired_times = times
        self.operators: dict[tuple[int, str], OperatorSeconds] = {}  # by rank and device
        self.flops_per_step: dict[int, float] = {}  # by rank, as a profile window measured them
        self._left: dict[int, Presence] = {}  # how the last process of a rank without a ledger is gone
        self._exemplars: dict[tuple[int, str], dict[int, Exemplar]] = {}
        self._began = inf

    def mark(self, rank: int, records: Sequence[StepRecord]) -> None:
        """Keeps the newest step of each bucket as its exemplar."""
        for phase in {record.phase for record in records}:
            self._exemplars[rank, phase] = {
                **self._exemplars.get((rank, phase), {}),
                **{
                    bisect_left(STEP_BOUNDS, record.duration): Exemplar(
                        {"step": str(record.number)}, record.duration, record.start + record.duration
                    )
                    for record in records
                    if record.phase == phase
                },
            }

    def exemplars(self, rank: int, phase: str) -> Mapping[int, Exemplar] | None:
        return self._exemplars.get((rank, phase))

    def remove(self, ledger: Ledger, counted: bool = True) -> None:
        """Removes a ledger, but keeps its counts if `counted`."""
        self.ledgers.remove(ledger)
        if not counted:
            return
        self.retired.setdefault(ledger.header.rank, RankTotals()).add(ledger.totals, ledger.spent.seconds)
        if not ledger.alive:
            self._left[ledger.header.rank] = left(ledger.totals)
        self.retired_times = _widest([*self._retired_times(), _times(ledger)])
        if len(self.retired) > MOST_RETIRED:
            self._forget_a_rank()

    def _forget_a_rank(self) -> None:
        """Drops all that is known of the rank without a ledger that came first."""
        present = {each.header.rank for each in self.ledgers}
        gone = next((rank for rank in self.retired if rank not in present), -1)
        for of_rank in (self.retired, self._left, self.flops_per_step):
            of_rank.pop(gone, None)
        self.operators = {key: value for key, value in self.operators.items() if key[0] != gone}
        self._exemplars = {key: value for key, value in self._exemplars.items() if key[0] != gone}

    def ranks(self) -> dict[int, RankTotals]:
        """Returns the totals of each rank over all of its processes."""
        totals = {rank: retired.copy() for rank, retired in self.retired.items()}
        for ledger in self.ledgers:
            totals.setdefault(ledger.header.rank, RankTotals()).add(ledger.totals, ledger.spent.seconds)
        return totals

    def newest(self) -> dict[int, Ledger]:
        """Returns the ledger of each rank that started last, by rank."""
        return {ledger.header.rank: ledger for ledger in sorted(self.ledgers, key=lambda x: x.header.start)}

    def presences(self) -> dict[int, Presence]:
        """Returns what each rank does now, by rank; empty if no process lives."""
        if not any(ledger.alive for ledger in self.ledgers):
            return {}
        return self._left | {rank: ledger.presence for rank, ledger in self.newest().items()}

    def times(self) -> Times:
        """Returns the start, the start of the first step and the end of the last step."""
        return _widest([*self._retired_times(), *map(_times, self.ledgers)])

    def launch_known(self) -> bool:
        """Returns whether the run can be distinguished from another launch of it."""
        return all(ledger.header.launch_key for ledger in self.ledgers)

    def began(self) -> float | None:
        """Returns when its first process started, on the exporter's monotonic clock; None if none lives."""
        if not any(ledger.alive for ledger in self.ledgers):
            return None
        self._began = min([self._began, *(ledger.ages.start for ledger in self.ledgers if ledger.alive)])
        return self._began

    def last_step(self) -> float | None:
        """Returns when living processes last finished a step, on the same clock; None if they have not."""
        steps = [ledger.ages.last_step for ledger in self.ledgers if ledger.alive]
        return max((step for step in steps if step is not None), default=None)

    def end(self) -> float | None:
        """Returns when the last process ended; None while a process lives."""
        ends = [ledger.end for ledger in self.ledgers if ledger.end is not None]
        return max(ends) if len(ends) == len(self.ledgers) else None

    def exception(self) -> tuple[int, str, str] | None:
        """Returns the rank, type and place of the exception that ended a process first; None if none did."""
        ended = [ledger for ledger in self.ledgers if ledger.exception is not None]
        first = min(ended, key=lambda ledger: ledger.end or inf, default=None)
        return (first.header.rank, *first.exception) if first and first.exception else None

    def _retired_times(self) -> Iterable[Times]:
        return () if self.retired_times is None else (self.retired_times,)


def _times(ledger: Ledger) -> Times:
    return ledger.header.start, ledger.totals.first_step_start, ledger.totals.last_step_end


def _widest(times: Sequence[Times]) -> Times:
    firsts = [first for _, first, _ in times if first is not None]
    lasts = [last for _, _, last in times if last is not None]
    return min(start for start, _, _ in times), min(firsts, default=None), max(lasts, default=None)
