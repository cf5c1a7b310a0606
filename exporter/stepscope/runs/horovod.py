"""Reads the timeline of Horovod (HOROVOD_TIMELINE): one file, which rank 0 writes about all ranks.

Each tensor is a process of Chrome's trace format. Its collective is negotiated first (`NEGOTIATE_ALLREDUCE`),
until all ranks are ready, and then executed (`ALLREDUCE`, with what it consists of inside). A tick in a
negotiation, an event named "3", says that rank 3 is ready. If a response was cached, there are no ticks, and
the negotiation begins when rank 0 is ready.

A timeline marks no steps. One is the time in which each gradient is reduced once: it ends with the last
collective of its round. A rank communicates from its last tick in a round to that end. Before, it may
compute while others communicate.

Source of the format: https://horovod.readthedocs.io/en/stable/timeline_include.html, and Horovod 0.28.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.common.errors import UserError
from stepscope.common.words import listing
from stepscope.runs.malformed import finite, is_date, moment, naming
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    CollectiveTime,
    NodeFacts,
    NodeSamples,
    Progress,
    RankFacts,
    RunFacts,
    Source,
    Steps,
    counter,
    facts_of_steps,
)
from stepscope.runs.traces.json_stream import JsonTrace, beginning

NEGOTIATION = "NEGOTIATE_"
OF_GRADIENTS = {f"{NEGOTIATION}{name}" for name in ("ALLREDUCE", "ADASUM", "REDUCESCATTER")}
BEGINNING = 1 << 16  # bytes, in which the first negotiation begins
LEAST_ROUNDS = 3
OFTEN = 0.9  # of the collectives of the tensor that is reduced most often: reduced in each round
NODE = "unknown"  # a timeline does not contain the names of its hosts
MICRO = 1e-6
_TICK = re.compile(r"[0-9]{1,5}")  # a rank; larger numbers are damaged


def is_timeline(path: Path) -> bool:
    """Returns whether a file is a timeline of Horovod."""
    text = beginning(path, BEGINNING)
    return text.lstrip()[:1] == b"[" and f'"{NEGOTIATION}'.encode() in text


@dataclass
class _Collective:
    """One collective of one tensor; seconds on the clock of the file."""

    tensor: Any
    operation: str  # "NEGOTIATE_ALLREDUCE"
    start: float
    ready: dict[int, float] = field(default_factory=dict)  # by rank
    end: float = np.nan  # NaN: it did not end


class HorovodTimeline(Source):
    """One timeline. Raises UserError while reading if nothing of it can be read."""

    judged_whole = True

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self._path, self._progress = path, progress
        self._sums: dict[str, tuple[int, float]] = {}  # calls and seconds, by name
        self._collectives: list[_Collective] = []
        self._origin, self._first, self._last = 0.0, np.inf, -np.inf
        self._cut = ""
        self._steps: dict[int, Steps] = {}
        self._read = False

    @property
    def facts(self) -> RunFacts:
        start, end = (self._first, self._last) if self._collectives else (None, None)
        return RunFacts(
            name=self._path.name.removesuffix(".json"),
            start=start,
            end=end,
            nodes=(NodeFacts(NODE, (), ()),),
            ranks=tuple(self._rank_facts(rank) for rank in sorted({0, *self._steps})),
            collectives=tuple(
                CollectiveTime(NODE, 0, name, *found) for name, found in sorted(self._sums.items())
            ),
            unknowns=tuple(self._unknowns()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields the steps of each rank; nothing when called again."""
        if not self._read:
            self._read = True
            self._read_file()
            self._steps = self._steps_of_ranks()
            yield from self._steps.values()

    @property
    def _ranks(self) -> int:
        """Returns how many ranks are known: those with ticks."""
        return 1 + max((rank for each in self._collectives for rank in each.ready), default=0)

    def _rank_facts(self, rank: int) -> RankFacts:
        steps = self._steps.get(rank)
        known = facts_of_steps(steps if steps is not None else _steps(rank, [], [], []))
        return RankFacts(
            NODE, rank, 0, self._first, end=self._last, framework="", world_size=self._ranks, **known
        )

    def _unknowns(self) -> Iterator[str]:
        yield "A timeline of Horovod contains only collectives: no sample of the host or the GPUs was taken."
        if self._cut:
            yield self._cut
        if not self._steps:
            yield f"Steps are not known: no tensor was reduced {LEAST_ROUNDS} times."
            return
        yield "Steps were inferred from repetition: in each, every gradient is reduced once."
        if missing := [str(rank) for rank in range(self._ranks) if rank not in self._steps]:
            yield (
                f"When {'rank' if len(missing) == 1 else 'ranks'} {listing(missing)} became ready is not "
                "known, because Horovod cached its responses: set HOROVOD_CACHE_CAPACITY=0 to see it."
            )
        elif self._ranks == 1:
            yield (
                "When other ranks became ready is not known, because Horovod cached its responses: set "
                "HOROVOD_CACHE_CAPACITY=0 to see it."
            )
        if not is_date(self._first):
            yield f"{self._path.name} does not contain the date: its times count from the start of the job."

    # -- the file

    def _read_file(self) -> None:
        read = counter(self._path.stat().st_size, self._progress)
        open_events: dict[Any, list[tuple[str, float]]] = {}
        latest: dict[Any, _Collective] = {}
        try:
            with naming(self._path, "a timeline of Horovod", "copy the file again"):
                for row in JsonTrace(self._path, read).rows():
                    self._add(row, open_events.setdefault(row.get("pid"), []), latest)
        except UserError as error:  # Horovod before 0.20 never ended the list, and a job may be killed
            if not self._collectives:
                raise
            self._cut = f"{error}. What would follow is missing."
        if not self._collectives:
            raise UserError(f"{self._path} holds no collective: give the timeline of a job that trained")

    def _add(self, row: Any, begun: list[tuple[str, float]], latest: dict[Any, _Collective]) -> None:
        phase, tensor = row.get("ph"), row.get("pid")
        if phase == "M":
            base = (row.get("args") or {}).get("start_time_since_epoch_in_micros")
            if base is not None:
                self._origin = moment(finite(base) * MICRO)
            return
        if phase not in ("B", "E", "X"):
            return
        time = moment(self._origin + finite(row["ts"]) * MICRO)
        self._first, self._last = min(self._first, time), max(self._last, time)
        if phase == "B":
            name = str(row["name"])
            begun.append((name, time))
            if name.startswith(NEGOTIATION):
                latest[tensor] = _Collective(tensor, name, time)
                self._collectives.append(latest[tensor])
        elif phase == "X" and _TICK.fullmatch(str(row["name"])) and begun and tensor in latest:
            latest[tensor].ready[int(row["name"])] = time
        elif phase == "E" and begun:
            name, start = begun.pop()
            calls, seconds = self._sums.get(name, (0, 0.0))
            self._sums[name] = calls + 1, seconds + max(time - start, 0.0)
            if not begun and tensor in latest:
                latest[tensor].end = time

    # -- the steps

    def _steps_of_ranks(self) -> dict[int, Steps]:
        rounds = self._rounds()
        ends = [max((each.end for each in group if each.end == each.end), default=np.nan) for group in rounds]
        found = {}
        for rank in range(self._ranks):
            starts, durations, waits = [], [], []
            for before, end, group in zip(ends, ends[1:], rounds[1:], strict=False):
                ready = _ready(rank, group)
                if ready is None or not before < end:
                    continue
                starts.append(before)
                durations.append(end - before)
                waits.append(min(max(end - ready, 0.0), end - before))
            if len(starts) >= LEAST_ROUNDS - 1:
                found[rank] = _steps(rank, starts, durations, waits)
        return found

    def _rounds(self) -> list[list[_Collective]]:
        """Returns the collectives of gradients by round: each begins with the same tensor."""
        reduced = [each for each in self._collectives if each.operation in OF_GRADIENTS]
        times = Counter(each.tensor for each in reduced)
        most = max(times.values(), default=0)
        if most < LEAST_ROUNDS:
            return []
        first = next(each.tensor for each in reduced if times[each.tensor] >= OFTEN * most)
        rounds: list[list[_Collective]] = []
        for each in reduced:
            if each.tensor == first:
                rounds.append([])
            if rounds:
                rounds[-1].append(each)
        return rounds


def _ready(rank: int, group: list[_Collective]) -> float | None:
    """Returns when a rank was ready for the last collective of a round; None: it is not known."""
    times = [each.ready.get(rank, each.start if rank == 0 and not each.ready else None) for each in group]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None


def _steps(rank: int, starts: list[float], durations: list[float], waits: list[float]) -> Steps:
    components = np.zeros((len(starts), len(COMPONENTS)))
    components[:, COMPONENTS.index("communication")] = waits
    return Steps(
        node=NODE,
        rank=rank,
        numbers=np.arange(len(starts), dtype=np.int64),
        phases=np.full(len(starts), PHASES.index("train"), np.uint8),
        starts=np.array(starts, float),
        durations=np.array(durations, float),
        components=components,
    )
