"""GPUMemoryIncrease: the memory that a GPU uses has grown within a short time.

Source: SageMaker Debugger's GPUMemoryIncrease, which compares each moving average with the one a reading
before: growth spread over more than a reading was never seen. Here it is compared with the lowest of the
last `horizon`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.sketch import RatioSketch
from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import Bounds, Parameters, Percent, Samples, Window
from trainwatch.rules.promql import (
    MINUTE,
    Alert,
    PrometheusRules,
    Record,
    Scraping,
    gained,
    ratio,
    time_span,
)
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import Floats, NodeSamples, RunFacts, Times, gpu_labels
from trainwatch.status import Status
from trainwatch.words import too_few

# Readings are float32: what lies this close (in percentage points, as decimals) is taken for the same.
DIGITS = 4

Horizon = Annotated[float, Bounds(0, 60, "minutes")]


@dataclass(frozen=True)
class GPUMemoryIncreaseParameters(Parameters):
    increase: Annotated[Percent, "the moving average rose by more than so many points of the memory"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "moving averages are over this many readings"] = 10
    horizon: Annotated[Horizon, "the rise is counted from the lowest moving average of so long"] = 1


@rule
class GPUMemoryIncrease(Rule[GPUMemoryIncreaseParameters, "NodeOfMemories"]):
    """It warns of a run that may die for want of memory; no seconds are lost yet."""

    parameters_type = GPUMemoryIncreaseParameters
    subject = "A sudden rise of GPU memory"
    question = "Does a GPU suddenly use much more memory?"
    description = (
        "Follows the moving average of each GPU's used memory. A steep rise in the middle of a run means "
        "larger inputs, or tensors that are kept: the run may end for want of memory."
    )
    recommendation = (
        "Look for tensors that outlive their step (losses summed without .item(), lists of outputs) and for "
        "inputs of growing length; where memory is only kept for re-use, there is nothing to mend."
    )
    topic = "GPU memory"
    distance = 2
    view = "memory"
    effect = Effect.RISK

    def node(self) -> NodeOfMemories:
        return NodeOfMemories(self.parameters)

    def judge(self, nodes: Mapping[str, NodeOfMemories], facts: RunFacts) -> Verdict:
        triggered = sum(node.triggered for node in nodes.values())
        status = status_of(triggered, sum(node.judged for node in nodes.values()))
        return Verdict(
            status,
            self._finding(nodes, facts, status),
            triggered,
            sum(gpu.concerned for node in nodes.values() for gpu in node.gpus),
            sum(max((gpu.readings.count for gpu in node.gpus), default=0) for node in nodes.values()),
            details=_details(nodes, facts),
        )

    def _finding(self, nodes: Mapping[str, NodeOfMemories], facts: RunFacts, status: Status) -> str:
        its = self.parameters
        gpus = [
            (gpu, f"{label} of {name}")
            for name, node in nodes.items()
            for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True)
        ]
        most = max((gpu.readings.count for gpu, _ in gpus), default=0)
        if not most:
            return "The memory of no GPU was read."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, its.patience)
        gpu, name = max(gpus, key=lambda item: item[0].largest)
        if status is Status.HEALTHY:
            return (
                f"No GPU's used memory rose by more than {its.increase:g} points within {its.horizon:g} min."
            )
        return (
            f"The used memory of {name} rose by {gpu.largest:.1f} points within {its.horizon:g} min, "
            f"and reached {100 * gpu.readings.max:.0f} %."
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Moving averages are at least of what lies between two scrapes, and one a scrape."""
        its = self.parameters
        samples = "trainwatch_gpu_memory_samples"
        window, whole = scraping.window(its.window), its.patience >= its.window
        mean = "run_instance_gpu:trainwatch_gpu_memory:mean"
        rise = "run_instance_gpu:trainwatch_gpu_memory:rise"
        horizon = time_span(scraping.reach(60 * its.horizon))
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        return PrometheusRules(
            targets=f"{samples}_count",
            every=MINUTE,
            records=[
                Record(
                    mean,
                    f"{gained(f'{samples}_sum', window, whole)}\n"
                    f"  / {gained(f'{samples}_count', window, whole)}",
                ),
                Record(rise, f"round({mean} - min_over_time({mean}[{horizon}]), 0.000001)"),
            ],
            alerts=[
                Alert(
                    f"{rise} > {ratio(its.increase)} and {samples}_count > {its.patience}",
                    summary=f"{where} suddenly uses much more memory",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {where} rose by "
                    f"{{{{ $value | humanizePercentage }}}} of all its memory within {its.horizon:g} min "
                    f"(fires above {its.increase:g} %).",
                    keep_firing=300,  # a rise is over when it is seen
                )
            ],
        )


class NodeOfMemories(NodeState):
    """RuleTriggered: scans in whose time the memory of some GPU was found to have risen."""

    def __init__(self, parameters: GPUMemoryIncreaseParameters) -> None:
        self.parameters = parameters
        self.gpus: list[OneMemory] = []
        self.triggered = self.judged = 0
        self.since_scan = (0, 0)  # snapshots with a rise, and with a decision, since the last scan

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        while len(self.gpus) < samples.gpu_memory.shape[1]:
            self.gpus.append(OneMemory(self.parameters))
        rose, decided = np.zeros((2, len(samples)), bool)
        for gpu, column in zip(self.gpus, samples.gpu_memory.T, strict=True):
            its_rose, its_decided = gpu.observe(column, samples.times)
            rose |= its_rose
            decided |= its_decided
        self.triggered += self._scans_with(rose, scans, 0)
        self.judged += self._scans_with(decided, scans, 1)
        last = scans[-1] if len(scans) else 0
        before = (0, 0) if len(scans) else self.since_scan
        self.since_scan = (
            before[0] + int(np.count_nonzero(rose[last:])),
            before[1] + int(np.count_nonzero(decided[last:])),
        )

    def _scans_with(self, rows: NDArray[np.bool_], scans: Scans, kind: int) -> int:
        """How many scans have such a row since the scan before."""
        until = self.since_scan[kind] + np.concatenate(([0], np.cumsum(rows)))[scans]
        return int(np.count_nonzero(np.diff(until, prepend=0)))


class OneMemory(State):
    """The used memory of one GPU: its last readings, and its moving averages within the horizon."""

    def __init__(self, parameters: GPUMemoryIncreaseParameters) -> None:
        self.parameters = parameters
        self.readings = RatioSketch()
        self.recent: Floats = np.empty(0, np.float32)  # at most a window less one
        self.averages: Times = np.empty(0)
        self.times: Times = np.empty(0)  # of the averages
        self.concerned = 0
        self.largest = 0.0  # rise in percentage points, of those that were too much
        self.last_rose = np.nan

    def observe(self, column: Floats, times: Times) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each row, whether memory had risen by too much, and whether that could be decided."""
        there = np.flatnonzero(~np.isnan(column))
        count = self.readings.count
        self.readings.add(column)
        new = self._new_averages(column[there], times[there])
        rose, decided = np.zeros((2, len(column)), bool)
        if not new:
            return rose, decided
        rises = np.round(100 * self._rises(new), DIGITS)
        enough = count + np.arange(len(there) - new, len(there)) + 1 > self.parameters.patience
        rows = there[-new:]
        decided[rows] = enough
        rose[rows] = enough & (rises > self.parameters.increase)
        self.concerned += int(np.count_nonzero(rose))
        if rose.any():
            self.largest = max(self.largest, float(rises[rose[rows]].max()))
            self.last_rose = float(times[rose][-1])
        return rose, decided

    def _new_averages(self, values: Floats, times: Times) -> int:
        """Takes in readings; returns how many moving averages they complete."""
        window = self.parameters.window
        history = np.concatenate((self.recent, values))
        self.recent = history[len(history) - min(len(history), window - 1) :]
        new = max(0, len(history) - window + 1)
        if new:
            sums = np.concatenate(([0.0], np.cumsum(history, dtype=np.float64)))
            self.averages = np.concatenate((self.averages, (sums[window:] - sums[:-window]) / window))
            self.times = np.concatenate((self.times, times[-new:]))
        return new

    def _rises(self, new: int) -> Times:
        """What each of the newest averages is above the lowest within the horizon; 0 if none is too much."""
        ends = np.arange(len(self.averages) - new, len(self.averages))
        starts = np.searchsorted(self.times, self.times[ends] - 60 * self.parameters.horizon)
        averages = self.averages
        self.averages, self.times = averages[starts[-1] :], self.times[starts[-1] :]
        newest: Times = averages[ends]
        widest = 100 * (newest.max() - averages[starts[0] :].min())
        if round(float(widest), DIGITS) <= self.parameters.increase:
            return np.zeros(new)  # none is too much: that is all one needs to know, and most runs are so
        rises: Times = newest - lowest_between(averages, starts, ends)
        return rises


def lowest_between(values: Times, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Times:
    """The lowest of values[start] .. values[end], both included, for each pair.

    The lowest of each run of 1, 2, 4, ... values is found once; two such runs cover any range.
    """
    levels = np.frexp(ends - starts + 1)[1] - 1  # the largest power of two that fits
    lowest = np.empty(len(ends))
    of_runs = values
    for level in range(int(levels.max()) + 1):
        if level:
            half = 2 ** (level - 1)
            of_runs = np.minimum(of_runs[:-half], of_runs[half:])
        its = levels == level
        lowest[its] = np.minimum(of_runs[starts[its]], of_runs[ends[its] - 2**level + 1])
    return lowest


def _details(nodes: Mapping[str, NodeOfMemories], facts: RunFacts) -> dict[str, Any]:
    """Debugger's box plot of each GPU whose memory rose by too much, in percent."""
    details: dict[str, Any] = {}
    for name, node in nodes.items():
        for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True):
            if gpu.concerned:
                details.setdefault(name, {})[label] = {
                    "increase": round(gpu.largest, DIGITS),
                    "gpu_max": round(100 * gpu.readings.max, DIGITS),
                    **box_plot(gpu.readings, 5),
                    "violations": gpu.concerned,
                }
    times = [gpu.last_rose for node in nodes.values() for gpu in node.gpus if gpu.concerned]
    if times:
        details["last_timestamp"] = int(max(times) * 1e6)
    return details
