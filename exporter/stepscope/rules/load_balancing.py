"""LoadBalancing: the load of a node's GPUs is unbalanced.

Source: SageMaker Debugger's LoadBalancing, which compares Jensen-Shannon distances of histograms that leave
out 100 %. Here the Kolmogorov-Smirnov distance decides, which Prometheus computes from the sample counters
without a join over pairs. The other distance is in the details.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import percent
from stepscope.measurements.load import DIGITS, LOAD, Counts, Distances, NodeLoad, distances_between
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.scraped import GPU_SAMPLES, Moment, Scraped, Window, column
from stepscope.measurements.usage import USAGE, GpuUsage
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Gain, Record, time_span
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import (
    LIVE_WINDOW,
    Bounds,
    LiveMinutes,
    Parameters,
    Samples,
    live_minimum,
)
from stepscope.rules.parts.promql import MINUTE, OF_NODE, Alert, PrometheusRules, Scraping, looked_up
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.starting import Pausing
from stepscope.runs.model import gpu_labels

DISTANCE = "run_instance:stepscope_gpu_load_distance:max"
READINGS = "run_instance_gpu:stepscope_gpu_load_distance:samples"
COMPARED = 'le=~"0[.][1-9]"'  # the bounds at which live distributions are compared: every tenth

Distance = Annotated[float, Bounds(0, 1, "a distance")]


@dataclass(frozen=True)
class LoadBalancingParameters(Parameters):
    threshold: Annotated[Distance, "the distributions of two GPUs are further apart than this"] = 0.2
    patience: Annotated[Samples, "a GPU is compared after this many readings"] = 1000
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class LoadBalancing(Rule[LoadBalancingParameters, Distances]):
    """Seconds lost: how much longer the least used GPU idled than the most used one, on the worst node."""

    subject = "Unbalanced GPU load"
    question = "Is the load balanced across the GPUs of a node?"
    description = (
        "Compares the distributions of the utilisation of a node's GPUs. In data-parallel training all GPUs "
        "do the same work, so GPUs that differ may wait for each other, or are not used at all."
    )
    recommendation = (
        "Give each GPU a process and an equal share of the work. Look for a GPU that also gathers results, "
        "for shards of different sizes, and for GPUs that the run does not use."
    )
    view = "balance"
    topic = "uneven GPUs"
    effect_of = "slow ranks"
    distance = 1  # from IdleGPU: a GPU without work is why the load is uneven
    is_symptom = True

    about_gpus = True
    bands = Bands("node", [Worst("a distance of {}", "{:.2f}".format)])
    measure = LOAD
    details_of = (USAGE,)

    def judge(self, view: Distances) -> Judgement:
        return self._judged(view, self.parameters.patience)

    def judge_live(self, view: Distances, sample_interval: float) -> Judgement:
        return self._judged(view, self._minimum(sample_interval))

    def _judged(self, view: Distances, minimum: float) -> Judgement:
        return judgement(
            view.readings > minimum, (view.distances, view.distances > self.parameters.threshold)
        )

    def _minimum(self, sample_interval: float) -> float:
        return live_minimum(self.parameters, sample_interval)

    def _window(self, scraping: Scraping) -> Window:
        return scraping.last(MINUTE * self.parameters.live_window)

    def _pausing(self, scraping: Scraping) -> Pausing:
        """Returns the runs whose ranks wait for one that pauses, until their GPUs differ by the threshold."""
        return Pausing(scraping, self._window(scraping).seconds, self.parameters.threshold)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: the widest gap at any bound between the largest and the smallest count.

        GPUs of a node nearly always have the same number of readings, so the gap of their counts is divided
        once: dividing each bucket costs twice as much. If the numbers differ, the difference is subtracted
        from the gap, so that it is never too large.
        """
        parameters, window = self.parameters, self._window(scraping)
        minimum = f"{self._minimum(scraping.sample_interval):.12g}"
        enough = f"{READINGS} > {minimum}"
        buckets = Gain(f"{GPU_SAMPLES}_bucket{{{COMPARED}}}", window, joined=True)
        compared = f"({buckets}\n        and ignoring (le) {enough})"
        earlier = f"offset {time_span(window.seconds)}"
        both_ends = (f"{GPU_SAMPLES}_{part}{{}}" for part in ("sum", "count"))
        mean = " / ".join(f"({series} - {series} {earlier} or {series})" for series in both_ends)
        utilisation = "GPU {{ .Labels.gpu }} was {{ .Value | humanizePercentage }} busy on average"
        most, least = f"max without (gpu) ({enough})", f"min without (gpu) ({enough})"
        readings = Record(READINGS, Gain(f"{GPU_SAMPLES}_count", window))
        return PrometheusRules(
            targets=(readings > 0).max_without("gpu"),
            every=4 * MINUTE,
            records=[
                readings,
                Record(
                    DISTANCE,
                    "round(\n  clamp_min(\n    max without (le) (\n"
                    f"      max without (gpu) {compared}\n        -\n"
                    f"      min without (gpu) {compared}\n    )\n"
                    f"      - ({most} - {least}), 0\n  )\n    / {most},\n  0.000000000001\n)",
                ),
            ],
            alerts=[
                Alert(
                    f"{DISTANCE} > {parameters.threshold:.12g} {self._pausing(scraping)}",
                    summary="Unbalanced GPU load on {{ $labels.instance }}",
                    description=f"In the last {parameters.live_window:g} minutes of run "
                    "{{ $labels.run }}, the distributions of the utilisation of two GPUs "
                    'of {{ $labels.instance }} are {{ printf "%.2f" $value }} apart '
                    f"(fires above {parameters.threshold:g}; 0: identical, 1: nothing in common)."
                    + looked_up(f"topk(1, {mean})", OF_NODE, f" {utilisation},")
                    + looked_up(f"bottomk(1, {mean})", OF_NODE, f" {utilisation}."),
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Distances]:
        """Returns the widest gaps between cumulative distributions, at any compared bound."""
        enough = Record(READINGS, "") > self._minimum(scraping.sample_interval)
        compared = Gain(f"{GPU_SAMPLES}_bucket{{{COMPARED}}}", self._window(scraping)) & enough
        gaps = (compared.max_without("gpu") - compared.min_without("gpu")).max_without("le")
        most = enough.max_without("gpu")
        uneven = most - enough.min_without("gpu")
        found = ((gaps - uneven).function("clamp_min", 0) / most).value(now)
        distances = {node: round(distance, DIGITS) for node, distance in found.items()}
        judged = self._pausing(scraping).spares(now, distances)
        view = Distances(column(distances, distances), np.where(judged, np.inf, 0.0))
        return Scraped(list(distances), view, {DISTANCE: distances})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        loads = run.of(self.measure)
        fired = [name for name in loads if tallies.of(name).triggered]
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(run, tallies, status),
            tallies.triggered,
            sum(tallies.of(name).elements for name in loads),
            sum(_most_readings(load) for load in loads.values()),
            max((_idle_beyond(run.nodes[name][USAGE].gpus) for name in fired), default=0.0)
            * run.facts.interval,
            details={name: self._details(name, run, tallies) for name in fired},
        )

    def _compared(self, load: NodeLoad, run: RunMeasurements) -> list[tuple[int, int, float]]:
        """Returns the pairs of GPUs that were compared: in a short run, those of the live window."""
        return _pairs(load, self.parameters.patience) or _pairs(load, self._minimum(run.facts.interval))

    def _finding(self, run: RunMeasurements, tallies: Tallies, status: Status) -> str:
        loads = run.of(self.measure)
        if status is Status.NOT_ENOUGH_DATA:
            if all(len(load.counts) < 2 for load in loads.values()):
                return "No node has two GPUs that could be compared."
            most = max(_most_readings(load) for load in loads.values())
            patience = self.parameters.patience
            return f"Too few readings of a GPU: {most}, and a comparison needs more than {patience} of two."
        means = {name: [100 * _mean(gpu) for gpu in run.nodes[name][USAGE].gpus] for name in loads}
        distance, _, name, first, second = max(
            (distance, abs(means[name][first] - means[name][second]), name, first, second)
            for name, load in loads.items()
            if tallies.of(name).judged and bool(tallies.of(name).triggered) == (status is Status.FOUND)
            for first, second, distance in self._compared(load, run)
        )
        labels, tally = gpu_labels(run.facts, name, len(loads[name].counts)), tallies.of(name)
        scans = f", in {tally.triggered} of {tally.judged} scans" if tally.triggered else ""
        return (
            f"On {name}, the utilisation of {labels[first]} (mean {percent(means[name][first])}) and of "
            f"{labels[second]} (mean {percent(means[name][second])}) differs most, by {distance:.2f}{scans}."
        )

    def _details(self, name: str, run: RunMeasurements, tallies: Tallies) -> dict[str, Any]:
        """Returns Debugger's fields of a node: histograms, and the Jensen-Shannon distance of each pair."""
        load, tally = run.nodes[name][self.measure], tallies.of(name)
        labels = gpu_labels(run.facts, name, len(load.counts))
        pairs = self._compared(load, run)
        distances: dict[str, dict[str, float]] = {}
        gaps: dict[str, dict[str, float]] = {}
        for first, second, gap in pairs:
            distance = jensen_shannon(load.counts[first], load.counts[second])
            distances.setdefault(labels[first], {})[labels[second]] = distance
            gaps.setdefault(labels[first], {})[labels[second]] = gap
        compared = sorted({gpu for pair in pairs for gpu in pair[:2]})
        return {
            "workloads": {labels[gpu]: load.counts[gpu].tolist() for gpu in compared},
            "distances": distances,
            "kolmogorov_smirnov": gaps,
            "triggered": tally.triggered,
            "violations": tally.elements,
        }


def _most_readings(load: NodeLoad) -> int:
    return int(load.readings.max(initial=0))


def _mean(gpu: GpuUsage) -> float:
    return gpu.utilisation.mean if gpu.utilisation.count else 0.0


def _idle_beyond(gpus: list[GpuUsage]) -> float:
    """Returns how many readings more the least used GPU idled than the most used one."""
    read = [gpu.utilisation for gpu in gpus if gpu.utilisation.count]
    means = [readings.mean for readings in read]
    return (max(means) - min(means)) * max(readings.count for readings in read) if read else 0.0


def _pairs(load: NodeLoad, patience: float) -> list[tuple[int, int, float]]:
    """Returns all pairs of GPUs with enough readings, and the distance of each."""
    enough = load.readings > patience
    firsts, seconds = np.triu_indices(len(load.counts), 1)
    distances = distances_between(load.counts)
    return [
        (int(first), int(second), float(distance))
        for first, second, distance in zip(firsts, seconds, distances, strict=True)
        if enough[first] and enough[second]
    ]


def jensen_shannon(first: Counts, second: Counts) -> float:
    """Returns the Jensen-Shannon distance of two histograms (natural logarithm): 0 to the root of ln 2."""
    shares = np.stack((first / first.sum(), second / second.sum()))
    middle = np.broadcast_to(shares.mean(axis=0), shares.shape)
    known = shares > 0
    divergence = float((shares[known] * np.log(shares[known] / middle[known])).sum() / 2)
    return float(np.sqrt(max(0.0, divergence)))
