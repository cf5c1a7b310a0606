"""What the events of a training job tell: steps, what ran in them, operators, collectives, loaders.

A step is what Debugger calls so, from the first module's forward pass to the last hook of the backward
pass; and where a wait for a batch ended right before it, the step begins with that wait, as a step of
Trainwatch does. Operators, collectives and the rest are summed by name as they are read, so that memory
grows with the steps and what is timed inside of them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.runs.debugger.events import Event, OpenPairs, read_events
from trainwatch.runs.debugger.files import EventFile, natural
from trainwatch.runs.model import (
    COMPONENTS,
    PHASES,
    ActivityTime,
    CollectiveTime,
    Loader,
    OperatorTime,
    RankFacts,
    Steps,
)

STEP = "Step:ModeKeys."
# Kind of event -> component of a step. Waits come last: they move the beginnings of steps.
COMPONENT_OF = {
    "Forward-SubModuleInternal": "forward",
    "Backward-SubModuleInternal": "backward",
    "DataLoaderIter": "data_wait",
}
COLLECTIVE_FILES = ("horovod", "smdataparallel")
# TensorFlow's traces repeat a stream's work on lines of their own.
REPEATED_LINES = {"Steps", "TensorFlow Name Scope", "TensorFlow Ops", "XLA Modules", "XLA Ops"}
_SAGEMAKER_NODE = re.compile(r"algo-\d+")
_GPU_NUMBER = re.compile(r"gpu\D*(\d+)", re.IGNORECASE)


@dataclass
class Sum:
    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds


class Process:
    """All that one process wrote."""

    def __init__(self, host: str, pid: int) -> None:
        self.host, self.pid = host, pid
        self.start: float | None = None  # of its first event, in seconds since the epoch
        self.frameworks: set[str] = set()
        self.open_pairs: dict[str, OpenPairs] = {}  # by kind of file
        self.operators: dict[tuple[str, str], Sum] = {}  # by device and name
        self.collectives: dict[str, Sum] = {}
        self.activities: dict[str, Sum] = {}
        self.loaders: dict[tuple[float, int | None, bool | None], None] = {}  # when, workers, pin_memory
        self._steps = array("d")  # number, phase, start, duration of each
        self._intervals = {kind: array("d") for kind in COMPONENT_OF}  # start, end of each

    def take(self, event: Event, file_kind: str) -> None:
        """Notes one event."""
        if event.start is not None:
            self.start = event.start if self.start is None else min(self.start, event.start)
        kind = event.kind.lower()
        if file_kind in COLLECTIVE_FILES:
            if event.name.isdigit():  # Horovod's mark that this rank is ready
                return
            self.collectives.setdefault(event.name, Sum()).add(event.duration)
        elif event.kind.startswith(STEP) or event.name.startswith(STEP):
            self._take_step(event)
        elif "cpu" in kind or "gpu" in kind:
            if event.thread not in REPEATED_LINES:
                self.operators.setdefault((_device(event.kind), event.name), Sum()).add(event.duration)
                self.frameworks.add("tensorflow" if event.kind.startswith("/") else "pytorch")
        else:
            self._take_activity(event)

    def _take_step(self, event: Event) -> None:
        phase = (event.name if event.name.startswith(STEP) else event.kind)[len(STEP) :].lower()
        if phase in PHASES and event.start is not None:
            number = int(event.args.get("step_num", -1))
            self._steps.extend((number, PHASES.index(phase), event.start, event.duration))

    def _take_activity(self, event: Event) -> None:
        self.activities.setdefault(event.kind, Sum()).add(event.duration)
        if event.kind == "DataIterator":
            self.frameworks.add("tensorflow")
        elif event.kind in COMPONENT_OF or event.kind.startswith("DataLoader"):
            self.frameworks.add("pytorch")
        if event.start is None:
            return
        if event.kind in COMPONENT_OF:
            self._intervals[event.kind].extend((event.start, event.start + event.duration))
        if event.kind.startswith("DataLoader") and "num_workers" in event.args:
            workers, pinned = _number(event.args["num_workers"]), _truth(event.args.get("pin_memory"))
            self.loaders[event.start + event.duration, workers, pinned] = None

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    def steps(self, node: str, rank: int) -> Steps:
        """All steps in the order in which they ended, with what ran in them."""
        rows = np.array(self._steps).reshape(-1, 4)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 2]))]
        starts, ends = rows[:, 2].copy(), rows[:, 2] + rows[:, 3]
        components = np.zeros((len(rows), len(COMPONENTS)))
        for kind, component in COMPONENT_OF.items():
            seconds = components[:, COMPONENTS.index(component)]
            intervals = np.array(self._intervals[kind]).reshape(-1, 2)
            if component == "data_wait":
                _add_waits(intervals[:, 0], intervals[:, 1], starts, ends, seconds)
            else:
                _add_parts(intervals[:, 0], intervals[:, 1], starts, ends, seconds)
        order = np.argsort(ends, kind="stable")
        return Steps(
            node=node,
            rank=rank,
            numbers=rows[order, 0].astype(np.int64),
            phases=rows[order, 1].astype(np.uint8),
            starts=starts[order],
            durations=(ends - starts)[order],
            components=components[order],
        )


@dataclass
class Framework:
    """The processes of a job, by host and process number."""

    processes: dict[tuple[str, int], Process] = field(default_factory=dict)

    def read(self, file: EventFile, truncated: Callable[[Any], None]) -> None:
        """Takes in the events of one file. Raises UserError where it is corrupt."""
        process = self.processes.setdefault((file.host, file.pid), Process(file.host, file.pid))
        pairs = process.open_pairs.setdefault(file.kind, OpenPairs())
        for event in read_events(file.path, pairs, truncated):
            process.take(event, file.kind)

    def ranks(self, nodes: list[str]) -> list[Rank]:
        """The processes that trained, numbered by node and process; others beside the first of their node.

        Debugger does not write a process's rank.
        """
        names = _nodes_of_hosts({host for host, _ in self.processes}, nodes)
        ordered = sorted(
            self.processes.values(), key=lambda one: (natural(names[one.host]), names[one.host], one.pid)
        )
        trained = [one for one in ordered if one.has_steps] or ordered[:1]
        number = {id(one): rank for rank, one in enumerate(trained)}
        first = {names[one.host]: number[id(one)] for one in reversed(trained)}
        return [
            Rank(names[one.host], number.get(id(one), first.get(names[one.host], 0)), id(one) in number, one)
            for one in ordered
        ]


@dataclass(frozen=True)
class Rank:
    """One process and the rank that its work is counted to."""

    node: str
    rank: int
    trained: bool  # False: a data-loading worker, or a thread of its own that wrote events
    process: Process

    def operators(self) -> Iterator[OperatorTime]:
        for (device, name), total in sorted(self.process.operators.items()):
            yield OperatorTime(self.node, self.rank, device, name, total.calls, total.seconds)

    def collectives(self) -> Iterator[CollectiveTime]:
        for name, total in sorted(self.process.collectives.items()):
            yield CollectiveTime(self.node, self.rank, name, total.calls, total.seconds)

    def activities(self) -> Iterator[ActivityTime]:
        for kind, total in sorted(self.process.activities.items()):
            yield ActivityTime(self.node, self.rank, kind, total.calls, total.seconds)

    def facts(self, steps: Steps, world_size: int, run_start: float, run_end: float | None) -> RankFacts:
        ends = steps.starts + steps.durations
        first = float(steps.starts.min()) if len(steps) else None
        last = float(ends.max()) if len(steps) else None
        seconds = np.bincount(steps.phases, steps.durations, minlength=len(PHASES)).tolist()
        counts = np.bincount(steps.phases, minlength=len(PHASES)).tolist()
        phase_seconds = dict(zip(PHASES, seconds, strict=True))
        if first is not None and last is not None:
            phase_seconds["initialization"] = max(first - run_start, 0.0)
            phase_seconds["other"] = max(last - first - sum(seconds), 0.0)
            phase_seconds["finalization"] = max((run_end or last) - last, 0.0)
        return RankFacts(
            node=self.node,
            rank=self.rank,
            pid=self.process.pid,
            start=self.process.start if self.process.start is not None else run_start,
            first_step_start=first,
            last_step_end=last,
            end=run_end,
            killed=False,
            framework=" and ".join(sorted(self.process.frameworks)),
            framework_version="",
            world_size=world_size,
            phase_seconds=phase_seconds,
            component_seconds=dict(zip(COMPONENTS, steps.components.sum(axis=0).tolist(), strict=True)),
            steps=dict(zip(PHASES, counts, strict=True)),
            records_lost=0,
            loaders=tuple(self._loaders(steps)),
        )

    def _loaders(self, steps: Steps) -> Iterator[Loader]:
        """Each kind of loader once; its phase is that of the first step after it began."""
        seen = set()
        order = np.argsort(steps.starts + steps.durations, kind="stable")
        ends = (steps.starts + steps.durations)[order]
        for time, workers, pinned in sorted(self.process.loaders, key=lambda one: one[0]):
            next_step = int(np.searchsorted(ends, time))
            phase = PHASES[steps.phases[order[next_step]]] if next_step < len(ends) else "train"
            loader = Loader(self.rank, phase, workers, pinned, None)
            if loader not in seen:
                seen.add(loader)
                yield loader


def _add_parts(
    begins: NDArray[np.float64],
    finishes: NDArray[np.float64],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    seconds: NDArray[np.float64],
) -> None:
    """Adds what ran in each step to `seconds`: the events that began in it."""
    if not len(starts):
        return
    step = np.searchsorted(starts, begins, side="right") - 1
    inside = (step >= 0) & (begins < ends[step])
    np.add.at(seconds, step[inside], (finishes - begins)[inside])


def _add_waits(
    begins: NDArray[np.float64],
    finishes: NDArray[np.float64],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    seconds: NDArray[np.float64],
) -> None:
    """The same for waits for data; one between two steps belongs to the later, which then starts with it.

    A wait is where its middle is: Debugger's times are rounded to a microsecond.
    """
    if not len(starts):
        return
    middles = (begins + finishes) / 2
    after = np.searchsorted(starts, middles, side="right")
    inside = (after > 0) & (middles < ends[after - 1])
    np.add.at(seconds, after[inside] - 1, (finishes - begins)[inside])
    between = ~inside & (after < len(starts))
    np.add.at(seconds, after[between], (finishes - begins)[between])
    np.minimum.at(starts, after[between], begins[between])


def _nodes_of_hosts(hosts: set[str], nodes: list[str]) -> dict[str, str]:
    """Host of a process -> node of the readings: the only one, where the host has a name of its own."""
    if len(nodes) == 1:
        return {host: host if _SAGEMAKER_NODE.fullmatch(host) else nodes[0] for host in hosts}
    return {host: host or "unknown" for host in hosts}


def _device(kind: str) -> str:
    if "cpu" in kind.lower():
        return "cpu"
    match = _GPU_NUMBER.search(kind)
    return f"gpu{match[1]}" if match else "gpu"


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _truth(value: Any) -> bool | None:
    """Debugger writes JSON's true, or Python's "True"."""
    return {"true": True, "false": False}.get(str(value).lower())
