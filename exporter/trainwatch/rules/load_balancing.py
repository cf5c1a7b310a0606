"""LoadBalancing: the load of a node's GPUs is unbalanced.

Source: SageMaker Debugger's LoadBalancing, which compares Jensen-Shannon distances of histograms that leave
out 100 %. Here the Kolmogorov-Smirnov distance decides, which Prometheus computes from the sample counters
without a join over pairs. The other distance is in the details.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.load import DIGITS, Counts, Distances, Load, NodeLoad, distances_between
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.scraped import (
    GPU_SAMPLES,
    SAMPLES,
    Moment,
    Scraped,
    Vector,
    column,
    divided,
    grouped,
    without,
)
from trainwatch.measurements.usage import GpuUsage, Usage
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import Bounds, Parameters, Samples
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.runs.model import gpu_labels
from trainwatch.status import Status
from trainwatch.words import percent

DISTANCE = "run_instance:trainwatch_gpu_load_distance:max"
SHARES = "run_instance_gpu_le:trainwatch_gpu_utilization_samples:ratio"

Distance = Annotated[float, Bounds(0, 1, "a distance")]


@dataclass(frozen=True)
class LoadBalancingParameters(Parameters):
    threshold: Annotated[Distance, "the distributions of two GPUs are further apart than this"] = 0.2
    patience: Annotated[Samples, "a GPU is compared after this many readings"] = 1000


@rule
class LoadBalancing(Rule[LoadBalancingParameters, Distances]):
    """Seconds lost: how much longer the least used GPU idled than the most used one, on the worst node."""

    parameters_type = LoadBalancingParameters
    subject = "Unbalanced GPU load"
    question = "Is the load balanced across the GPUs of a node?"
    description = (
        "Compares the distributions of the utilisation of a node's GPUs. In data-parallel training all GPUs "
        "do the same work, so GPUs that differ wait for each other, or are not used at all."
    )
    recommendation = (
        "Give each GPU a process and an equal share of the work. Look for a GPU that also gathers results, "
        "for shards of different sizes, and for GPUs that the run does not use."
    )
    view = "balance"
    is_symptom = True

    @property
    def measure(self) -> Load:
        return Load()

    @property
    def details_of(self) -> tuple[Usage]:
        return (Usage(),)

    def judge(self, view: Distances) -> Judgement:
        parameters = self.parameters
        return judgement(
            view.readings > parameters.patience, (view.distances, view.distances > parameters.threshold)
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: the widest gap at any bound between the largest and the smallest share.

        GPUs of a node nearly always have the same number of readings, so the gap of their counts is divided
        once. Dividing each bucket costs more than twice as much, and is done only for the other nodes.
        """
        parameters = self.parameters
        buckets, readings = f"{GPU_SAMPLES}_bucket", f"{GPU_SAMPLES}_count"
        most, least = f"max without (gpu) ({readings})", f"min without (gpu) ({readings})"
        return PrometheusRules(
            targets=SAMPLES,
            every=4 * MINUTE,
            records=[
                Record(
                    SHARES,
                    f"""
                    {buckets}
                      / ignoring (le) group_left ()
                    ({readings} > {parameters.patience} unless ignoring (gpu) ({most} == {least}))
                    """,
                ),
                Record(
                    DISTANCE,
                    f"""
                    round(
                      max without (le) (max without (gpu) ({buckets}) - min without (gpu) ({buckets}))
                        / ({most} == {least} > {parameters.patience})
                        or
                      max without (le) (max without (gpu) ({SHARES}) - min without (gpu) ({SHARES})),
                      0.000000000001
                    )
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{DISTANCE} > {parameters.threshold:.12g}",
                    summary="Unbalanced GPU load on {{ $labels.instance }}",
                    description="In run {{ $labels.run }}, the distributions of the utilisation of two GPUs "
                    'of {{ $labels.instance }} are {{ printf "%.2f" $value }} apart '
                    f"(fires above {parameters.threshold:g}; 0: identical, 1: nothing in common).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Distances]:
        """Returns the widest gaps between cumulative distributions, at any bound."""
        readings, patience = now(f"{GPU_SAMPLES}_count"), self.parameters.patience
        shares: Vector = {}
        for labels, count in now(f"{GPU_SAMPLES}_bucket").items():
            gpu = without(labels, "le")
            if readings.get(gpu, 0) > patience:
                shares[labels] = divided(count, readings[gpu])
        gaps = {labels: max(values) - min(values) for labels, values in grouped(shares, "gpu").items()}
        distances = {labels: round(max(values), DIGITS) for labels, values in grouped(gaps, "le").items()}
        # The rule divides bucket by bucket only if the GPUs of a node differ in their readings.
        uneven = {labels for labels, counts in grouped(readings, "gpu").items() if max(counts) != min(counts)}
        by_bucket = {
            labels: share for labels, share in shares.items() if without(labels, "le", "gpu") in uneven
        }
        view = Distances(column(distances, distances), np.full(len(distances), np.inf))
        return Scraped(list(distances), view, now(SAMPLES), {SHARES: by_bucket, DISTANCE: distances})

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
            max((_idle_beyond(run.nodes[name][Usage()].gpus) for name in fired), default=0.0)
            * run.facts.interval,
            details={name: self._details(name, run, tallies) for name in fired},
        )

    def _finding(self, run: RunMeasurements, tallies: Tallies, status: Status) -> str:
        loads, patience = run.of(self.measure), self.parameters.patience
        if status is Status.NOT_ENOUGH_DATA:
            if all(len(load.counts) < 2 for load in loads.values()):
                return "No node has two GPUs that could be compared."
            most = max(_most_readings(load) for load in loads.values())
            return f"Too few readings of a GPU: {most}, and a comparison needs more than {patience} of two."
        means = {name: [100 * _mean(gpu) for gpu in run.nodes[name][Usage()].gpus] for name in loads}
        distance, _, name, first, second = max(
            (distance, abs(means[name][first] - means[name][second]), name, first, second)
            for name, load in loads.items()
            if tallies.of(name).judged and bool(tallies.of(name).triggered) == (status is Status.FOUND)
            for first, second, distance in _pairs(load, patience)
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
        pairs = _pairs(load, self.parameters.patience)
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


def _pairs(load: NodeLoad, patience: int) -> list[tuple[int, int, float]]:
    """Returns all pairs of GPUs with enough readings, and the distance of each."""
    enough = load.readings > patience
    firsts, seconds = np.triu_indices(len(load.counts), 1)
    distances = distances_between(load.counts[None])[0]
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
