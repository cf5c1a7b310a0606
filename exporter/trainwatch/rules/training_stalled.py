"""TrainingStalled: no step is made for many times the usual duration, though the process lives.

Source: our own. NVIDIA's fault tolerance package (nvidia-resiliency-ext) also takes a rank for hung when its
heartbeat stays away for a multiple (5, its safety factor) of the longest interval seen; a multiple of the
usual interval needs no run before this one, and a least number of minutes keeps short runs quiet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from trainwatch.measurements.sketch import SizeSketch
from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.data_loading import ranks_of
from trainwatch.rules.parameters import Factor, Minutes, Parameters, StepCount
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import COMPONENTS, PHASES, RankFacts, RunFacts, Steps, Times
from trainwatch.words import count, duration, too_few

# Time that a step is known to have spent in these is no stall; StepOutlier speaks of it.
KNOWN_WORK = [COMPONENTS.index("checkpoint"), COMPONENTS.index("compile")]
LONGEST_KEPT = 1000  # pauses of a rank


@dataclass(frozen=True)
class TrainingStalledParameters(Parameters):
    factor: Annotated[Factor, "a stall lasts longer than this many times the usual time between steps"] = 20
    minimum: Annotated[Minutes, "a stall lasts longer than this, however short the steps are"] = 1
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20


class Stall(NamedTuple):
    """No step from `start` (seconds since the epoch) on; `end` is None while that lasts."""

    rank: int
    start: float
    seconds: float  # so far
    end: float | None


@rule
class TrainingStalled(Rule[TrainingStalledParameters, "NodeOfPauses"]):
    """Seconds lost: what stalls took beyond the usual time between steps, on the rank that lost most."""

    parameters_type = TrainingStalledParameters
    subject = "A standstill"
    question = "Does training stand still although its processes live?"
    description = (
        "Compares the time from the end of a step to the end of the next one, or to now, with what is usual "
        "for the rank. A process that hangs in a collective or on a dead file system looks like this."
    )
    recommendation = (
        "See where the processes wait (py-spy dump --pid PID, NCCL's flight recorder): first on the rank "
        "that stopped first. Checkpoints and evaluations between steps should be marked as phases."
    )
    view = "progress"
    symptom = IDLE_GPUS

    def node(self) -> NodeOfPauses:
        return NodeOfPauses(self.parameters)

    def judge(self, nodes: Mapping[str, NodeOfPauses], facts: RunFacts) -> Verdict:
        ranks = {
            (name, rank): pauses
            for name, node in nodes.items()
            for rank, pauses in sorted(node.ranks.items())
            if pauses.steps > self.parameters.patience
        }
        stalls = {
            key: pauses.stalls(key[1], ranks_of(facts, key[0]).get(key[1], []), bool(facts.exit_status))
            for key, pauses in ranks.items()
        }
        found = [stall for its in stalls.values() for stall in its]
        lost = {
            key: sum(stall.seconds - ranks[key].usual for stall in its) for key, its in stalls.items() if its
        }
        return Verdict(
            status_of(len(found), len(ranks)),
            self._finding(nodes, stalls, ranks),
            len(found),
            len(found),
            sum(pauses.steps for node in nodes.values() for pauses in node.ranks.values()),
            max(lost.values(), default=0.0),
            details={"stalls": _details(stalls, ranks)},
        )

    def _finding(
        self,
        nodes: Mapping[str, NodeOfPauses],
        stalls: Mapping[tuple[str, int], list[Stall]],
        ranks: Mapping[tuple[str, int], Pauses],
    ) -> str:
        every = [(key, stall) for key, its in stalls.items() for stall in its]
        if not ranks:
            most = max((one.steps for node in nodes.values() for one in node.ranks.values()), default=0)
            if not most:
                return "No step was recorded: mark steps with trainwatch.step."
            patience = self.parameters.patience
            return too_few("steps of a rank", most, patience)
        if not every:
            return f"No rank paused for more than {self.parameters.minimum:g} min between two steps."
        now = [item for item in every if item[1].end is None]
        if now:
            key, first = min(now, key=lambda item: item[1].start)
            others = f", and {count(len(now) - 1, 'more rank')} after it" if len(now) > 1 else ""
            verb = "has made no step for"
        else:
            key, first = max(every, key=lambda item: item[1].seconds)
            others = f", the longest of {len(every)} stalls" if len(every) > 1 else ""
            verb = "made no step for"
        usual = duration(ranks[key].usual)
        return f"Rank {key[1]} {verb} {duration(first.seconds)} (usually one in {usual}){others}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Of a node's last step, of whatever rank; what is usual is the mean, not the median."""
        its = self.parameters
        first, last = (f"trainwatch_run_{which}_step_time_seconds" for which in ("first", "last"))
        steps = "run_instance:trainwatch_steps:max"
        usual = "run_instance:trainwatch_time_between_steps:mean_seconds"
        standstill = "run_instance:trainwatch_time_since_last_step:seconds"
        return PrometheusRules(
            targets="trainwatch_run_start_time_seconds",
            every=MINUTE / 2,
            records=[
                Record(
                    steps,
                    "max without (rank) (sum without (phase) (trainwatch_step_duration_seconds_count))",
                ),
                Record(usual, f"({last} - {first}) / {steps}"),
                Record(standstill, f"time() - {last} unless trainwatch_run_end_time_seconds"),
            ],
            alerts=[
                Alert(
                    f"{standstill} > clamp_min({its.factor:.12g} * {usual}, {60 * its.minimum:.12g})\n"
                    f"  and {steps} > {its.patience}",
                    severity="critical",
                    summary="Run {{ $labels.run }} stands still on {{ $labels.instance }}",
                    description="No rank of run {{ $labels.run }} on {{ $labels.instance }} has finished a "
                    "step for {{ $value | humanizeDuration }}, though its processes live (fires after "
                    f"{its.factor:g} times the usual time between steps, and {its.minimum:g} min).",
                )
            ],
        )


class NodeOfPauses(NodeState):
    def __init__(self, parameters: TrainingStalledParameters) -> None:
        self.parameters = parameters
        self.ranks: dict[int, Pauses] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        if len(steps):
            self.ranks.setdefault(steps.rank, Pauses(self.parameters)).observe(steps)


class Pauses(State):
    """The times from step to step of one rank: the usual one, and the longest."""

    def __init__(self, parameters: TrainingStalledParameters) -> None:
        self.parameters = parameters
        self.steps = 0
        self.times = SizeSketch()
        self.last_end = np.nan
        self.last_numbers: dict[int, int] = {}  # by phase
        self.longest: Times = np.empty((0, 3))  # start, end, seconds of known work in it

    def observe(self, steps: Steps) -> None:
        ends = steps.starts + steps.durations
        before = np.concatenate(([self.last_end], ends[:-1]))
        between = np.maximum(ends - before, 0)
        between[self._lost_before(steps)] = np.nan  # nobody knows how long each of the lost steps took
        self.times.add(between)
        work = steps.components[:, KNOWN_WORK].sum(axis=1)
        with np.errstate(invalid="ignore"):
            long = between - work > 60 * self.parameters.minimum
        self.longest = np.concatenate((self.longest, np.column_stack((before, ends, work))[long]))
        if len(self.longest) > LONGEST_KEPT:
            order = np.argsort(self.longest[:, 0] - self.longest[:, 1], kind="stable")[:LONGEST_KEPT]
            self.longest = self.longest[np.sort(order)]
        self.steps += len(steps)
        self.last_end = float(ends[-1])

    def _lost_before(self, steps: Steps) -> np.ndarray:
        """Where a step follows others of its phase that were counted but not recorded."""
        lost = np.zeros(len(steps), bool)
        for phase in range(len(PHASES)):
            its = np.flatnonzero(steps.phases == phase)
            if len(its):
                numbers = steps.numbers[its]
                first = self.last_numbers.get(phase, int(numbers[0]) - 1)
                lost[its] = np.diff(numbers, prepend=first) > 1
                self.last_numbers[phase] = int(numbers[-1])
        return lost

    @property
    def usual(self) -> float:
        """The median time from step to step."""
        return self.times.percentile(50)

    def stalls(self, rank: int, processes: list[RankFacts], failed: bool) -> list[Stall]:
        """Ended ones, then the one that lasts. `processes` are those of the rank, oldest first."""
        bound = max(self.parameters.factor * self.usual, 60 * self.parameters.minimum)
        starts = [process.start for process in processes]
        found = [
            Stall(rank, start, end - start - work, end)
            for start, end, work in self.longest.tolist()
            # Between two processes of a rank, nothing lived that could have made a step.
            if end - start - work > bound and not any(start < begun < end for begun in starts)
        ]
        until = _lived_until(processes[-1], failed) if processes else None
        if until is not None:
            last_end = max(self.last_end, processes[-1].last_step_end or -np.inf)
            if until - last_end > bound and processes[-1].start < last_end:
                found.append(Stall(rank, last_end, until - last_end, None))
        return found


def _lived_until(process: RankFacts, failed: bool) -> float | None:
    """The last moment at which the process lived and should have trained; None: it had finished.

    After its last step, a process that ends in good order has other things to do, but not in a run that
    failed: that one mostly stood still until somebody lost patience with it.
    """
    if process.end is None:
        return process.last_alive
    return process.end if failed else None


def _details(
    stalls: Mapping[tuple[str, int], list[Stall]], ranks: Mapping[tuple[str, int], Pauses]
) -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "rank": rank,
            "start": stall.start,
            "seconds": stall.seconds,
            "end": stall.end,
            "usual_seconds": ranks[node, rank].usual,
        }
        for (node, rank), its in stalls.items()
        for stall in its
    ]
