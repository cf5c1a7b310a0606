"""CPUThrottled: the CPU limit of its cgroup stops the run.

Source: our own threshold for the kernel's `throttled_usec` (version 1: `throttled_time`) of a cgroup: the
time for which it was stopped because its limit was used up, summed over cores. Compared with what the limit
grants, it says how much more the run would have used. The share of throttled periods, which other tools
compare with 25 %, does not distinguish a stop of 1 ms from one of 90 ms. It is in the words and the details.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from stepscope.common.words import exact_percent, percent
from stepscope.measurements.measure import Portion
from stepscope.measurements.own_cores import LIMITED_CORES, LimitedCores
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped
from stepscope.rules.parts import promql
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Gain, Record
from stepscope.rules.parts.gpus import Every, Judged
from stepscope.rules.parts.judgement import Judgement, too_large, too_large_live, view_of_shares
from stepscope.rules.parts.parameters import LIVE_WINDOW, AnyPercent, LiveMinutes, Parameters, Samples
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.tallied import Tallied
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
class CPUThrottled(Tallied[CPUThrottledParameters, Portion, LimitedCores]):
    """Seconds lost: the time for which the run was stopped, as far as a rank waited meanwhile."""

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
    explains_late_data = 5
    bands = Bands("node", [Worst("{} of what the limit grants")])
    view = "loading"
    symptom = IDLE_GPUS
    unseen = "No CPU limit of the run's cgroup was seen."
    counted = "samples with a limit"

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

    def seen(self, node: LimitedCores) -> int:
        return node.stopped.seen

    def finding(self, facts: RunFacts, judged: Every[LimitedCores], fired: Every[LimitedCores]) -> str:
        worst = max(fired or judged, key=lambda node: node.measured.stopped.percent)
        node = worst.measured
        return (
            f"On {worst.name}, the CPU limit of {node.limit:g} cores stopped the run for "
            f"{exact_percent(node.stopped.percent)} of the CPU time that it grants. It was used up in "
            f"{percent(node.periods.percent)} of the periods."
        )

    def lost(self, facts: RunFacts, fired: Judged[LimitedCores]) -> float:
        """Returns for how many seconds the limit delayed a node.

        A run that wants 5 cores and may use 4 takes 25 % longer, unless its GPUs have enough work meanwhile:
        no rank waits for its data or is throttled itself then.
        """
        node = fired.measured
        stopped = node.stopped.part / node.stopped.whole if node.stopped.whole else 0.0
        waited = (
            sum(process.component_seconds.get("data_wait", 0.0) for process in processes)
            + longest_pause(processes, "throttled")
            for processes in ranks_of(facts, fired.node).values()
        )
        return min(node.seconds * stopped / (1 + stopped), max(waited, default=0.0))

    def details(self, facts: RunFacts, one: Judged[LimitedCores]) -> dict[str, Any]:
        node = one.measured
        return {
            "limit_cores": node.limit,
            "granted_seconds": node.stopped.whole,
            "throttled_seconds": node.stopped.part,
            "percent": node.stopped.percent,
            "periods": node.periods.whole,
            "throttled_periods": node.periods.part,
        }
