"""Straggler: one rank computes longer than the others, which wait for it at each step.

Source: the ratio of 0.75 is that of NVIDIA's straggler detection (`identify_stragglers` of
nvidia-resiliency-ext), which compares each rank with the fastest one; the median of the peers is not moved
by a single fast rank. Step times tell nothing here: ranks that wait for each other all take as long as the
slowest. What remains of a step when its communication, and so its waiting, is left out does tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import Parameters, Percent, StepWindow
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, gained, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.remedies import LONG_COMPONENT
from trainwatch.rules.topics import LONG_COMMUNICATION
from trainwatch.runs.model import COMPONENTS, PHASES, RunFacts, Steps, Times
from trainwatch.words import duration

COMMUNICATION = COMPONENTS.index("communication")
TRAIN = PHASES.index("train")
SLICE = 10  # steps, of which the mean is kept: 1.6 bytes a step
_OF_A_PROCESS = 1 << 40  # slices; the numbers of the slices of a rank's second process begin here
_PIECE = 4096  # slices
MINUTES_COMPARED = 5  # by Prometheus, which does not know which step is which

Key = tuple[str, int]  # node and rank


@dataclass(frozen=True)
class StragglerParameters(Parameters):
    threshold: Annotated[
        Percent, "the peers' median self time is below this share of that of a straggler"
    ] = 75
    share: Annotated[Percent, "and the straggler is the slowest for more than this share of the window"] = 50
    window: Annotated[StepWindow, "ranks are compared over this many steps (rounded up to tens)"] = 100


@rule
class Straggler(Rule[StragglerParameters, "NodeOfRanks"]):
    """Seconds lost: self time of the straggler beyond the median of its peers, in the windows that fired."""

    parameters_type = StragglerParameters
    subject = "Waiting for a slow rank"
    question = "Does one rank compute longer than its peers, so that they wait for it?"
    description = (
        "Compares the self time of ranks, step by step: the step time without communication, in which a fast "
        "rank waits for a slow one. All ranks of the run are one peer group, on whatever node they are."
    )
    recommendation = (
        "Look at that rank's machine: a hot or slow GPU, a core that others use, a slow disk. Where it moves "
        "from rank to rank, look at the data instead: batches of uneven size."
    )
    topic = "slow ranks"
    view = "ranks"
    symptom = LONG_COMMUNICATION

    def node(self) -> NodeOfRanks:
        return NodeOfRanks()

    def judge(self, nodes: Mapping[str, NodeOfRanks], facts: RunFacts) -> Verdict:
        ranks = {
            (name, rank): slices
            for name, node in nodes.items()
            for rank, slices in sorted(node.ranks.items())
        }
        windows = _Windows(list(ranks.values()), self.parameters)
        lost = windows.seconds_lost()
        worst = int(lost.argmax()) if windows.fired.any() else None
        component = _component(list(ranks.values()), worst) if worst is not None else None
        triggered = int(windows.fired.sum())
        return Verdict(
            status_of(triggered, int(windows.judged.sum())),
            self._finding(ranks, windows, worst, component),
            triggered,
            triggered,
            sum(slices.steps for slices in ranks.values()),
            float(lost[worst]) if worst is not None else 0.0,
            LONG_COMPONENT.get(component or ""),
            {
                "window": windows.steps,
                "windows": int(windows.judged.sum()),
                "ranks": [
                    {
                        "node": name,
                        "rank": rank,
                        "self_seconds": slices.mean,
                        "triggered": int(windows.fired[row].sum()),
                        "seconds_lost": float(lost[row]),
                    }
                    for row, ((name, rank), slices) in enumerate(ranks.items())
                ],
            },
        )

    def _finding(
        self, ranks: Mapping[Key, Slices], windows: _Windows, worst: int | None, component: str | None
    ) -> str:
        if not windows.judged.any():
            if len(ranks) < 2:
                return "A straggler has peers: the training steps of " + (
                    "only one rank were recorded." if ranks else "no rank were recorded."
                )
            most = min(slices.steps for slices in ranks.values())
            return f"Too few training steps that ranks have in common: {most}, of {windows.steps} needed."
        silent = not any(slices.component_sums[COMMUNICATION] for slices in ranks.values())
        if worst is None:
            sentence = "No rank computed much longer than its peers"
            if silent:
                sentence += "; communication was not timed, so that ranks which wait are taken to compute"
            return f"{sentence}."
        name, rank = list(ranks)[worst]
        own, peers = windows.when_fired(worst)
        sentence = (
            f"Rank {rank} on {name} took {duration(own)} a step by itself, its peers {duration(peers)}, "
            f"in {int(windows.fired[worst].sum())} of {int(windows.judged.sum())} windows "
            f"of {windows.steps} steps"
        )
        others = int(windows.fired.any(axis=1).sum()) - 1
        if component:
            sentence += f"; the difference lies in {component}"
        return f"{sentence}; so did {others} more, at other times." if others else f"{sentence}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Over minutes instead of steps, and with the mean of the peers: PromQL knows no median of others."""
        its = self.parameters
        train = '{phase="train"}'
        seconds_gained, steps = (
            gained(f"trainwatch_step_duration_seconds_{part}{train}", self._window(scraping), whole=False)
            for part in ("sum", "count")
        )
        communicated = gained(
            'trainwatch_step_component_seconds_total{component="communication"}',
            self._window(scraping),
            whole=False,
        )
        own = "run_instance_rank:trainwatch_step_self_time:mean_seconds"
        share = "run_instance_rank:trainwatch_peers_self_time:ratio"
        peers = "on (job, run) group_left ()"
        return PrometheusRules(
            every=2 * MINUTE,
            targets="sum without (phase) (trainwatch_step_duration_seconds_count)",
            records=[
                Record(
                    own,
                    f"""
                    clamp_min(
                      {seconds_gained}
                        - ignoring (phase, component)
                      {communicated},
                      0
                    )
                      / ignoring (phase)
                    ({steps} >= {its.window})
                    """,
                ),
                Record(
                    share,
                    f"""
                    (-1 * {own} + {peers} sum by (job, run) ({own}))
                      / {peers} (count by (job, run) ({own}) - 1)
                      / {own}
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{share} < {ratio(its.threshold)}\n  and {own} >= {peers} max by (job, run) ({own})",
                    summary="Rank {{ $labels.rank }} of run {{ $labels.run }} holds up its peers",
                    description="In the last minutes the peers of rank {{ $labels.rank }} of run "
                    "{{ $labels.run }}, on {{ $labels.instance }}, took only "
                    f"{{{{ $value | humanizePercentage }}}} of the time that it takes for a step by itself "
                    f"(fires below {its.threshold:g} %).",
                    keep_firing=300,
                )
            ],
        )

    def _window(self, scraping: Scraping) -> float:
        """Seconds over which ranks are compared in Prometheus."""
        return scraping.interval * math.ceil(MINUTES_COMPARED * 60 / scraping.interval)


class NodeOfRanks(NodeState):
    def __init__(self) -> None:
        self.ranks: dict[int, Slices] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        its = steps.phases == TRAIN
        if its.any():
            slices = self.ranks.setdefault(steps.rank, Slices())
            slices.observe(steps.numbers[its], steps.durations[its], steps.components[its])


class Slices(State):
    """The mean self time of each `SLICE` training steps of one rank, by their numbers."""

    def __init__(self) -> None:
        self.steps = 0
        self.process = 0  # step numbers begin anew with each process of a rank
        self.last_number = -1
        self.sum = 0.0
        self.component_sums: Times = np.zeros(len(COMPONENTS))
        self.whole: list[Times] = []  # rows: the slice's number, its mean; pieces of bounded length
        self.recent: Times = np.empty((0, 2))
        self.open: Times = np.empty((0, 3))  # at most one row: the last slice's number, sum and steps

    def observe(self, numbers: NDArray[np.int64], durations: Times, components: Times) -> None:
        own = np.maximum(durations - components[:, COMMUNICATION], 0)
        self.steps += len(own)
        self.sum += float(own.sum())
        self.component_sums = self.component_sums + components.sum(axis=0)
        anew = np.cumsum(np.diff(numbers, prepend=self.last_number) <= 0)
        ids = (self.process + anew) * _OF_A_PROCESS + numbers // SLICE
        self.process += int(anew[-1])
        self.last_number = int(numbers[-1])
        starts = np.flatnonzero(np.diff(ids, prepend=-1))
        found = np.column_stack(
            (ids[starts], np.add.reduceat(own, starts), np.diff(starts, append=len(own)))
        ).astype(np.float64)
        if len(self.open) and self.open[0, 0] == found[0, 0]:
            found[0, 1:] += self.open[0, 1:]
        else:
            found = np.concatenate((self.open, found))
        self.open = found[-1:]
        closed = np.column_stack((found[:-1, 0], found[:-1, 1] / found[:-1, 2]))
        self.recent = np.concatenate((self.recent, closed))
        if len(self.recent) >= _PIECE:
            self.whole.append(self.recent)
            self.recent = np.empty((0, 2))

    @property
    def mean(self) -> float:
        return self.sum / self.steps

    def means(self) -> Times:
        """Rows of a slice's number and its mean; the last slice only once it has ended."""
        number, total, steps = self.open[0]
        ended = self.last_number % SLICE == SLICE - 1
        last = [[number, total / steps]] if ended else np.empty((0, 2))
        return np.concatenate((*self.whole, self.recent, last))


class _Windows:
    """All ranks compared, window by window: arrays of (ranks, windows)."""

    def __init__(self, ranks: list[Slices], parameters: StragglerParameters) -> None:
        slices = -(-parameters.window // SLICE)
        self.steps = slices * SLICE
        table = _table([rank.means() for rank in ranks], slices)
        table[np.isnan(table).any(axis=2)] = np.nan  # only ranks that have all of a window take part in it
        self.own: Times = table.mean(axis=2)
        self.peers = _median_of_others(self.own)
        self.judged = (~np.isnan(self.peers)).any(axis=0)
        slowest = table == np.fmax.reduce(table, axis=0) if len(ranks) else np.zeros(table.shape, bool)
        self.fired: NDArray[np.bool_] = (100 * self.peers < parameters.threshold * self.own) & (
            100 * slowest.mean(axis=2) > parameters.share
        )

    def seconds_lost(self) -> Times:
        """By rank."""
        excess: Times = np.where(self.fired, self.own - self.peers, 0).sum(axis=1) * self.steps
        return excess

    def when_fired(self, rank: int) -> tuple[float, float]:
        """The rank's mean self time and the median of its peers, in the windows in which it fired."""
        fired = self.fired[rank]
        return float(self.own[rank, fired].mean()), float(self.peers[rank, fired].mean())


def _table(means: list[Times], slices: int) -> Times:
    """(ranks, windows, slices of a window), NaN where a rank has no such slice."""
    numbers = np.concatenate([rank[:, 0] for rank in means] or [np.empty(0)]).astype(np.int64)
    window_of = numbers // _OF_A_PROCESS * _OF_A_PROCESS + numbers % _OF_A_PROCESS // slices
    windows, places = np.unique(window_of, return_inverse=True)
    table = np.full((len(means), len(windows), slices), np.nan)
    rows = np.repeat(np.arange(len(means)), [len(rank) for rank in means])
    table[rows, places, numbers % _OF_A_PROCESS % slices] = np.concatenate(
        [rank[:, 1] for rank in means] or [np.empty(0)]
    )
    return table


def _median_of_others(values: Times) -> Times:
    """For each value of a column the median of the others of the column; NaN is no value, and has none."""
    places = values.argsort(axis=0).argsort(axis=0)  # NaN come last
    ordered = np.sort(values, axis=0)
    others = (~np.isnan(values)).sum(axis=0) - 1
    low, high = np.maximum((others - 1) // 2, 0), np.maximum(others // 2, 0)
    columns = np.arange(values.shape[1])

    def other(index: NDArray[np.intp]) -> Times:
        """The other at this place in the order of the others: behind the value itself one further."""
        found = index + (index >= places)
        return ordered[np.minimum(found, max(len(values) - 1, 0)), columns]

    if not values.size:
        return values
    medians: Times = (other(low) + other(high)) / 2
    medians[np.isnan(values) | (others < 1)] = np.nan
    return medians


def _component(ranks: list[Slices], worst: int) -> str | None:
    """The component that holds more than half of what the rank takes beyond its peers, over the whole run."""
    by_component = np.array([rank.component_sums / rank.steps for rank in ranks])
    own_seconds = np.array([rank.mean for rank in ranks])
    others = np.arange(len(ranks)) != worst
    excess = own_seconds[worst] - np.median(own_seconds[others])
    beyond: NDArray[Any] = by_component[worst] - np.median(by_component[others], axis=0)
    beyond[COMMUNICATION] = 0
    most = int(beyond.argmax())
    return COMPONENTS[most] if beyond[most] > excess / 2 > 0 else None
