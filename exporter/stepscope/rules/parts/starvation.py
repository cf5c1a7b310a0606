"""Judges for CPUBottleneck and IOBottleneck: samples in which a GPU starves while a core is at its limit."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import exact_percent
from stepscope.exporter.sampling.sample_tally import GRID
from stepscope.measurements.measure import Measure, Portion, RunMeasurements
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped
from stepscope.measurements.starved import DIGITS, StarvedSamples
from stepscope.rules.parts import promql
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Verdict, status_of
from stepscope.rules.parts.expressions import Gain, Record
from stepscope.rules.parts.judgement import Judgement, Tallies, too_large, too_large_live, view_of_shares
from stepscope.rules.parts.other_exporters import MEMORY_IN_USE, ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Parameters
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, on_grid, ratio
from stepscope.rules.parts.shares import inside_steps, of_phases
from stepscope.rules.parts.starting import Beginning, is_mostly_start
from stepscope.rules.parts.tallied import Patient
from stepscope.runs.model import COMPONENTS, PHASES


class StarvationParameters(Parameters):
    """The parameters of both rules: percentages, and a number of samples."""

    @property
    def threshold(self) -> float:
        raise NotImplementedError

    @property
    def gpu_threshold(self) -> float:
        raise NotImplementedError

    @property
    def patience(self) -> int:
        raise NotImplementedError

    @property
    def live_window(self) -> float:
        raise NotImplementedError


S = TypeVar("S", bound=StarvationParameters)


class Starvation(Patient[S, Portion]):
    """Fires if starved samples are more than a share of all.

    Seconds lost: the starved samples times the interval, on the node that lost most.
    """

    bands = Bands("node", [Worst("{} of the samples")])

    cause: ClassVar[Literal["cpu", "io"]]
    reading: ClassVar[str]  # what was read of a core: "utilisation"
    meanwhile: ClassVar[str]  # "a core is busy"

    @property
    @abstractmethod
    def above(self) -> tuple[str, float]:
        """Returns the name of the cores' threshold, and its value in percent."""

    @abstractmethod
    def condition(self) -> str:
        """Returns the condition of a sample in words, with the bounds."""

    about_gpus = True
    reads_cores = True
    waits_for_data = True

    @property
    def measure(self) -> Measure[StarvedSamples]:
        cores, gpus = self.above[1] / 100, self.parameters.gpu_threshold / 100
        return Measure(StarvedSamples, self.cause, cores, gpus)

    def judge(self, view: Portion) -> Judgement:
        return too_large(view, self.parameters)

    def judge_live(self, view: Portion, sample_interval: float) -> Judgement:
        return too_large_live(view, self.parameters, sample_interval)

    def is_usual(self, beginning: Beginning) -> bool:
        return beginning.is_mostly_start(MINUTE * self.parameters.live_window)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        window = scraping.last(MINUTE * parameters.live_window)
        below, least = on_grid(parameters.gpu_threshold, "gpu_threshold"), f"{GRID[0]:g}"
        labels = ", ".join(
            (
                f'cause="{self.cause}"',
                f'cause_above="{on_grid(self.above[1], self.above[0])}"',
                f'gpu_below="{below}"' if below == least else f'gpu_below=~"{least}|{below}"',
            )
        )
        starved = Gain(f"stepscope_gpu_starved_samples_total{{{labels}}}", window, joined=True)
        if below != least:  # the exporter leaves out zeros of all bounds but the lowest
            starved = replace(starved, each=lambda counts: counts.max_without("gpu_below"))
        samples = Record(self._samples, Gain(SAMPLES, window))
        share = Record(self._share, starved / samples)
        return PrometheusRules(
            targets=share,
            every=2 * MINUTE,
            records=[samples, share],
            alerts=[
                self.alert(
                    f"({promql.too_large(scraping, self._share, self._samples, parameters)})\n"
                    f"  unless ({is_mostly_start(scraping, MINUTE * parameters.live_window)})",
                    f"in {{{{ $value | humanizePercentage }}}} of the samples of the last "
                    f"{parameters.live_window:g} minutes of run {{{{ $labels.run }}}}",
                )
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the share of the time in which a GPU was in use; there is no value otherwise."""
        parameters = self.parameters
        patience = max(parameters.patience, 1)
        starved, share = (f"instance:node_{self.cause}_starved:{what}" for what in ("bool", "avg_ratio"))
        in_use = f"{others.utilization} and {ON_GPU} {others.memory} > {MEMORY_IN_USE}"
        condition = f"""
            ({others.busiest_core(self.cause)} > bool {ratio(self.above[1])})
              * on (cluster, instance)
            (min by (cluster, instance) ({in_use}) < bool {ratio(parameters.gpu_threshold)})
            """
        return PrometheusRules(
            targets=share,
            records=[Record(starved, condition), Record(share, others.mean(starved, patience))],
            alerts=[
                self.alert(
                    f"{share} > {ratio(parameters.threshold)}\n  and {others.before(starved, patience)}",
                    "at {{ $value | humanizePercentage }} of the scrapes",
                )
            ],
        )

    def alert(self, expression: str, how_often: str) -> Alert:
        return Alert(
            expression,
            summary=f"GPUs of {{{{ $labels.instance }}}} idle while {self.meanwhile}",
            description=f"On {{{{ $labels.instance }}}}, {self.condition()} {how_often} "
            f"(fires above {self.parameters.threshold:g} %).",
            lost="{}",
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        starting = is_mostly_start(scraping, MINUTE * self.parameters.live_window).value(now)
        shares = now.recorded(self._share)
        judged = {labels: share for labels, share in shares.items() if labels not in starting}
        return view_of_shares(now.recorded(self._samples), judged)

    @property
    def _samples(self) -> str:
        return f"run_instance:stepscope_{self.cause}_starved:samples"

    @property
    def _share(self) -> str:
        return f"run_instance:stepscope_{self.cause}_starved:ratio"

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        seen = [name for name, node in nodes.items() if node.gpu_seen and node.core_seen]
        fired = {name: node for name, node in nodes.items() if tallies.of(name).triggered}
        status = status_of(tallies.triggered, sum(tallies.of(name).judged for name in seen))
        return Verdict(
            status,
            self._why_not(nodes.values())
            if status is Status.NOT_ENOUGH_DATA
            else self._finding(fired or nodes, tallies),
            tallies.triggered,
            sum(node.starved for node in nodes.values()),
            sum(node.samples for node in nodes.values()),
            max((node.starved for node in fired.values()), default=0) * run.facts.interval,
            details=_details(nodes, tallies),
        )

    def _finding(self, nodes: Mapping[str, StarvedSamples], tallies: Tallies) -> str:
        name, worst = max(nodes.items(), key=lambda item: item[1].percent)
        tally = tallies.of(name)
        scans = f", in {tally.triggered} of {tally.judged} scans" if tally.triggered else ""
        return (
            f"On {name}, {self.condition()} in {exact_percent(worst.percent)} of the samples "
            f"({worst.starved} of {worst.samples}){scans}."
        )

    unseen = "No sample was taken."

    def _why_not(self, nodes: Collection[StarvedSamples]) -> str:
        most = max((node.samples for node in nodes), default=0)
        if most and not any(node.gpu_seen for node in nodes):
            return "No GPU was seen."
        if most and not any(node.core_seen for node in nodes):
            return f"The {self.reading} of the cores could not be read."
        return self.why_not(most)


def _details(nodes: Mapping[str, StarvedSamples], tallies: Tallies) -> dict[str, Any]:
    """Returns Debugger's fields, and `nodes`: the counts of each node, which Debugger mixed."""
    bottlenecks: dict[str, dict[str, int]] = {}
    for node in nodes.values():
        for time, gpus, cores in node.last.tolist():
            found = bottlenecks.setdefault(str(time), {"GPUs": 0, "CPUs": 0})
            found["GPUs"] += int(gpus)
            found["CPUs"] += int(cores)
    return {
        "bottlenecks": bottlenecks,
        "low_gpu_utilization": sum(node.low_gpu for node in nodes.values()),
        **_what_ran(nodes),
        "nodes": {
            name: {
                "triggered": tallies.of(name).triggered,
                "violations": node.starved,
                "datapoints": node.samples,
                "low_gpu_utilization": node.low_gpu,
            }
            for name, node in nodes.items()
        },
    }


def _what_ran(nodes: Mapping[str, StarvedSamples]) -> dict[str, Any]:
    """Returns Debugger's `phase`, `forward_backward` and `general` in percent, of the listed samples."""
    known, phases, components = 0, np.zeros(len(PHASES)), np.zeros(len(COMPONENTS))
    for node in nodes.values():
        for _, rank in sorted(node.ranks.items()):
            moments, in_phases, in_components = rank.during(node.last[:, 0])
            known, phases, components = known + moments, phases + in_phases, components + in_components
    if not known:
        return {}
    by_phase = dict(zip(PHASES, phases.tolist(), strict=True))
    return {
        "phase": of_phases(by_phase, others=max(0.0, round(known - float(phases.sum()), DIGITS))),
        **inside_steps(dict(zip(COMPONENTS, components.tolist(), strict=True))),
    }
