"""CPUThrottled: the CPU limit of its cgroup stops the run.

Source: our own threshold for the kernel's `throttled_usec` (version 1: `throttled_time`) of a cgroup: the
time for which it was stopped because its limit was used up, summed over cores. Compared with what the limit
grants, it says how much more the run would have used. The share of throttled periods, which other tools
compare with 25 %, does not distinguish a stop of 1 ms from one of 90 ms. It is in the words and the details.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.common.status import Status
from stepscope.common.words import exact_percent, percent, too_few
from stepscope.measurements.measure import Portion, RunMeasurements
from stepscope.measurements.own_cores import LIMITED_CORES, LimitedCores
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped
from stepscope.rules.parts import promql
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Gain, Record
from stepscope.rules.parts.judgement import Judgement, Tallies, too_large, too_large_live, view_of_shares
from stepscope.rules.parts.parameters import LIVE_WINDOW, AnyPercent, LiveMinutes, Parameters, Samples
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RunFacts, longest_pause, ranks_of

LIMIT = "stepscope_run_cpu_limit_cores"
STOPPED = "stepscope_run_cpu_throttled_seconds_total"
LIMITED_SAMPLES = "run_instance:stepscope_cpu_limited:samples"
STOPPED_SHARE = "run_instance:stepscope_cpu_throttled:ratio"


@dataclass(frozen=True)
class CPUThrottledParameters(Parameters):
    threshold: Annotated[AnyPercent, "the rule fires above this share of what the limit grants"] = 10
    patience: Annotated[Samples, "decisions begin after this many samples with a limit"] = 120
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class CPUThrottled(Rule[CPUThrottledParameters, Portion]):
    """Seconds lost: the time for which the run was stopped, as far as a rank waited meanwhile."""

    parameters_type = CPUThrottledParameters
    subject = "The CPU limit of the cgroup"
    question = "Does the CPU limit of its cgroup stop the run?"
    description = (
        "Compares the time for which the kernel stopped the run's cgroup, because its CPU limit was used up, "
        "with what the limit grants."
    )
    recommendation = (
        "Raise the CPU limit (Kubernetes: resources.limits.cpu; Docker: --cpus; Slurm: --cpus-per-task), or "
        "start fewer loader workers and threads than the limit has cores."
    )
    topic = "data loading"
    distance = 0
    bands = Bands("node", [Worst("{} of what the limit grants")])
    view = "loading"
    symptom = IDLE_GPUS

    measure = LIMITED_CORES

    def judge(self, view: Portion) -> Judgement:
        return too_large(view, self.parameters)

    def judge_live(self, view: Portion, sample_interval: float) -> Judgement:
        return too_large_live(view, self.parameters, sample_interval)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        window, limit = scraping.last(MINUTE * parameters.live_window), scraping.held(LIMIT)
        samples = Record(LIMITED_SAMPLES, Gain(SAMPLES, window) & limit)
        stopped = Gain(STOPPED, window, joined=True) / (samples * scraping.sample_interval * limit)
        return PrometheusRules(
            targets=limit,
            every=2 * MINUTE,
            records=[samples, Record(STOPPED_SHARE, stopped)],
            alerts=[
                Alert(
                    promql.too_large(scraping, STOPPED_SHARE, LIMITED_SAMPLES, parameters),
                    summary="The CPU limit stops run {{ $labels.run }} on {{ $labels.instance }}",
                    description="On {{ $labels.instance }}, its CPU limit stopped run {{ $labels.run }} "
                    "for {{ $value | humanizePercentage }} of the CPU time that the limit grants, in the "
                    f"last {parameters.live_window:g} minutes (fires above {parameters.threshold:g} %).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        return view_of_shares(now.recorded(LIMITED_SAMPLES), now.recorded(STOPPED_SHARE))

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(nodes, tallies, status),
            tallies.triggered,
            tallies.triggered,
            sum(node.stopped.seen for node in nodes.values()),
            max(
                (_lost(run.facts, name, node) for name, node in nodes.items() if tallies.of(name).triggered),
                default=0.0,
            ),
            details={
                "nodes": {
                    name: {
                        "triggered": tallies.of(name).triggered,
                        "limit_cores": node.limit,
                        "granted_seconds": node.stopped.whole,
                        "throttled_seconds": node.stopped.part,
                        "percent": node.stopped.percent,
                        "periods": node.periods.whole,
                        "throttled_periods": node.periods.part,
                    }
                    for name, node in nodes.items()
                    if node.stopped.seen
                }
            },
        )

    def _finding(self, nodes: dict[str, LimitedCores], tallies: Tallies, status: Status) -> str:
        most = max((node.stopped.seen for node in nodes.values()), default=0)
        if not most:
            return "No CPU limit of the run's cgroup was seen."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("samples with a limit", most, self.parameters.patience)
        fired = {name: node for name, node in nodes.items() if tallies.of(name).triggered}
        name, worst = max((fired or nodes).items(), key=lambda item: item[1].stopped.percent)
        return (
            f"On {name}, the CPU limit of {worst.limit:g} cores stopped the run for "
            f"{exact_percent(worst.stopped.percent)} of the CPU time that it grants. It was used up in "
            f"{percent(worst.periods.percent)} of the periods."
        )


def _lost(facts: RunFacts, name: str, node: LimitedCores) -> float:
    """Returns for how many seconds the limit delayed a node.

    A run that wants 5 cores and may use 4 takes 25 % longer, unless its GPUs have enough work meanwhile: no
    rank waits for its data or is throttled itself then.
    """
    stopped = node.stopped.part / node.stopped.whole if node.stopped.whole else 0.0
    waited = (
        sum(process.component_seconds.get("data_wait", 0.0) for process in processes)
        + longest_pause(processes, "throttled")
        for processes in ranks_of(facts, name).values()
    )
    return min(node.seconds * stopped / (1 + stopped), max(waited, default=0.0))
