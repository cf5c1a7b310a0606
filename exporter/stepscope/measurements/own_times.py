"""The own time of ranks: their training steps without communication, in which they wait for each other.

Step times of ranks that wait for each other are all those of the slowest; own times are their own.
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.exporter.ledgers.ages import HOST as HOST
from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times

COMMUNICATION, FORWARD = COMPONENTS.index("communication"), COMPONENTS.index("forward")
TRAIN = PHASES.index("train")
SHORTEST = 2.0  # seconds of a window: for less, a scheduler of busy cores prefers one process to another
SLICE = 10  # steps, of which the sums are kept: 8.4 bytes per step
ALIKE = 2.0  # the width of the gap between slow and fast ranks, by that between the slow ones
MOSTLY = 0.75  # of the waits for the last rank of each step: a rank for which more are is slow
LATEST = 10_000  # steps, whose communication is kept one by one
_OF_A_PROCESS = 1 << 40  # slices; the numbers of the slices of a rank's second process begin here
_PIECE = 4096  # slices
_SUMS = ("steps", "seconds", "own", "squares")  # of a slice or a window; squares are of own times
_ROW = np.dtype(
    [
        ("number", "i8"),
        ("end", "f8"),
        *((name, "f8") for name in _SUMS),
        ("components", "f4", (len(COMPONENTS),)),
    ]
)


class OwnTimes(State):
    """The sums of each `SLICE` training steps of one rank, by their numbers."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = self.own = self.communicated = 0.0  # of all steps
        self.process = 0  # step numbers restart with each process of a rank
        self.last_number = -1
        self.whole: list[NDArray[np.void]] = []  # pieces of bounded length
        self.recent: NDArray[np.void] = np.empty(0, _ROW)  # the last of these rows may grow
        self.latest: tuple[NDArray[np.int64], Times] = (
            np.empty(0, np.int64),
            np.empty(0),
        )  # numbers, seconds of communication

    def add(self, numbers: NDArray[np.int64], ends: Times, durations: Times, components: Times) -> None:
        communicated = components[:, COMMUNICATION]
        own: Times = np.maximum(durations - communicated, 0)
        self.steps += len(numbers)
        self.seconds += float(durations.sum())
        self.own += float(own.sum())
        self.communicated += float(communicated.sum())
        restarts = np.cumsum(np.diff(numbers, prepend=self.last_number) <= 0)
        slices = (self.process + restarts) * _OF_A_PROCESS + numbers // SLICE
        self.process += int(restarts[-1])
        self.last_number = int(numbers[-1])
        of_process = (self.process - restarts[-1] + restarts) * _OF_A_PROCESS + numbers
        self.latest = (
            np.concatenate((self.latest[0], of_process))[-LATEST:],
            np.concatenate((self.latest[1], communicated))[-LATEST:],
        )
        starts = np.flatnonzero(np.diff(slices, prepend=-1))
        found = np.empty(len(starts), _ROW)
        found["number"] = slices[starts]
        found["steps"] = np.diff(starts, append=len(own))
        found["end"] = ends[np.append(starts[1:], len(own)) - 1]
        for name, values in (("seconds", durations), ("own", own), ("squares", own**2)):
            found[name] = np.add.reduceat(values, starts)
        found["components"] = np.add.reduceat(components, starts)
        if len(self.recent) and self.recent["number"][-1] == found["number"][0]:
            for name in (*_SUMS, "components"):
                found[name][0] += self.recent[name][-1]
            self.recent = self.recent[:-1]
        self.recent = np.concatenate((self.recent, found))
        if len(self.recent) >= _PIECE:
            self.whole.append(self.recent[:-1])
            self.recent = self.recent[-1:]

    def slices(self) -> NDArray[np.void]:
        """Returns a row of sums per slice; the last slice only once it has ended."""
        ended = self.last_number % SLICE == SLICE - 1
        return np.concatenate((*self.whole, self.recent if ended else self.recent[:-1]))

    def outside_graphs(self) -> "OwnTimes":
        """Returns the times if graphs, which count as forward passes, are communication, too.

        Slices have no squares of these own times: they follow from how far the slices differ.
        """
        rows = np.concatenate((*self.whole, self.recent))
        inside = rows["components"][:, FORWARD].astype(float)
        rows["components"][:, COMMUNICATION] += inside
        rows["components"][:, FORWARD] = 0
        rows["own"] = np.maximum(rows["own"] - inside, 0)
        means, mean = rows["own"] / rows["steps"], rows["own"].sum() / max(self.steps, 1)
        rows["squares"] = rows["steps"] * (means**2 + (rows["steps"] - 1) * (means - mean) ** 2)
        found = copy(self)
        found.whole, found.recent = [], rows
        found.own, found.communicated = float(rows["own"].sum()), self.communicated + float(inside.sum())
        return found


class NodeOwnTimes(Measurement[None]):
    """The own times of the ranks of a node."""

    def __init__(self) -> None:
        self.ranks: dict[int, OwnTimes] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        trained = steps.phases == TRAIN
        if trained.any():
            columns = (steps.numbers, steps.ends, steps.durations, steps.components)
            self.ranks.setdefault(steps.rank, OwnTimes()).add(*(column[trained] for column in columns))
        return ()


OWN_TIMES = Measure(NodeOwnTimes)
_UNKNOWN = np.array(np.nan)
_NOWHERE = np.array(False)


class Peers(NamedTuple):
    """Ranks compared with the others: elementwise, of (ranks, windows) or of ranks in Prometheus.

    All times are seconds per step. The others are the fast ranks: in Prometheus all but the slowest one.
    """

    steps: Times
    step: Times  # mean duration
    excess: Times  # own time beyond the median of the others; NaN without peers
    error: Times  # its standard error
    waits_less: Times  # than the others' median
    slow: NDArray[np.bool_]
    comparisons: int = 1  # in all
    # Known of the last minutes, not of windows of steps:
    no_core: Times = _UNKNOWN  # waited for a core
    others_no_core: Times = _UNKNOWN  # median
    steady: NDArray[np.bool_] = _NOWHERE  # slow for long, too


class Windows:
    """All ranks in consecutive windows of steps: sums of shape (ranks, windows), 0 where a rank has none."""

    def __init__(self, length: int, numbers: NDArray[np.int64], tables: dict[str, Times]) -> None:
        self.length = length
        places = length // SLICE
        of = numbers // _OF_A_PROCESS * _OF_A_PROCESS + numbers % _OF_A_PROCESS // places
        self._starts = np.flatnonzero(np.diff(of, prepend=-1))
        self._window_of = np.repeat(np.arange(len(self._starts)), np.diff(self._starts, append=len(of)))
        present = tables["steps"] > 0
        takes_part = np.zeros((len(present), len(self._starts)), bool)
        if present.size:
            takes_part = np.logical_or.reduceat(present, self._starts, axis=1)
        # Ranks are compared in the same steps: a slice that one of them lacks counts for none.
        self._common = present & (present | ~takes_part[:, self._window_of]).all(axis=0)
        self.steps, self.seconds, self.own, self.squares = (self.sums(tables[name]) for name in _SUMS)
        self.steps[(self.steps == 0) | (self.seconds < SHORTEST)] = np.nan

    def sums(self, table: Times) -> Times:
        """Returns the sums over the windows of a table of (ranks, slices)."""
        if not table.size:
            return np.zeros((len(table), len(self._starts)))
        sums: Times = np.add.reduceat(np.where(self._common, table, 0), self._starts, axis=1)
        return sums

    def last(self, table: Times) -> Times:
        """Returns the last values in the windows of a rising table of (ranks, slices); NaN without any."""
        if not table.size:
            return np.full((len(table), len(self._starts)), np.nan)
        last: Times = np.fmax.reduceat(np.where(self._common, table, np.nan), self._starts, axis=1)
        return last

    def compared(self, windows: int) -> Peers:
        """Returns the view that is judged; `windows`: how many are compared in all."""
        step, own = self.seconds / self.steps, self.own / self.steps
        variance = np.maximum(self.squares / self.steps - own**2, 0) / self.steps  # of the mean
        slow = slow_ranks(own)
        has_peers = (~np.isnan(own)).sum(axis=0) > 1

        def of_others(values: Times) -> Times:
            return np.where(has_peers, median(np.where(slow, np.nan, values)), np.nan)

        error: Times = np.sqrt(variance + of_others(variance))
        waits_less = of_others(step - own) - (step - own)
        comparisons = windows * most_slow(len(own))
        return Peers(self.steps, step, own - of_others(own), error, waits_less, slow, comparisons)


class Aligned:
    """The slices of all ranks side by side, by their numbers."""

    def __init__(self, ranks: Sequence[OwnTimes]) -> None:
        self._rows = [rank.slices() for rank in ranks]
        numbers = [rows["number"] for rows in self._rows]
        self._numbers = np.unique(np.concatenate(numbers or [np.empty(0, np.int64)]))
        self._places = [np.searchsorted(self._numbers, found) for found in numbers]
        self._tables = {name: self._table([rows[name] for rows in self._rows]) for name in _SUMS}

    def windows(self, lengths: Sequence[int]) -> list[Windows]:
        """Returns windows of several lengths, in rising order; none that repeats a shorter one."""
        found: list[Windows] = []
        for length in lengths:
            if not found or found[-1].steps.shape[1] > 1:
                found.append(Windows(length, self._numbers, self._tables))
        return found

    def own_components(self, windows: Windows) -> dict[str, Times]:
        """Returns the seconds of each component of own times, and of the rest: (ranks, windows) each."""
        found = {
            name: windows.sums(self._table([rows["components"][:, index] for rows in self._rows]))
            for index, name in enumerate(COMPONENTS)
            if index != COMMUNICATION
        }
        return {**found, HOST: np.maximum(windows.own - sum(found.values()), 0)}

    def ends(self, windows: Windows) -> Times:
        """Returns when each rank ended each window, in epoch seconds: (ranks, windows)."""
        return windows.last(self._table([rows["end"] for rows in self._rows]))

    def _table(self, columns: list[Times]) -> Times:
        table = np.zeros((len(columns), len(self._numbers)))
        for row, places, values in zip(table, self._places, columns, strict=True):
            row[places] = values
        return table


def most_slow(ranks: int) -> int:
    """Returns how many ranks can be slow: half of them, or two of three. Otherwise the others are fast."""
    return max(1, (ranks + 1) // 2)


def slow_ranks(own: Times) -> NDArray[np.bool_]:
    """Returns which ranks are above the widest gap between their own times; both are (ranks, windows).

    Up to `most_slow` ranks are above it. Several are only if they are similar: the gap is `ALIKE` times as
    wide as they are apart. Otherwise it is the slowest one. NaN: a rank without steps.
    """
    if len(own) < 2:
        return np.zeros(own.shape, bool)
    longest_first = -np.sort(-own, axis=0)  # NaN come last
    known = (~np.isnan(own)).sum(axis=0)
    gaps = longest_first[:-1] - longest_first[1:]
    above = np.arange(1, len(own))[:, None]  # how many ranks are above each gap
    most = np.array([most_slow(ranks) for ranks in range(len(own) + 1)])[known]
    possible = (above < known) & (above <= most)
    alike = gaps >= ALIKE * (longest_first[0] - longest_first[:-1])
    first_fast = np.where(possible & alike, gaps, -1.0).argmax(axis=0) + 1
    with np.errstate(invalid="ignore"):
        return np.asarray(own > np.take_along_axis(longest_first, first_fast[None], axis=0))


def waited_by_turns(ranks: Sequence[OwnTimes]) -> float:
    """Returns the share (0..1) of the latest steps for which ranks, on average, waited for the last one.

    The last one waits least: the others communicate for longer by their wait for it. The share is 0 if it is
    mostly the same rank, which is slow then.
    """
    common = ranks[0].latest[0] if len(ranks) > 1 else np.empty(0, np.int64)
    for rank in ranks:
        common = np.intersect1d(common, rank.latest[0], assume_unique=True)
    if not len(common):
        return 0.0
    spent = np.array([rank.latest[1][np.searchsorted(rank.latest[0], common)] for rank in ranks])
    waited = spent.mean(axis=0) - spent.min(axis=0)
    if np.bincount(spent.argmin(axis=0), waited).max() > MOSTLY * waited.sum():
        return 0.0
    seconds = sum(rank.seconds for rank in ranks) / sum(rank.steps for rank in ranks) * len(common)
    return float(waited.sum() / seconds)


def uneven_component(ranks: Sequence[OwnTimes]) -> str:
    """Returns the component that by turns takes longest on one of several ranks; "": of too few steps."""
    aligned = Aligned(ranks)
    (windows,) = aligned.windows([SLICE])
    if not windows.own.size:
        return ""
    spread = {}
    for name, seconds in aligned.own_components(windows).items():
        by_turns = seconds - seconds.mean(axis=1, keepdims=True)
        spread[name] = float((by_turns.max(axis=0) - by_turns.mean(axis=0)).sum())
    return max(spread, key=lambda name: spread[name])


def median(values: Times) -> Times:
    """Returns the median of each column; NaN is no value."""
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    ordered = np.sort(values, axis=0)  # NaN come last
    last = np.maximum((~np.isnan(values)).sum(axis=0) - 1, 0)
    columns = np.arange(values.shape[1])
    medians: Times = (ordered[last // 2, columns] + ordered[(last + 1) // 2, columns]) / 2
    return medians
