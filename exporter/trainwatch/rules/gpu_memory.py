"""The memory of each GPU, followed over a run: for GPUMemoryLeak and GPUMemoryNearlyFull."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.growth import Lows
from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import P, Rule, Verdict, status_of
from trainwatch.runs.model import Floats, NodeSamples, RunFacts, Times, gpu_labels
from trainwatch.words import too_few


class FollowedMemory(NodeState, ABC):
    """The lowest use of memory of each GPU of a node, and what scans find after `patience` snapshots."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.lows = Lows()
        self.judged = 0
        self.triggered: NDArray[np.int64] = np.zeros(0, np.int64)  # scans by GPU

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.add_gpus(samples.gpu_memory.shape[1] - len(self.triggered))
        start = 0
        for end in scans:
            self.take(samples.times[start:end], samples.gpu_memory[start:end])
            self.scan()
            start = int(end)
        self.take(samples.times[start:], samples.gpu_memory[start:])

    def add_gpus(self, more: int) -> None:
        """There are so many more GPUs than before."""
        self.triggered = np.pad(self.triggered, (0, more))

    def take(self, times: Times, memory: Floats) -> None:
        """Snapshots of one scan; `memory` is (n, GPUs), a ratio, NaN where it was not read."""
        self.lows.add(times, memory)

    def scan(self) -> None:
        trouble = self.in_trouble() if self.lows.rows > self.patience else None
        if trouble is not None:
            self.judged += 1
            self.triggered = self.triggered + trouble

    @abstractmethod
    def in_trouble(self) -> NDArray[np.bool_] | None:
        """(GPUs,) by what was read up to the end of this scan; None: there is nothing to judge."""

    @abstractmethod
    def told(self) -> list[dict[str, Any]]:
        """Of each GPU, what the details say of it."""


M = TypeVar("M", bound=FollowedMemory)


class FollowsMemory(Rule[P, M], Generic[P, M]):
    """The verdict that both rules share. They claim no seconds lost."""

    def judge(self, nodes: Mapping[str, M], facts: RunFacts) -> Verdict:
        triggered = sum(int(node.triggered.sum()) for node in nodes.values())
        judged = sum(node.judged for node in nodes.values())
        gpus = [
            {"node": name, "gpu": label, "triggered": scans, **told}
            for name, node in nodes.items()
            for label, scans, told in zip(
                gpu_labels(facts, name, len(node.triggered)),
                node.triggered.tolist(),
                node.told(),
                strict=True,
            )
        ]
        return Verdict(
            status_of(triggered, judged),
            self.finding(gpus) if judged else _why_not(list(nodes.values())),
            triggered,
            triggered,
            sum(node.lows.rows for node in nodes.values()),
            details={"gpus": gpus},
        )

    @abstractmethod
    def finding(self, gpus: list[dict[str, Any]]) -> str:
        """The result in words, of what the details say of each GPU; some could be judged."""


def _why_not(nodes: list[FollowedMemory]) -> str:
    if not any(node.lows.known for node in nodes):
        return "The memory of no GPU was read."
    longest = max(nodes, key=lambda node: node.lows.rows)
    return too_few("snapshots", longest.lows.rows, longest.patience)


def known(value: float) -> float | None:
    """As JSON has it: NaN is nothing."""
    return None if np.isnan(value) else value
