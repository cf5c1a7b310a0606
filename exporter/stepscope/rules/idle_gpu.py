"""IdleGPU: a process holds a GPU, but does not use it.

Source: our own. NVML lists the processes that hold memory of a GPU, and says whether any kernel ran.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import duration, others_of
from stepscope.measurements.held_idle import HELD_IDLE, Held, HeldGpu
from stepscope.measurements.pauses import HOST
from stepscope.measurements.scraped import Moment, Scraped, column, without
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Record
from stepscope.rules.parts.gpus import WHERE, Every, Judged
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.other_exporters import MEMORY_IN_USE, ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Minutes, Parameters
from stepscope.rules.parts.promql import MINUTE, OF_NODE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.starting import (
    AT_PROMPT,
    STAYS,
    Beginning,
    as_before,
    is_starting,
    recorded_as_before,
)
from stepscope.rules.parts.tallied import Tallied
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RunFacts

HELD = "stepscope_gpu_held_idle_seconds"
OF_RUNS, OF_OTHERS = f'{HELD}{{run!=""}}', f'{HELD}{{run=""}}'
IN_SCRIPT = "run_instance:stepscope_stay_in_script:seconds"  # such as a wait for other jobs
WASTED, SO_FAR = {"idle": "wasted"}, {"idle": "so far"}
HOLDER = (
    "{{ if $labels.run }}run {{ $labels.run }}{{ else }}process {{ $labels.pid }}"
    "{{ if $labels.user }} of {{ $labels.user }}{{ end }}{{ end }}"
)


@dataclass(frozen=True)
class IdleGPUParameters(Parameters):
    threshold: Annotated[Minutes, "the rule fires on a GPU that was held without work for longer"] = 15
    other: Annotated[
        Minutes, "until then, it is information at a prompt, or without Stepscope: its user may think"
    ] = 120


@rule
class IdleGPU(Tallied[IdleGPUParameters, Held, HeldGpu]):
    """Estimates no seconds lost: what the GPU could have done is not known."""

    subject = "An idle GPU"
    question = "Does a process hold a GPU without using it?"
    description = (
        "Adds up the time for which no kernel ran on a GPU although a process held its memory. The time "
        "begins again with the next work, and with another process. MIG devices are not judged: the driver "
        "does not report their utilisation."
    )
    recommendation = (
        "End the process, or give the GPU back: forgotten notebooks and ranks that failed to exit hold GPUs "
        "that nobody else can use. If the run needs fewer GPUs, start it with fewer."
    )
    bands = Bands("GPU", [Worst("{} GPU hours without work", "{:.2f}".format)] * 2)
    view = "balance"
    topic = "uneven GPUs"
    is_symptom = True
    symptom = IDLE_GPUS
    any_process = True
    about_gpus = True
    unseen = "No GPU's processes and utilisation were read together."
    measure = HELD_IDLE

    @property
    def _minutes(self) -> tuple[float, float]:
        """Returns the times after which a GPU is idle, and is wasted even by a process that is no run."""
        threshold = self.parameters.threshold
        return threshold, max(threshold, self.parameters.other)

    def is_usual(self, beginning: Beginning) -> bool:
        return beginning.is_starting(0)

    def judge(self, view: Held) -> Judgement:
        minutes, other = self._minutes
        hours = view.hours
        is_idle, wasted = hours > minutes / 60, view.of_run | (hours > other / 60)
        return judgement(view.readings > 0, (hours, is_idle & wasted), (hours, is_idle & ~wasted))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rule for every GPU of a node, also those that no run uses."""
        minutes, other = self._minutes
        of_runs, of_others = (f"{scraping.held(selector)} / 3600" for selector in (OF_RUNS, OF_OTHERS))
        on_node = f"unless on ({', '.join(OF_NODE)})"
        starting = f"{on_node} ({is_starting(scraping, 0)})"
        in_script = scraping.held(f'{STAYS}{{component="{HOST}"}}')
        waits_again = f"{on_node} ({as_before(IN_SCRIPT, scraping)})"
        at_prompt = f"on ({', '.join(OF_NODE)}) {scraping.held(AT_PROMPT)}"
        of_users = f"({of_others} or {of_runs} and {at_prompt})"
        idle = partial(
            Alert,
            summary=f"{WHERE} is held but idle",
            description=f"{HOLDER} holds memory of {WHERE}, but no kernel has run there for "
            f"{{{{ printf `%.2f` $value }}}} GPU hours so far (fires above {minutes:g} min).",
        )
        return PrometheusRules(
            targets=scraping.held(HELD),
            every=2 * MINUTE,
            records=[Record(IN_SCRIPT, in_script.max_without("rank", "component", "operation"))],
            alerts=[
                idle(
                    f"{of_runs} > {minutes:.12g} / 60 {starting}\n{waits_again}\nunless {at_prompt}\n"
                    f"or {of_users} > {other:.12g} / 60",
                    labels=WASTED,
                ),
                idle(
                    f"{of_users} > {minutes:.12g} / 60 <= {other:.12g} / 60", severity="info", labels=SO_FAR
                ),
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the GPUs whose memory is in use without work; the process that holds it is not known."""
        minutes = self.parameters.threshold
        seconds = max(MINUTE * minutes, others.scraping.interval)
        idle = f"({others.utilization}) == 0 and {ON_GPU} {others.memory} > {MEMORY_IN_USE}"
        return PrometheusRules(
            targets=others.utilization,
            every=2 * MINUTE,
            alerts=[
                Alert(
                    f"{others.always(idle, seconds)}",
                    summary=f"{WHERE} is held but idle",
                    description=f"Memory of {WHERE} is in use, but it was idle at all "
                    f"{{{{ $value | humanize }}}} readings of the last {minutes:g} min.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Held]:
        held = now.held(HELD, scraping.hold)
        labels = list(held)
        at_prompt = {without(each, "rank", "state") for each in scraping.held(AT_PROMPT).value(now)}
        starting = is_starting(scraping, 0).value(now)
        spared = {*starting, *recorded_as_before(now, IN_SCRIPT, scraping)} - at_prompt
        nodes = [without(each, "gpu", "user", "pid") for each in labels]
        judged = [node not in spared for node in nodes]
        works = [dict(node).get("run", "") != "" and node not in at_prompt for node in nodes]
        view = Held(column(held, labels) / 3600, np.array(judged, float), np.array(works, bool))
        return Scraped(labels, view)

    def seen(self, gpu: HeldGpu) -> int:
        return gpu.readings

    def finding(self, facts: RunFacts, judged: Every[HeldGpu], fired: Every[HeldGpu]) -> str:
        known = [gpu for gpu in judged if gpu.measured.readings]
        longest = max(fired or known, key=lambda gpu: gpu.measured.longest)
        seconds = longest.measured.longest
        if not fired and not seconds:
            return "No process held a GPU of this run without using it."
        sentence = f"{longest.name} was held by a process, but not used, for up to {duration(seconds)}"
        if fired:
            hours = sum(gpu.measured.idle_seconds for gpu in fired) / 3600
            if len(fired) > 1:
                was = "was" if len(fired) == 2 else "were"
                sentence += f"; so {was} {others_of(len(fired) - 1, len(known), 'GPU')}"
            sentence += f": {hours:.2g} GPU hours without work"
        return f"{sentence}."

    def details(self, facts: RunFacts, one: Judged[HeldGpu]) -> dict[str, Any]:
        gpu = one.measured
        return {"longest_seconds": gpu.longest, "idle_hours": gpu.idle_seconds / 3600}
