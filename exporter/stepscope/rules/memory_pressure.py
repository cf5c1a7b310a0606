"""MemoryPressure: processes of the run wait for memory.

Source: our own threshold for the kernel's pressure stall information (Documentation/accounting/psi.rst) of
the run's cgroup. Its line "some" counts the time in which at least one task waited for memory: the kernel had
to free some, or to read back what it had freed, from swap space or from files. Swap space in use is no
evidence: what nobody touches may stay there for days.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from stepscope.common.words import exact_percent
from stepscope.measurements.measure import Portion
from stepscope.measurements.run_use import MEMORY_WAITS, MemoryWaits
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
from stepscope.runs.model import RunFacts

WAITED = 'stepscope_run_pressure_waiting_seconds_total{resource="memory"}'
COUNTED_SAMPLES = "run_instance:stepscope_memory_waits:samples"
WAITED_SHARE = "run_instance:stepscope_memory_waits:ratio"


@dataclass(frozen=True)
class MemoryPressureParameters(Parameters):
    threshold: Annotated[AnyPercent, "the rule fires above this share of the time"] = 10
    patience: Annotated[Samples, "decisions begin after this many samples"] = 120
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class MemoryPressure(Tallied[MemoryPressureParameters, Portion, MemoryWaits]):
    """Seconds lost: at most the time in which some process waited; it may not have delayed a step."""

    subject = "Waiting for memory"
    question = "Does the run wait for memory that the kernel has to free, or to read back from a disk?"
    description = (
        "Counts the time in which some process of the run's cgroup waited for memory: the kernel had to free "
        "some, or to read back what it had freed before."
    )
    recommendation = (
        "Give the run more memory (Kubernetes: resources.limits.memory; Slurm: --mem), or let it use less: "
        "fewer loader workers, a smaller prefetch_factor, datasets that are mapped instead of loaded. "
        "If its memory has no limit of its own, `smem -tk -s swap` shows whose memory fills the node."
    )
    topic = "data loading"
    distance = 0
    bands = Bands("node", [Worst("{} of the time")])
    view = "loading"
    symptom = IDLE_GPUS
    unseen = "The kernel counted no waits for memory: it does so for cgroups of version 2, with psi=1."

    measure = MEMORY_WAITS

    def judge(self, view: Portion) -> Judgement:
        return too_large(view, self.parameters)

    def judge_live(self, view: Portion, sample_interval: float) -> Judgement:
        return too_large_live(view, self.parameters, sample_interval)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters, window = self.parameters, scraping.last(MINUTE * self.parameters.live_window)
        targets = scraping.held(WAITED).sum_without("resource")
        samples = Record(COUNTED_SAMPLES, Gain(SAMPLES, window) & targets)
        waited = Gain(WAITED, window, lambda each: each.sum_without("resource"), joined=True)
        return PrometheusRules(
            targets=targets,
            every=2 * MINUTE,
            records=[samples, Record(WAITED_SHARE, waited / (samples * scraping.sample_interval))],
            alerts=[
                Alert(
                    promql.too_large(scraping, WAITED_SHARE, COUNTED_SAMPLES, parameters),
                    summary="Run {{ $labels.run }} waits for memory on {{ $labels.instance }}",
                    description="On {{ $labels.instance }}, some process in the cgroup of run "
                    "{{ $labels.run }} waited for memory for {{ $value | humanizePercentage }} of the time, "
                    "in the last "
                    f"{parameters.live_window:g} minutes (fires above {parameters.threshold:g} %).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        return view_of_shares(now.recorded(COUNTED_SAMPLES), now.recorded(WAITED_SHARE))

    def seen(self, node: MemoryWaits) -> int:
        return node.waited.seen

    def finding(self, facts: RunFacts, judged: Every[MemoryWaits], fired: Every[MemoryWaits]) -> str:
        worst = max(fired or judged, key=lambda node: node.measured.waited.percent)
        return (
            f"On {worst.name}, some process of the run's cgroup waited for memory for "
            f"{exact_percent(worst.measured.waited.percent)} of the time."
        )

    def lost(self, facts: RunFacts, fired: Judged[MemoryWaits]) -> float:
        return fired.measured.waited.part

    def details(self, facts: RunFacts, one: Judged[MemoryWaits]) -> dict[str, Any]:
        waited = one.measured.waited
        return {"waited_seconds": waited.part, "percent": waited.percent}
