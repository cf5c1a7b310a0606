"""Straggler: one rank computes longer than its peers, which wait for it at each step.

Source: the ratio of 0.75 is that of NVIDIA's straggler detection (`identify_stragglers` of
nvidia-resiliency-ext), which compares each rank with the fastest one. A single fast rank does not move the
median of the peers. Ranks that wait for each other have the same step time, so the rule compares the step
time without communication, which contains the waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.scraped import (
    STEPS,
    Labels,
    Moment,
    Scraped,
    both,
    column,
    divided,
    dropped,
    gained,
    summed,
)
from trainwatch.measurements.self_times import COMMUNICATION, Peers, PeersByWindow, SelfTime, SelfTimes
from trainwatch.measurements.steps import StepDurations, StepSums
from trainwatch.rules import promql
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.judgement import Booleans, Judgement, Tallies, judgement
from trainwatch.rules.parameters import Parameters, Percent, StepWindow, fraction
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.remedies import LONG_COMPONENT
from trainwatch.rules.topics import LONG_COMMUNICATION
from trainwatch.runs.model import COMPONENTS, Times
from trainwatch.words import count, duration

OWN = "run_instance_rank:trainwatch_step_self_time:mean_seconds"
PEERS = "run_instance_rank:trainwatch_peers_self_time:ratio"
COMPONENT_SECONDS = "trainwatch_step_component_seconds_total"
MINUTES_COMPARED = 5  # by Prometheus, which does not know the numbers of steps


@dataclass(frozen=True)
class StragglerParameters(Parameters):
    threshold: Annotated[Percent, "the peers' median self time is below this share of the straggler's"] = 75
    share: Annotated[Percent, "and the straggler is the slowest for more than this share of the window"] = 50
    window: Annotated[StepWindow, "ranks are compared over this many steps (rounded up to tens)"] = 100


@rule
class Straggler(Rule[StragglerParameters, Peers]):
    """Seconds lost: the straggler's self time beyond its peers' median, in the windows that fired."""

    parameters_type = StragglerParameters
    subject = "Waiting for a slow rank"
    question = "Does one rank compute longer than its peers, so that they wait for it?"
    description = (
        "Compares the self time of ranks, step by step: the step time without communication, because fast "
        "ranks wait for slow ones there. All ranks of the run are peers, on the same node or not."
    )
    recommendation = (
        "Look at that rank's machine: a hot or slow GPU, a core that others use, a slow disk. If the slow "
        "rank changes, look at the data instead: batches of uneven size."
    )
    topic = "slow ranks"
    view = "ranks"
    symptom = LONG_COMMUNICATION

    @property
    def measure(self) -> SelfTime:
        return SelfTime()

    @property
    def details_of(self) -> tuple[StepDurations]:
        return (StepDurations(),)

    def judge(self, view: Peers) -> Judgement:
        is_slow = view.ratio < fraction(self.parameters.threshold)
        is_slowest = view.slowest > fraction(self.parameters.share)
        return judgement(~np.isnan(view.ratio), (view.ratio, is_slow & is_slowest))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: over minutes instead of steps, with the peers' mean instead of the median."""
        parameters = self.parameters
        train = '{phase="train"}'
        seconds_gained, steps = (
            promql.gained(f"{STEPS}_{part}{train}", self._window(scraping), whole=False)
            for part in ("sum", "count")
        )
        communicated = promql.gained(
            f'{COMPONENT_SECONDS}{{component="communication"}}', self._window(scraping), whole=False
        )
        peers = "on (job, run) group_left ()"
        return PrometheusRules(
            every=2 * MINUTE,
            targets=f"sum without (phase) ({STEPS}_count)",
            records=[
                Record(
                    OWN,
                    f"""
                    clamp_min(
                      {seconds_gained}
                        - ignoring (phase, component)
                      {communicated},
                      0
                    )
                      / ignoring (phase)
                    ({steps} >= {parameters.window})
                    """,
                ),
                Record(
                    PEERS,
                    f"""
                    (-1 * {OWN} + {peers} sum by (job, run) ({OWN}))
                      / {peers} (count by (job, run) ({OWN}) - 1)
                      / {OWN}
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{PEERS} < {ratio(parameters.threshold)}\n"
                    f"  and {OWN} >= {peers} max by (job, run) ({OWN})",
                    summary="Rank {{ $labels.rank }} of run {{ $labels.run }} is a straggler",
                    description="Rank {{ $labels.rank }} of run {{ $labels.run }} on {{ $labels.instance }} "
                    "is a straggler: its peers need only {{ $value | humanizePercentage }} of its compute "
                    f"time per step (fires below {parameters.threshold:g} %).",
                    keep_firing=300,
                )
            ],
        )

    def _window(self, scraping: Scraping) -> float:
        """Returns the seconds over which Prometheus compares ranks."""
        return scraping.interval * math.ceil(MINUTES_COMPARED * 60 / scraping.interval)

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Peers]:
        """Returns the ratios of all ranks; ranks of one run are peers, on any node."""
        seconds = self._window(scraping)
        took, steps = (
            dropped(gained(now, f"{STEPS}_{part}", 'phase="train"', seconds, whole=False), "phase")
            for part in ("sum", "count")
        )
        communication = 'component="communication"'
        communicated = dropped(
            gained(now, COMPONENT_SECONDS, communication, seconds, whole=False), "component"
        )
        enough = {labels: count for labels, count in steps.items() if count >= self.parameters.window}
        computed = both(took, communicated, lambda whole, waited: max(whole - waited, 0))
        own, ratios = now.recorded(OWN), now.recorded(PEERS)
        by_run: dict[Labels, list[float]] = {}
        for labels, mean in own.items():
            by_run.setdefault(_run(labels), []).append(mean)
        expected = {
            labels: divided(divided(sum(ranks) - mean, len(ranks) - 1), mean)
            for labels, mean in own.items()
            for ranks in (by_run[_run(labels)],)
        }
        # The window counts as a whole: its slowest rank is the slowest for all of it.
        slowest = {labels: math.inf for labels, mean in own.items() if mean >= max(by_run[_run(labels)])}
        ranks = list(ratios)
        return Scraped(
            ranks,
            Peers(column(ratios, ranks), column(slowest, ranks)),
            summed(now(f"{STEPS}_count"), "phase"),
            {OWN: both(computed, enough, divided), PEERS: expected},
        )

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        ranks = [
            Rank(name, rank, times, run.nodes[name][StepDurations()].durations[rank, "train"].sums)
            for name, node in run.of(self.measure).items()
            for rank, times in sorted(node.ranks.items())
        ]
        windows = PeersByWindow([rank.times for rank in ranks], self.parameters.window)
        judged = self.judge(windows.view)
        fired, windows_judged = judged.fired, int(judged.enough.any(axis=0).sum())
        lost: Times = np.where(fired, windows.own - windows.peers, 0).sum(axis=1) * windows.steps
        worst = int(lost.argmax()) if fired.any() else None
        component = _component(ranks, worst) if worst is not None else None
        triggered = int(fired.sum())
        if not windows_judged:
            finding = _why_not(ranks, windows.steps)
        elif worst is None:
            finding = "No rank computed much longer than its peers"
            if not any(rank.sums.components[COMMUNICATION] for rank in ranks):
                finding += "; communication was not timed, so waiting ranks count as computing"
        else:
            finding = _slow(ranks[worst], windows, fired, worst, windows_judged)
            if component:
                finding += f"; most of the difference is {component}"
            others = int(fired.any(axis=1).sum()) - 1
            if others:
                finding += (
                    f"; {count(others, 'more rank')} {'was' if others == 1 else 'were'} slow at other times"
                )
        return Verdict(
            status_of(triggered, windows_judged),
            f"{finding}.",
            triggered,
            triggered,
            sum(rank.sums.count for rank in ranks),
            float(lost[worst]) if worst is not None else 0.0,
            LONG_COMPONENT.get(component or ""),
            {
                "window": windows.steps,
                "windows": windows_judged,
                "ranks": [
                    {
                        "node": rank.node,
                        "rank": rank.rank,
                        "self_seconds": rank.mean,
                        "triggered": int(fired[row].sum()),
                        "seconds_lost": float(lost[row]),
                    }
                    for row, rank in enumerate(ranks)
                ],
            },
        )


class Rank(NamedTuple):
    """The training steps of one rank."""

    node: str
    rank: int
    times: SelfTimes
    sums: StepSums

    @property
    def mean(self) -> float:
        """Returns the mean self time."""
        return self.times.seconds / self.sums.count


def _why_not(ranks: Sequence[Rank], needed: int) -> str:
    if not ranks:
        return "A straggler needs peers: no rank's training steps were recorded"
    if len(ranks) == 1:
        return "A straggler needs peers: only one rank's training steps were recorded"
    most = min(rank.sums.count for rank in ranks)
    return f"Too few training steps that ranks have in common: {most}, of {needed} needed"


def _slow(rank: Rank, windows: PeersByWindow, fired: Booleans, row: int, judged: int) -> str:
    slow = fired[row]
    own, peers = (duration(float(seconds[row, slow].mean())) for seconds in (windows.own, windows.peers))
    return (
        f"Rank {rank.rank} on {rank.node} computed for {own} per step, and its peers for {peers}, "
        f"in {int(slow.sum())} of {judged} windows of {windows.steps} steps"
    )


def _component(ranks: Sequence[Rank], worst: int) -> str | None:
    """Returns the component with more than half of the rank's time beyond its peers in the whole run."""
    by_component = np.array([rank.sums.components / rank.sums.count for rank in ranks])
    own_seconds = np.array([rank.mean for rank in ranks])
    others = np.arange(len(ranks)) != worst
    excess = own_seconds[worst] - np.median(own_seconds[others])
    beyond: Times = by_component[worst] - np.median(by_component[others], axis=0)
    beyond[COMMUNICATION] = 0
    most = int(beyond.argmax())
    return COMPONENTS[most] if beyond[most] > excess / 2 > 0 else None


def _run(labels: Labels) -> Labels:
    return frozenset(label for label in labels if label[0] in ("job", "run"))
