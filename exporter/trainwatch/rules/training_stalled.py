"""TrainingStalled: no step finishes for many times the usual duration, although the process is alive.

Source: our own. NVIDIA's nvidia-resiliency-ext also treats a rank as hung if its heartbeat is missing for a
multiple (5, the safety factor) of the longest interval. A multiple of the usual interval needs no earlier
run, and the minimum avoids false alarms for short steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, NamedTuple

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.pauses import LongPauses, Pause, Standstills
from trainwatch.measurements.scraped import STEPS, Moment, Scraped, both, column, divided, grouped, summed
from trainwatch.measurements.steps import StepDurations
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import Factor, Minutes, Parameters, StepCount
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import ranks_of
from trainwatch.words import count, duration, too_few

MOST = "run_instance:trainwatch_steps:max"
USUAL = "run_instance:trainwatch_time_between_steps:mean_seconds"
STANDSTILL = "run_instance:trainwatch_time_since_last_step:seconds"
START = "trainwatch_run_start_time_seconds"


@dataclass(frozen=True)
class TrainingStalledParameters(Parameters):
    factor: Annotated[Factor, "a stall lasts longer than this many times the usual time between steps"] = 20
    minimum: Annotated[Minutes, "a stall lasts longer than this, however short the steps are"] = 1
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20


@rule
class TrainingStalled(Rule[TrainingStalledParameters, Standstills]):
    """Seconds lost: the time of stalls beyond the usual time between steps, on the rank that lost most."""

    parameters_type = TrainingStalledParameters
    subject = "A stall"
    question = "Has training stalled although its processes are alive?"
    description = (
        "Compares the time from the end of a step to the end of the next one, or to now, with the rank's "
        "usual time. A process that hangs in a collective or on a dead file system looks like this."
    )
    recommendation = (
        "Find out where the processes wait (py-spy dump --pid PID, NCCL's flight recorder), first on the "
        "rank that stopped first. Mark checkpoints and evaluations between steps as phases."
    )
    view = "progress"
    symptom = IDLE_GPUS

    @property
    def measure(self) -> LongPauses:
        return LongPauses(60 * self.parameters.minimum)

    @property
    def details_of(self) -> tuple[StepDurations]:
        return (StepDurations(),)

    def judge(self, view: Standstills) -> Judgement:
        parameters = self.parameters
        is_long = (view.seconds > parameters.factor * view.usual) & (view.seconds > 60 * parameters.minimum)
        return judgement(view.steps > parameters.patience, (view.seconds, is_long))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for a node's last step of any rank; the usual time is a mean, not a median."""
        factor, minimum, patience = self.parameters.factor, self.parameters.minimum, self.parameters.patience
        first, last = (f"trainwatch_run_{which}_step_time_seconds" for which in ("first", "last"))
        return PrometheusRules(
            targets=START,
            every=MINUTE / 2,
            records=[
                Record(MOST, f"max without (rank) (sum without (phase) ({STEPS}_count))"),
                Record(USUAL, f"({last} - {first}) / {MOST}"),
                Record(STANDSTILL, f"time() - {last} unless trainwatch_run_end_time_seconds"),
            ],
            alerts=[
                Alert(
                    f"{STANDSTILL} > clamp_min({factor:.12g} * {USUAL}, {60 * minimum:.12g})\n"
                    f"  and {MOST} > {patience}",
                    severity="critical",
                    summary="Run {{ $labels.run }} has stalled on {{ $labels.instance }}",
                    description="No rank of run {{ $labels.run }} on {{ $labels.instance }} has finished a "
                    "step for {{ $value | humanizeDuration }}, although its processes are alive (fires after "
                    f"{factor:g} times the usual time between steps, and {minimum:g} min).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Standstills]:
        first, last = (now(f"trainwatch_run_{which}_step_time_seconds") for which in ("first", "last"))
        steps = grouped(summed(now(f"{STEPS}_count"), "phase"), "rank")
        ended = now("trainwatch_run_end_time_seconds")
        trained = both(last, first, lambda late, early: late - early)
        records = {
            MOST: {labels: max(counts) for labels, counts in steps.items()},
            USUAL: both(trained, now.recorded(MOST), divided),
            STANDSTILL: {labels: now.time - moment for labels, moment in last.items() if labels not in ended},
        }
        nodes = list(now.recorded(STANDSTILL))
        view = Standstills(*(column(now.recorded(record), nodes) for record in (STANDSTILL, USUAL, MOST)))
        return Scraped(nodes, view, now(START), records)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        ranks = self._ranks(run)
        judged = [rank for rank in ranks if rank.judged]
        stalls = [(rank, stall) for rank in judged for stall in rank.stalls]
        return Verdict(
            status_of(len(stalls), len(judged)),
            self._finding(ranks, stalls),
            len(stalls),
            len(stalls),
            sum(rank.steps for rank in ranks),
            max((rank.lost for rank in judged), default=0.0),
            details={
                "stalls": [
                    {
                        "node": rank.node,
                        "rank": rank.rank,
                        "start": stall.start,
                        "seconds": stall.seconds,
                        "end": stall.end,
                        "usual_seconds": rank.usual,
                    }
                    for rank, stall in stalls
                ]
            },
        )

    def _ranks(self, run: RunMeasurements) -> list[Rank]:
        found = []
        for name, node in run.of(self.measure).items():
            processes = ranks_of(run.facts, name)
            for rank, measured in sorted(node.ranks.items()):
                pauses = measured.pauses(processes.get(rank, []), bool(run.facts.exit_status))
                steps, usual = run.nodes[name][StepDurations()].count(rank), measured.usual
                seconds = np.array([pause.seconds for pause in pauses])
                view = Standstills(seconds, np.full_like(seconds, usual), np.full_like(seconds, steps))
                judged = self.judge(view)
                stalls = list(compress(pauses, judged.fired))
                found.append(Rank(name, rank, steps, usual, bool(judged.enough.any()), stalls))
        return found

    def _finding(self, ranks: Sequence[Rank], stalls: Sequence[tuple[Rank, Pause]]) -> str:
        if not any(rank.judged for rank in ranks):
            most = max((rank.steps for rank in ranks), default=0)
            if not most:
                return "No step was recorded: mark steps with trainwatch.step."
            return too_few("steps of a rank", most, self.parameters.patience)
        if not stalls:
            return f"No rank paused for more than {self.parameters.minimum:g} min between two steps."
        lasting = [item for item in stalls if item[1].end is None]
        if lasting:
            rank, first = min(lasting, key=lambda item: item[1].start)
            others = f", and {count(len(lasting) - 1, 'more rank')} after it" if len(lasting) > 1 else ""
            verb = "has finished no step for"
        else:
            rank, first = max(stalls, key=lambda item: item[1].seconds)
            others = f", the longest of {len(stalls)} stalls" if len(stalls) > 1 else ""
            verb = "finished no step for"
        usual = duration(rank.usual)
        return f"Rank {rank.rank} {verb} {duration(first.seconds)} (usually one every {usual}){others}."


class Rank(NamedTuple):
    """The judged pauses of one rank."""

    node: str
    rank: int
    steps: int
    usual: float  # seconds from step to step
    judged: bool
    stalls: list[Pause]

    @property
    def lost(self) -> float:
        """Returns the seconds of stalls beyond the usual time between steps."""
        return sum((stall.seconds - self.usual for stall in self.stalls), 0.0)
