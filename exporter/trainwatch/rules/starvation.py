"""Snapshots in which a GPU starves while a core is at its limit: for CPUBottleneck and IOBottleneck."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.recent_steps import DIGITS, RecentSteps
from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import P, Rule, Verdict, status_of
from trainwatch.rules.shares import inside_steps, of_phases
from trainwatch.runs.model import COMPONENTS, PHASES, Floats, NodeSamples, RunFacts, Steps
from trainwatch.words import too_few

# The details list this many of the last snapshots concerned of a node; the counts cover all of them.
SNAPSHOTS_LISTED = 10_000


class StarvedNode(NodeState):
    """Counts the snapshots of a node in which some core was above one bound and some GPU below another.

    Bounds are ratios; `threshold` is a percentage of all snapshots. Comparisons are strict.
    """

    def __init__(self, core_above: float, gpu_below: float, threshold: float, patience: int) -> None:
        self.core_above, self.gpu_below = core_above, gpu_below
        self.threshold, self.patience = threshold, patience
        self.snapshots = self.starved = self.low_gpu = 0
        self.triggered = self.judged = 0
        self.gpu_seen = self.core_seen = False
        self.last: NDArray[np.float64] = np.empty((0, 3))  # time, GPUs and cores of snapshots concerned
        self.ranks: dict[int, RecentSteps] = {}
        # (n,) of the block that was observed last: with a low GPU, and those counted as starved.
        self.low_in_block: NDArray[np.bool_] = np.empty(0, bool)
        self.starved_in_block: NDArray[np.bool_] = np.empty(0, bool)

    def observe_cores(self, cores: Floats, samples: NodeSamples, scans: Scans) -> None:
        """`cores` is (n, c): the ratio of each core that `core_above` bounds."""
        self.gpu_seen = self.gpu_seen or not np.isnan(samples.gpu).all()
        self.core_seen = self.core_seen or not np.isnan(cores).all()
        low = samples.gpu < self.gpu_below
        high = cores > self.core_above
        low_any = low.any(axis=1)
        starved = low_any & high.any(axis=1)
        self.low_in_block, self.starved_in_block = np.asarray(low_any), np.asarray(starved)
        starved_until = self.starved + np.concatenate(([0], np.cumsum(starved)))
        seen = self.snapshots + scans
        judged = seen > self.patience
        self.judged += int(np.count_nonzero(judged))
        self.triggered += int(np.count_nonzero(judged & (100 * starved_until[scans] > self.threshold * seen)))
        self.snapshots += len(samples)
        self.starved = int(starved_until[-1])
        self.low_gpu += int(np.count_nonzero(low_any))
        concerned = np.column_stack(
            (samples.times[starved], low[starved].sum(axis=1), high[starved].sum(axis=1))
        )
        self.last = np.concatenate((self.last, concerned))[-SNAPSHOTS_LISTED:]

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        self.ranks.setdefault(steps.rank, RecentSteps()).add(steps)

    @property
    def share(self) -> float:
        """Percentage of all snapshots so far."""
        return 100 * self.starved / self.snapshots if self.snapshots else 0.0


class CoresNode(StarvedNode):
    """Cores that compute."""

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.observe_cores(samples.cpu, samples, scans)


class WaitingNode(StarvedNode):
    """Cores that wait for I/O."""

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.observe_cores(samples.io_wait, samples, scans)


class Starvation(Rule[P, StarvedNode], Generic[P]):
    """The verdict that both rules share.

    Seconds lost: the snapshots concerned times the interval, on the node that lost most.
    """

    reading: ClassVar[str]  # what was read of a core: "utilisation"

    @property
    @abstractmethod
    def patience(self) -> int: ...

    @abstractmethod
    def condition(self) -> str:
        """The condition of a snapshot in words, with the bounds."""

    def judge(self, nodes: Mapping[str, StarvedNode], facts: RunFacts) -> Verdict:
        states = list(nodes.values())
        triggered = sum(state.triggered for state in states)
        status = status_of(triggered, sum(s.judged for s in states if s.gpu_seen and s.core_seen))
        return Verdict(
            status,
            self._why_not(states) if status == "not judged" else self._finding(nodes, triggered),
            triggered,
            sum(state.starved for state in states),
            sum(state.snapshots for state in states),
            max((state.starved for state in states if state.triggered), default=0) * facts.interval,
            details=_details(nodes),
        )

    def _finding(self, nodes: Mapping[str, StarvedNode], triggered: int) -> str:
        concerned = {name: state for name, state in nodes.items() if state.triggered} if triggered else nodes
        name, worst = max(concerned.items(), key=lambda item: item[1].share)
        scans = f", in {worst.triggered} of {worst.judged} scans" if triggered else ""
        return (
            f"On {name}, {self.condition()} in {worst.share:.1f} % of the snapshots "
            f"({worst.starved} of {worst.snapshots}){scans}."
        )

    def _why_not(self, states: list[StarvedNode]) -> str:
        if not any(state.snapshots for state in states):
            return "No snapshot was taken."
        if not any(state.gpu_seen for state in states):
            return "No GPU was seen, so none could starve."
        if not any(state.core_seen for state in states):
            return f"The {self.reading} of no core could be read."
        most = max(state.snapshots for state in states)
        return too_few("snapshots", most, self.patience)


def _details(nodes: Mapping[str, StarvedNode]) -> dict[str, Any]:
    """Debugger's fields, and `nodes`: the counts of each node, which Debugger mixed."""
    bottlenecks: dict[str, dict[str, int]] = {}
    for state in nodes.values():
        for time, gpus, cores in state.last.tolist():
            found = bottlenecks.setdefault(str(time), {"GPUs": 0, "CPUs": 0})
            found["GPUs"] += int(gpus)
            found["CPUs"] += int(cores)
    return {
        "bottlenecks": bottlenecks,
        "low_gpu_utilization": sum(state.low_gpu for state in nodes.values()),
        **_what_ran(nodes),
        "nodes": {
            name: {
                "triggered": state.triggered,
                "violations": state.starved,
                "datapoints": state.snapshots,
                "low_gpu_utilization": state.low_gpu,
            }
            for name, state in nodes.items()
        },
    }


def _what_ran(nodes: Mapping[str, StarvedNode]) -> dict[str, Any]:
    """Debugger's `phase`, `forward_backward` and `general` (percent): what ran at the snapshots listed."""
    told, phases, components = 0, np.zeros(len(PHASES)), np.zeros(len(COMPONENTS))
    for state in nodes.values():
        for _, rank in sorted(state.ranks.items()):
            its_told, its_phases, its_components = rank.during(state.last[:, 0])
            told, phases, components = told + its_told, phases + its_phases, components + its_components
    if not told:
        return {}
    by_phase = dict(zip(PHASES, phases.tolist(), strict=True))
    return {
        "phase": of_phases(by_phase, others=max(0.0, round(told - float(phases.sum()), DIGITS))),
        **inside_steps(dict(zip(COMPONENTS, components.tolist(), strict=True))),
    }
