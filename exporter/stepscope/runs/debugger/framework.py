"""Reads the framework events of a training job: steps and their components, operators, collectives, loaders.

The files are Chrome traces, usually with one event per line:

    [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 15...}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
    {"name": "Step:ModeKeys.TRAIN", "pid": 1, "ph": "X", "ts": 2664345, "dur": 87, "args": {"step_num": "0"}},
    ]

Times are microseconds since the base time in the first row; Horovod's files may have none. A process in
Chrome's sense is the kind of the event in Debugger's.

A step is Debugger's, from the first module's forward pass to the last hook of the backward pass. If a wait
for a batch ended right before it, the step starts with that wait, as Stepscope's own steps do. Operators,
collectives and the rest are summed by name as they are read, so that memory grows only with the steps and
their components.
"""

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepscope.common.errors import UserError
from stepscope.runs.debugger.files import EventFile, natural
from stepscope.runs.malformed import LONGEST, MALFORMED, finite, is_date, moment, naming
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    ActivityTime,
    CollectiveTime,
    Loader,
    OperatorTime,
    RankFacts,
    Steps,
    Times,
    facts_of_steps,
)

BASE_TIME = "start_time_since_epoch_in_micros"
STEP = "Step:ModeKeys."
# Kind of event -> component of a step. Waits come last: they move the starts of steps.
COMPONENT_OF = {
    "Forward-SubModuleInternal": "forward",
    "Backward-SubModuleInternal": "backward",
    "DataLoaderIter": "data_wait",
}
COLLECTIVE_FILES = ("horovod", "smdataparallel")
# TensorFlow's traces repeat the work of a stream on these lines.
REPEATED_LINES = {"Steps", "TensorFlow Name Scope", "TensorFlow Ops", "XLA Modules", "XLA Ops"}
_SAGEMAKER_NODE = re.compile(r"algo-\d+")
_GPU_NUMBER = re.compile(r"gpu\D*(\d+)", re.IGNORECASE)

# Events that have begun, by kind: they may end in a later file of the same process.
OpenPairs = dict[str, list[tuple[str, float, dict[str, Any]]]]
Noted = Callable[[Path], None]  # gets a file that ends in the middle of a line, or has an impossible event
MOST_APART = 366 * 86400e6  # microseconds between an event and the base time of its file


class Event(NamedTuple):
    kind: str  # Debugger's phase: "Step:ModeKeys.TRAIN", "DataLoaderIter", "cpu_functions"
    name: str
    start: float | None  # seconds since the epoch; None: the file has no base time
    duration: float  # seconds
    args: dict[str, Any]
    thread: str = ""  # its name, if the file contains it


def read_events(path: Path, open_pairs: OpenPairs, truncated: Noted, impossible: Noted) -> Iterator[Event]:
    """Yields the events of a file. A last line that cannot be parsed is a half-written file.

    Events with a time or a duration that no job can have are left out. Raises UserError with the line if
    another line is corrupt, or if the file is not a trace.
    """
    kinds: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    base: float | None = None
    for line, row in _rows(path, truncated):
        try:
            phase = row.get("ph")
            args = row.get("args") or {}
            if phase == "M":
                if base is None and BASE_TIME in args:
                    base = finite(args[BASE_TIME])
                if row["name"] == "process_name" and "name" in args:
                    kinds[row["pid"]] = str(args["name"])
                elif row["name"] == "thread_name":
                    threads[row["pid"], row.get("tid")] = str(args["name"])
                continue
            if phase not in ("X", "B", "E"):
                continue
            pid = row.get("pid")
            kind = kinds.get(pid, "Unknown")
            time = finite(row["ts"]) + (base or 0.0)
            if phase == "B":
                open_pairs.setdefault(kind, []).append((str(row["name"]), time, args))
                continue
            if phase == "E":
                begun = open_pairs.get(kind)
                if not begun:
                    continue
                name, start, begin_args = begun.pop()
                args, duration, time = {**begin_args, **args}, time - start, start
            else:
                name, duration = str(row["name"]), float(row.get("dur", 0))
            is_far = base is not None and is_date(base / 1e6) and abs(time - base) > MOST_APART
            if is_far or not 0 <= duration <= LONGEST:
                impossible(path)
                continue
            since_epoch = None if base is None else moment(time / 1e6)
            yield Event(kind, name, since_epoch, duration / 1e6, args, threads.get((pid, row.get("tid")), ""))
        except MALFORMED as error:
            why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{path}, line {line}: not a trace event ({why}); copy the file again, or remove it"
            ) from error


def _rows(path: Path, truncated: Noted) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line and event. Files that do not have one event per line are parsed as a whole."""
    if path.name.endswith(".gz"):
        yield from ((1, row) for row in _compressed(path, truncated))
        return
    wrong: int | None = None  # the line that could not be parsed: it may be the last
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.strip().rstrip(",")
            if wrong is not None and text not in ("", "]"):
                whole = _events_of(_json(path.read_text(encoding="utf-8", errors="replace")))
                if whole is None or number > 3:
                    raise UserError(
                        f"{path}, line {wrong}: not JSON; copy the file again, or remove the line"
                    )
                yield from ((1, row) for row in whole)
                return
            if wrong is not None or text in ("", "[", "]"):
                continue
            document = _json(text)
            if document is None:  # the line may also open or close the array
                document = _json("[" + text.removeprefix("[").removesuffix("]").rstrip().rstrip(",") + "]")
            if document is None:
                wrong = number
                continue
            rows = _events_of(document)
            for row in [document] if rows is None else rows:
                yield number, row
    if wrong is not None:
        truncated(path)


def _json(text: str) -> Any:
    """Returns the document of a JSON text, None if it cannot be parsed."""
    try:
        return json.loads(text)
    except MALFORMED:
        return None


def _compressed(path: Path, truncated: Noted) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = _events_of(json.load(file))
    except EOFError:
        truncated(path)
        return []
    except (OSError, zlib.error, *MALFORMED) as error:
        raise UserError(f"{path}: not a trace ({error}); copy the file again, or remove it") from error
    if rows is None:
        raise UserError(f"{path}: holds no traceEvents; remove it, or copy the file again")
    return rows


def _events_of(document: Any) -> list[dict[str, Any]] | None:
    rows = document.get("traceEvents") if isinstance(document, dict) else document
    return rows if isinstance(rows, list) else None


@dataclass
class Sum:
    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds


class Process:
    """Everything that one process wrote."""

    def __init__(self, host: str, pid: int) -> None:
        self.host, self.pid = host, pid
        self.start: float | None = None  # of its first event, in seconds since the epoch
        self.frameworks: set[str] = set()
        self.operators: dict[tuple[str, str], Sum] = {}  # by device and name
        self.collectives: dict[str, Sum] = {}
        self.activities: dict[str, Sum] = {}
        self.loaders: dict[tuple[float, int | None, bool | None], None] = {}  # when, workers, pin_memory
        self._open_pairs: dict[str, OpenPairs] = {}  # by kind of file
        self._steps = array("d")  # number, phase, start, duration of each
        self._intervals = {kind: array("d") for kind in COMPONENT_OF}  # start, end of each

    def read(self, file: EventFile, truncated: Noted, impossible: Noted) -> None:
        """Reads the events of one file. Raises UserError if it is corrupt."""
        with naming(file.path, "Debugger's events", "copy the file again, or remove it"):
            begun = self._open_pairs.setdefault(file.kind, {})
            for event in read_events(file.path, begun, truncated, impossible):
                self._add(event, file.kind)

    def _add(self, event: Event, file_kind: str) -> None:
        if event.start is not None:
            self.start = event.start if self.start is None else min(self.start, event.start)
        kind = event.kind.lower()
        if file_kind in COLLECTIVE_FILES:
            if not event.name.isdigit():  # a number is Horovod's mark that this rank is ready
                self.collectives.setdefault(event.name, Sum()).add(event.duration)
        elif event.kind.startswith(STEP) or event.name.startswith(STEP):
            self._add_step(event)
        elif "cpu" in kind or "gpu" in kind:
            if event.thread not in REPEATED_LINES:
                self.operators.setdefault((device_of(event.kind), event.name), Sum()).add(event.duration)
                self.frameworks.add("tensorflow" if event.kind.startswith("/") else "pytorch")
        else:
            self._add_activity(event)

    def _add_step(self, event: Event) -> None:
        phase = (event.name if event.name.startswith(STEP) else event.kind)[len(STEP) :].lower()
        if phase in PHASES and event.start is not None:
            number = int(event.args.get("step_num", -1))
            self._steps.extend((number, PHASES.index(phase), event.start, event.duration))

    def _add_activity(self, event: Event) -> None:
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
            try:
                workers = int(event.args["num_workers"])
            except (TypeError, ValueError):
                workers = None
            # Debugger writes JSON's true, or Python's "True".
            pinned = {"true": True, "false": False}.get(str(event.args.get("pin_memory")).lower())
            self.loaders[event.start + event.duration, workers, pinned] = None

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    @property
    def has_events(self) -> bool:
        return bool(self._steps or self.activities or self.operators or self.collectives)

    def steps(self, node: str, rank: int) -> Steps:
        """Returns all steps in the order in which they ended, with their components."""
        rows = np.array(self._steps).reshape(-1, 4)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 2]))]
        starts, ends = rows[:, 2].copy(), rows[:, 2] + rows[:, 3]
        components = np.zeros((len(rows), len(COMPONENTS)))
        for kind, component in COMPONENT_OF.items():
            add = _add_waits if component == "data_wait" else _add_parts
            if len(rows):
                intervals = np.array(self._intervals[kind]).reshape(-1, 2)
                add(intervals, starts, ends, components[:, COMPONENTS.index(component)])
        numbers, phases = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.uint8)
        steps = Steps(node, rank, numbers, phases, starts, ends - starts, components)
        return steps[np.argsort(ends, kind="stable")]


def _add_parts(intervals: Times, starts: Times, ends: Times, seconds: Times) -> None:
    """Adds to `seconds` the time of the events that began in each step."""
    step = np.searchsorted(starts, intervals[:, 0], side="right") - 1
    inside = (step >= 0) & (intervals[:, 0] < ends[step])
    np.add.at(seconds, step[inside], np.diff(intervals[inside])[:, 0])


def _add_waits(intervals: Times, starts: Times, ends: Times, seconds: Times) -> None:
    """Adds waits for data; a wait between two steps belongs to the later one, which then starts with it.

    The middle of a wait decides, because Debugger rounds times to a microsecond.
    """
    middles, took = intervals.mean(axis=1), np.diff(intervals)[:, 0]
    after = np.searchsorted(starts, middles, side="right")
    inside = (after > 0) & (middles < ends[after - 1])
    np.add.at(seconds, after[inside] - 1, took[inside])
    between = ~inside & (after < len(starts))
    np.add.at(seconds, after[between], took[between])
    np.minimum.at(starts, after[between], intervals[between, 0])


@dataclass(frozen=True)
class Rank:
    """One process and the rank that its work counts towards."""

    node: str
    rank: int
    trained: bool  # False: a data-loading worker, or a separate thread that wrote events
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
        known = facts_of_steps(steps)
        first, last = known["first_step_start"], known["last_step_end"]
        if len(steps):
            known["phase_seconds"]["initialization"] = max(first - run_start, 0.0)
            known["phase_seconds"]["finalization"] = max((run_end or last) - last, 0.0)
        return RankFacts(
            node=self.node,
            rank=self.rank,
            pid=self.process.pid,
            start=self.process.start if self.process.start is not None else run_start,
            end=run_end,
            framework=" and ".join(sorted(self.process.frameworks)),
            world_size=world_size,
            reports_steps=self.process.has_steps,
            loaders=tuple(dict.fromkeys(self._loaders(steps))),
            **known,
        )

    def _loaders(self, steps: Steps) -> Iterator[Loader]:
        """Yields loaders; the phase of each is that of the first step that ended after it began."""
        order = np.argsort(steps.ends, kind="stable")
        ends = steps.ends[order]
        for time, workers, pinned in sorted(self.process.loaders, key=lambda loader: loader[0]):
            next_step = int(np.searchsorted(ends, time))
            phase = PHASES[steps.phases[order[next_step]]] if next_step < len(steps) else "train"
            yield Loader(self.rank, phase, workers, pinned, None)


def ranks_of(processes: list[Process], nodes: list[str]) -> list[Rank]:
    """Numbers the processes that trained by node and process; the others join the first rank of their node.

    Debugger does not write a process's rank.
    """
    names = _nodes_of_hosts({process.host for process in processes}, nodes)
    ordered = sorted(processes, key=lambda p: (natural(names[p.host]), names[p.host], p.pid))
    trained = [process for process in ordered if process.has_steps] or ordered[:1]
    number = {id(process): rank for rank, process in enumerate(trained)}
    first = {names[process.host]: number[id(process)] for process in reversed(trained)}
    return [
        Rank(
            names[process.host],
            number.get(id(process), first.get(names[process.host], 0)),
            id(process) in number,
            process,
        )
        for process in ordered
    ]


def _nodes_of_hosts(hosts: set[str], nodes: list[str]) -> dict[str, str]:
    """Returns the node of the readings per host; a host with another name belongs to the only node."""
    if len(nodes) == 1:
        return {host: host if _SAGEMAKER_NODE.fullmatch(host) else nodes[0] for host in hosts}
    return {host: host or "unknown" for host in hosts}


def device_of(kind: str) -> str:
    """Returns cpu, gpu0, or gpu without a number, by the kind of an event."""
    if "gpu" not in kind.lower() or "cpu" in kind.lower():
        return "cpu"
    match = _GPU_NUMBER.search(kind)
    return f"gpu{match[1]}" if match else "gpu"
