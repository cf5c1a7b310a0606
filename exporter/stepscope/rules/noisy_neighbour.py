"""NoisyNeighbour: the run waits for cores that other processes use.

Source: our own. The kernel counts for each thread how long it was ready to run but had no core (schedstat).
Others cause that wait by their share of what is used of the run's cores. Next to one busy process per core,
half of the wait is theirs and threads wait half of the time, which is 25 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import exact_percent, number, share, too_few
from stepscope.measurements.measure import Portion, RunMeasurements
from stepscope.measurements.own_cores import OWN_CORES, Contention, OwnCores
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped, column
from stepscope.rules.parts import promql
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Gain, Record
from stepscope.rules.parts.judgement import Judgement, Tallies, too_large, too_large_live
from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Parameters, Percent, Samples
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RunFacts, longest_pause, ranks_of

OWN = "stepscope_run_cpu_seconds_total"
OTHERS = "stepscope_run_other_cpu_seconds_total"
RAN = "stepscope_run_main_threads_ran_seconds_total"
WAITED = "stepscope_run_main_threads_waited_seconds_total"
SHARED_SAMPLES = "run_instance:stepscope_shared_cores:samples"
WAITED_SHARE = "run_instance:stepscope_waited_for_neighbours:ratio"
USERS_NAMED = 3


@dataclass(frozen=True)
class NoisyNeighbourParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the time of main threads"] = 10
    patience: Annotated[Samples, "decisions begin after this many samples"] = 120
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class NoisyNeighbour(Rule[NoisyNeighbourParameters, Contention]):
    """Seconds lost: the wait of a rank's main thread for a core, less what the run would wait alone."""

    parameters_type = NoisyNeighbourParameters
    subject = "Other processes on the run's cores"
    question = "Does the run wait for cores that other processes use?"
    description = (
        "Compares how long the main threads of the run's processes waited for a core with how long they ran. "
        "That wait counts by the share of others in the use of the run's cores. Waits because of a CPU limit "
        "do not count."
    )
    recommendation = (
        "Give the run cores of its own: Slurm's --exclusive or --cpus-per-task with task/affinity, "
        "Kubernetes' static CPU manager policy, or taskset. Otherwise move one of the two elsewhere."
    )
    topic = "data loading"
    distance = 0
    bands = Bands("node", [Worst("{} of the time of main threads")])
    view = "loading"
    symptom = IDLE_GPUS

    measure = OWN_CORES

    def judge(self, view: Contention) -> Judgement:
        return too_large(_portion(view), self.parameters)

    def judge_live(self, view: Contention, sample_interval: float) -> Judgement:
        return too_large_live(_portion(view), self.parameters, sample_interval)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        window = scraping.last(MINUTE * parameters.live_window)
        own, others, ran, waited = (Gain(name, window, joined=True) for name in (OWN, OTHERS, RAN, WAITED))
        targets = scraping.held(OTHERS)
        samples = Record(SHARED_SAMPLES, Gain(SAMPLES, window) & targets)
        waits, of_others = (waited / (ran + waited)).on_one_line(), (others / (others + own)).on_one_line()
        return PrometheusRules(
            targets=targets,
            every=2 * MINUTE,
            records=[samples, Record(WAITED_SHARE, waits * of_others & samples)],
            alerts=[
                Alert(
                    promql.too_large(scraping, WAITED_SHARE, SHARED_SAMPLES, parameters),
                    summary="Other processes on {{ $labels.instance }} slow down run {{ $labels.run }}",
                    description="On {{ $labels.instance }}, main threads of run {{ $labels.run }} waited for "
                    "cores that other processes used for {{ $value | humanizePercentage }} of the time in "
                    f"which they could run, in the last {parameters.live_window:g} minutes (fires above "
                    f"{parameters.threshold:g} %). "
                    "stepscope_run_neighbour_cpu_seconds_total names the users.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Contention]:
        window = scraping.last(MINUTE * self.parameters.live_window)
        gains = [Gain(name, window).value(now) for name in (OWN, OTHERS, RAN, WAITED)]
        samples = now.recorded(SHARED_SAMPLES)
        labels = [series for series in samples if all(series in gain for gain in gains)]
        return Scraped(labels, Contention(column(samples, labels), *(column(gain, labels) for gain in gains)))

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        users = {node.node: node.neighbours for node in run.facts.nodes}
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(nodes, users, tallies, status),
            tallies.triggered,
            tallies.triggered,
            sum(int(node.total.seen[0]) for node in nodes.values()),
            max(
                (_lost(run.facts, name, node) for name, node in nodes.items() if tallies.of(name).triggered),
                default=0.0,
            ),
            details={
                "nodes": {
                    name: {
                        "triggered": tallies.of(name).triggered,
                        "percent": _percent(node),
                        "cores": node.allowed,
                        "cores_used_by_run": node.own_cores,
                        "cores_used_by_others": node.others_cores,
                        "waited_seconds": float(node.total.waited[0]),
                        "ran_seconds": float(node.total.ran[0]),
                        "users": dict(users.get(name, ())),
                    }
                    for name, node in nodes.items()
                    if node.seconds
                }
            },
        )

    def _finding(
        self,
        nodes: Mapping[str, OwnCores],
        users: Mapping[str, tuple[tuple[str, float], ...]],
        tallies: Tallies,
        status: Status,
    ) -> str:
        most = max((int(node.total.seen[0]) for node in nodes.values()), default=0)
        if not most:
            return "What the run and others use of its cores was not read."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("samples", most, self.parameters.patience)
        fired = {name: node for name, node in nodes.items() if tallies.of(name).triggered}
        name, worst = max((fired or nodes).items(), key=lambda item: _percent(item[1]))
        others = f"others used {number(worst.others_cores)}{_named(users.get(name, ()))}"
        return (
            f"On {name}, main threads of the run waited for other processes for "
            f"{exact_percent(_percent(worst))} of the time in which they could run. It may use "
            f"{worst.allowed:g} cores: {others}, the run itself {number(worst.own_cores)}."
        )


def _portion(view: Contention) -> Portion:
    return Portion(view.seen, np.ones_like(view.seen), view.waited_for_others)


def _percent(node: OwnCores) -> float:
    share = float(node.total.waited_for_others[0])
    return 100 * share if share == share else 0.0


def _lost(facts: RunFacts, name: str, node: OwnCores) -> float:
    """Returns for how many seconds others kept the cores from the rank of a node that waited longest."""
    ranks = ranks_of(facts, name).values()
    longest = max((longest_pause(processes, "no_core") for processes in ranks), default=0.0)
    return longest * node.waits_because_of_others


def _named(users: tuple[tuple[str, float], ...]) -> str:
    """Returns the users with the largest shares: " (bob 75 %, carol 25 %)"."""
    total = sum(seconds for _, seconds in users)
    largest = sorted(users, key=lambda user: -user[1])[:USERS_NAMED]
    shares = [f"{user} {share(seconds, total)}" for user, seconds in largest if seconds]
    return f" ({', '.join(shares)})" if shares else ""
