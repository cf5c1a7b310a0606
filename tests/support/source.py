"""Runs made up in memory: a Source of given samples and steps, for tests of evaluation and report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    RUN_USE,
    TRAFFIC,
    WORK,
    Loader,
    NodeFacts,
    NodeSamples,
    RankFacts,
    RankTrace,
    RunFacts,
    Source,
    Steps,
)

START = 1_800_000_000.0  # a whole minute
INTERVAL = 0.5


class MemorySource(Source):
    """Gives `chunks`, cut into pieces of `chunk_rows` rows where it is given, once."""

    def __init__(
        self,
        *chunks: NodeSamples | Steps,
        facts: RunFacts | None = None,
        chunk_rows: int | None = None,
        judged_whole: bool = False,
    ) -> None:
        self.judged_whole = judged_whole
        self.run_facts = facts if facts is not None else run_facts()
        self._unread: list[NodeSamples | Steps] = []
        self.add(*(piece for chunk in chunks for piece in cut(chunk, chunk_rows or max(len(chunk), 1))))

    def add(self, *chunks: NodeSamples | Steps) -> None:
        """More of the run, for the next `read`."""
        self._unread += chunks

    @property
    def facts(self) -> RunFacts:
        return self.run_facts

    def read(self) -> Iterator[NodeSamples | Steps]:
        chunks, self._unread = self._unread, []
        yield from chunks


def node_samples(
    cpu: ArrayLike = (),
    gpu: ArrayLike | None = None,
    io_wait: ArrayLike | None = None,
    *,
    gpu_memory: ArrayLike | None = None,
    memory: ArrayLike | None = None,
    network: ArrayLike | None = None,
    disk: ArrayLike | None = None,
    of_run: Mapping[str, ArrayLike] | None = None,
    of_gpus: Mapping[str, ArrayLike] | None = None,
    node: str = "node-a",
    start: float = START,
    interval: float = INTERVAL,
) -> NodeSamples:
    """Snapshots of a node from rows of ratios: (n, cores) and (n, GPUs). What is not given is 0 or absent.

    `of_gpus`: further fields of NodeSamples, (n, GPUs) each, which are NaN where they are not given.
    `of_run`: columns of its `run_use`, likewise.
    """
    cores = np.asarray(cpu, np.float32)
    rows = len(cores)
    if cores.ndim != 2:
        cores = cores.reshape(rows, -1)
    gpus = np.asarray(np.empty((rows, 0)) if gpu is None else gpu, np.float32).reshape(rows, -1)

    def series(values: ArrayLike | None, kind: type[np.floating[Any]]) -> Any:
        return np.zeros(rows, kind) if values is None else np.asarray(values, kind)

    use = np.full((rows, len(RUN_USE)), np.nan)
    for name, values in (of_run or {}).items():
        use[:, RUN_USE.index(name)] = values
    traffic = np.zeros((rows, len(TRAFFIC)))
    traffic[:, TRAFFIC.index("network_receive_bytes")] = series(network, np.float64)
    traffic[:, TRAFFIC.index("disk_read_bytes")] = series(disk, np.float64)
    return NodeSamples(
        run_use=use,
        node=node,
        times=start + interval * np.arange(rows, dtype=np.float64),
        cpu=cores,
        io_wait=np.zeros_like(cores) if io_wait is None else np.asarray(io_wait, np.float32),
        gpu=gpus,
        gpu_memory=np.zeros_like(gpus) if gpu_memory is None else np.asarray(gpu_memory, np.float32),
        memory=series(memory, np.float32),
        traffic=traffic,
        gpu_power_watts=np.zeros_like(gpus),
        gpu_temperature_celsius=np.zeros_like(gpus),
        **{name: np.asarray(given, np.float64).reshape(rows, -1) for name, given in (of_gpus or {}).items()},
    )


def node_steps(
    durations: Sequence[float] | np.ndarray,
    *,
    phase: str = "train",
    rank: int = 0,
    node: str = "node-a",
    start: float = START,
    first_number: int = 1,
    **components: Sequence[float] | np.ndarray | float,
) -> Steps:
    """Steps of one phase, one right after the other; `data_wait=...` and the like give their components."""
    took = np.asarray(durations, np.float64)
    parts = np.zeros((len(took), len(COMPONENTS)))
    for name, seconds in components.items():
        parts[:, COMPONENTS.index(name)] = seconds
    return Steps(
        node=node,
        rank=rank,
        numbers=np.arange(first_number, first_number + len(took)),
        phases=np.full(len(took), PHASES.index(phase), np.uint8),
        starts=start + np.concatenate(([0.0], np.cumsum(took)))[:-1],
        durations=took,
        components=parts,
    )


def rank_facts(
    rank: int = 0, *, node: str = "node-a", loaders: Iterable[Loader] = (), **more: Any
) -> RankFacts:
    """One rank of which little more is known than that it started with the run."""
    known: dict[str, Any] = {
        "node": node,
        "rank": rank,
        "pid": 1000 + rank,
        "start": START,
        "first_step_start": None,
        "last_step_end": None,
        "end": None,
        "killed": False,
        "framework": "",
        "framework_version": "",
        "world_size": 1,
        "phase_seconds": {},
        "component_seconds": {},
        "steps": {},
        "records_lost": 0,
        "loaders": tuple(loaders),
    }
    return RankFacts(**{**known, **more})


def rank_trace(*, node: str = "node-a", rank: int = 0, communicated: Sequence[float] = ()) -> RankTrace:
    """A trace with steps of 1 s, and without the collectives in which the rank communicated."""
    steps = len(communicated)
    nothing, times = np.empty(0, np.int64), np.empty(0)
    return RankTrace(
        node=node,
        rank=rank,
        groups=(),
        group=nothing,
        operations=(),
        sequence=nothing,
        peers=nothing,
        starts=times,
        ends=times,
        step=nothing,
        exposed=np.empty((0, 2)),
        numbers=np.arange(steps),
        durations=np.ones(steps),
        communicated=np.array(communicated),
        work=np.zeros((steps, len(WORK))),
    )


def run_facts(*, ranks: Iterable[RankFacts] = (), nodes: Iterable[NodeFacts] = (), **more: Any) -> RunFacts:
    known: dict[str, Any] = {"name": "made-up", "start": START, "interval": INTERVAL}
    return RunFacts(**{**known, **more}, ranks=tuple(ranks), nodes=tuple(nodes))


def cut(chunk: NodeSamples | Steps, rows: int) -> Iterator[NodeSamples | Steps]:
    """The chunk in pieces of so many rows."""
    for start in range(0, len(chunk), rows):
        yield piece(chunk, start, start + rows)


def piece(chunk: Any, start: int, stop: int) -> Any:
    """Some rows of a chunk."""
    arrays = {
        item.name: getattr(chunk, item.name)[start:stop]
        for item in fields(chunk)
        if isinstance(getattr(chunk, item.name), np.ndarray)
    }
    return replace(chunk, **arrays)
