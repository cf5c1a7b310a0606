"""NoisyNeighbour: the run waits for cores that other processes use.

Source: our own. The kernel counts for each thread how long it was ready to run but had no core (schedstat).
Others cause that wait by their share of what is used of the run's cores. Next to one busy process per core,
half of the wait is theirs and threads wait half of the time, which is 25 %. A run that hardly needs the cores
loses nothing by waiting for them, so the wait is also compared with the run's time.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import exact_percent, number, share
from stepscope.measurements.measure import Portion
from stepscope.measurements.own_cores import OWN_CORES, Contention, OwnCores
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped, Window, column
from stepscope.rules.parts import promql
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Gain, Record
from stepscope.rules.parts.gpus import Every, Judged
from stepscope.rules.parts.judgement import Judgement, judgement, too_large, too_large_live
from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Parameters, Percent, Samples, fraction
from stepscope.rules.parts.promql import MINUTE, OF_NODE, Alert, PrometheusRules, Scraping, looked_up, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.tallied import Tallied
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RunFacts, longest_pause, ranks_of
from stepscope.training.layout import PY_WORKERS

OWN = "stepscope_run_cpu_seconds_total"
OTHERS = "stepscope_run_other_cpu_seconds_total"
RAN = "stepscope_run_main_threads_ran_seconds_total"
WAITED = "stepscope_run_main_threads_waited_seconds_total"
SHARED_SAMPLES = "run_instance:stepscope_shared_cores:samples"
DATA_WAITS = 'stepscope_step_component_seconds_total{component="data_wait"}'
WAITED_SHARE = "run_instance:stepscope_waited_for_neighbours:ratio"
COST = "run_instance:stepscope_cost_of_neighbours:ratio"
CERTAIN = 20.0  # seconds of samples after which a clear-cut share is judged
USERS_NAMED = 3


@dataclass(frozen=True)
class NoisyNeighbourParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the time of main threads"] = 10
    cost: Annotated[Percent, "and the wait, with its part of waits for data, costs more of the run"] = 2
    patience: Annotated[Samples, "decisions begin after this many samples"] = 120
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class NoisyNeighbour(Tallied[NoisyNeighbourParameters, Contention, OwnCores]):
    """Seconds lost: the wait of a rank's main thread for a core, less what the run would wait alone."""

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
    explains_late_data = 4
    bands = Bands("node", [Worst("{} of the time of main threads")])
    view = "loading"
    symptom = IDLE_GPUS
    audience = "platform"
    unseen = "What the run and others use of its cores was not read."

    measure = OWN_CORES

    def judge(self, view: Contention) -> Judgement:
        return self._costly(view, too_large(_portion(view), self.parameters))

    def judge_live(self, view: Contention, sample_interval: float) -> Judgement:
        judged = too_large_live(_portion(view), self.parameters, sample_interval, CERTAIN)
        return self._costly(view, judged)

    def _costly(self, view: Contention, judged: Judgement) -> Judgement:
        (share, holds) = judged.conditions[0]
        return judgement(judged.enough, (share, holds & (view.cost > fraction(self.parameters.cost))))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        window = scraping.last(MINUTE * parameters.live_window)
        own, others, ran, waited = (Gain(name, window, joined=True) for name in (OWN, OTHERS, RAN, WAITED))
        targets = scraping.held(OTHERS)
        samples = Record(SHARED_SAMPLES, Gain(SAMPLES, window) & targets)
        waits, of_others = (waited / (ran + waited)).on_one_line(), (others / (others + own)).on_one_line()
        seconds = samples * scraping.sample_interval
        cost = " That costs about {{ .Value | humanizePercentage }} of the run's time"
        share, of_threads = Record(WAITED_SHARE, waits * of_others & samples), waited * of_others / seconds
        return PrometheusRules(
            targets=targets,
            every=2 * MINUTE,
            records=[
                samples,
                share,
                Record(COST, of_threads + share * (self._data_waits(window) / seconds) | of_threads),
            ],
            alerts=[
                Alert(
                    f"({promql.too_large(scraping, WAITED_SHARE, SHARED_SAMPLES, parameters, CERTAIN)})\n"
                    f"  and {COST} > {ratio(parameters.cost)}",
                    summary="Other processes on {{ $labels.instance }} slow down run {{ $labels.run }}",
                    description="On {{ $labels.instance }}, main threads of run {{ $labels.run }} waited for "
                    "cores that other processes used for {{ $value | humanizePercentage }} of the time in "
                    f"which they could run, in the last {parameters.live_window:g} minutes (fires above "
                    f"{parameters.threshold:g} %)."
                    + looked_up(f"{COST}{{}}", OF_NODE, cost)
                    + f" (fires above {parameters.cost:g} %). "
                    "stepscope_run_neighbour_cpu_seconds_total names the users.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Contention]:
        window = scraping.last(MINUTE * self.parameters.live_window)
        gains = [Gain(name, window).value(now) for name in (OWN, OTHERS, RAN, WAITED)]
        samples = now.recorded(SHARED_SAMPLES)
        labels = [series for series in samples if all(series in gain for gain in gains)]
        seen = column(samples, labels)
        seconds = seen * scraping.sample_interval
        waits = np.nan_to_num(column(self._data_waits(window).value(now), labels))
        counted = [*(column(gain, labels) for gain in gains), waits]
        return Scraped(labels, Contention(seen, seconds, *counted))

    def _data_waits(self, window: Window) -> Gain:
        return Gain(DATA_WAITS, window, lambda each: each.max_without("rank", "component"), joined=True)

    def seen(self, node: OwnCores) -> int:
        return int(node.total.seen[0])

    def finding(self, facts: RunFacts, judged: Every[OwnCores], fired: Every[OwnCores]) -> str:
        worst = max(fired or judged, key=lambda node: _percent(node.measured))
        name, node = worst.node, worst.measured
        others = f"others used {number(node.others_cores)}{_named(_users(facts, name))}"
        cores = f"It may use {node.allowed:g} cores" if node.allowed > 0 else "Its cores are not known"
        return (
            f"On {name}, main threads of the run waited for other processes for "
            f"{exact_percent(_percent(node))} of the time in which they could run. "
            f"{cores}: {others}, the run itself {number(node.own_cores)}."
        )

    def lost(self, facts: RunFacts, fired: Judged[OwnCores]) -> float:
        """Returns for how many seconds others kept the cores from the rank of a node that waited longest."""
        longest, _ = _waits(facts, fired.node)
        return longest * fired.measured.waits_because_of_others

    def details(self, facts: RunFacts, one: Judged[OwnCores]) -> dict[str, Any]:
        node = one.measured
        if not node.seconds:
            return {}
        longest, in_fetches = _waits(facts, one.node)
        return {
            "percent": _percent(node),
            "cores": node.allowed,
            "cores_used_by_run": node.own_cores,
            "cores_used_by_others": node.others_cores,
            "waited_seconds": float(node.total.waited[0]),
            "ran_seconds": float(node.total.ran[0]),
            "users": dict(_users(facts, one.node)),
            "lost_outside_fetches_seconds": max(longest - in_fetches, 0.0) * node.waits_because_of_others,
        }


def _portion(view: Contention) -> Portion:
    return Portion(view.seen, np.ones_like(view.seen), view.waited_for_others)


def _percent(node: OwnCores) -> float:
    share = float(node.total.waited_for_others[0])
    return 100 * share if share == share else 0.0


def _waits(facts: RunFacts, name: str) -> tuple[float, float]:
    """Returns for how long the rank that waited longest had no core: in all, and in its own fetches."""
    ranks = ranks_of(facts, name).values()
    processes = max(ranks, key=lambda known: longest_pause(known, "no_core"), default=[])
    loaders = [each for known in processes if PY_WORKERS not in known.gauges for each in known.loaders]
    in_fetches = sum(each.fetch_core_wait_seconds for each in loaders if each.workers == 0)
    return longest_pause(processes, "no_core"), in_fetches


def _users(facts: RunFacts, name: str) -> tuple[tuple[str, float], ...]:
    """Returns the seconds of each other user of a node's cores."""
    return next((node.neighbours for node in facts.nodes if node.node == name), ())


def _named(users: tuple[tuple[str, float], ...]) -> str:
    """Returns the users with the largest shares: " (bob 75 %, carol 25 %)"."""
    total = sum(seconds for _, seconds in users)
    largest = sorted(users, key=lambda user: -user[1])[:USERS_NAMED]
    shares = [f"{user} {share(seconds, total)}" for user, seconds in largest if seconds]
    return f" ({', '.join(shares)})" if shares else ""
