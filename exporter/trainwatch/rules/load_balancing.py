"""LoadBalancing: GPUs of one node are used differently.

Source: SageMaker Debugger's LoadBalancing, which compares Jensen-Shannon distances of histograms that leave
100 % out. The decision here is by the Kolmogorov-Smirnov distance, which Prometheus computes from the
sample counters without a join over pairs; the other distance is in the details.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import Bounds, Parameters, Samples
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.runs.model import Floats, NodeSamples, RunFacts, gpu_labels

# Bins of 2 points: 0 to 2 %, above 2 to 4 %, ..., above 98 to 100 %; those of the sample counters.
BINS = 50
# Readings are known to 0.01 points: that tells float32's 0.58 from what lies above 58 %.
PARTS = 10_000
# Shares that differ by less are the same: they are quotients of whole numbers.
DIGITS = 12

Distance = Annotated[float, Bounds(0, 1, "a distance")]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class LoadBalancingParameters(Parameters):
    threshold: Annotated[Distance, "the distributions of two GPUs are further apart than this"] = 0.2
    patience: Annotated[Samples, "a GPU is compared after this many readings"] = 1000


@rule
class LoadBalancing(Rule[LoadBalancingParameters, "NodeOfDistributions"]):
    """Seconds lost: what the least used GPU idled beyond the most used one, on the node that lost most."""

    parameters_type = LoadBalancingParameters
    subject = "Unequal work on the GPUs"
    question = "Do all GPUs of a node work alike?"
    description = (
        "Compares how the utilisation of the GPUs of a node is distributed. In data-parallel training all "
        "do the same, so GPUs that differ wait for one another, or some are not used at all."
    )
    recommendation = (
        "Give each GPU a process and an equal share of the work; look for a GPU that also gathers results, "
        "for shards of different size, and for GPUs that the run does not use."
    )
    view = "balance"
    is_symptom = True

    def node(self) -> NodeOfDistributions:
        return NodeOfDistributions(self.parameters)

    def judge(self, nodes: Mapping[str, NodeOfDistributions], facts: RunFacts) -> Verdict:
        triggered = sum(node.triggered for node in nodes.values())
        status = status_of(triggered, sum(node.judged for node in nodes.values()))
        return Verdict(
            status,
            self._finding(nodes, facts, status),
            triggered,
            sum(node.violations for node in nodes.values()),
            sum(node.most_readings for node in nodes.values()),
            max((node.idle_beyond for node in nodes.values() if node.triggered), default=0.0)
            * facts.interval,
            details={name: _details(name, node, facts) for name, node in nodes.items() if node.triggered},
        )

    def _finding(self, nodes: Mapping[str, NodeOfDistributions], facts: RunFacts, status: str) -> str:
        if status == "not judged":
            if all(len(node.counts) < 2 for node in nodes.values()):
                return "No node has two GPUs that could be compared."
            most = max(node.most_readings for node in nodes.values())
            patience = self.parameters.patience
            return f"Too few readings of a GPU: {most}, and a comparison needs more than {patience} of two."
        concerned = [
            (name, node, pair)
            for name, node in nodes.items()
            if node.judged and bool(node.triggered) == (status == "fired")
            for pair in node.pairs()
        ]
        name, node, (one, other, distance) = max(concerned, key=_how_different)
        labels = gpu_labels(facts, name, len(node.counts))
        means = 100 * node.means
        scans = f", in {node.triggered} of {node.judged} scans" if node.triggered else ""
        return (
            f"On {name}, the utilisation of {labels[one]} (mean {means[one]:.0f} %) and of {labels[other]} "
            f"(mean {means[other]:.0f} %) differs most, by {distance:.2f}{scans}."
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """The widest gap at each bound between the GPU with the largest share and the one with the least.

        GPUs of a node nearly always have the same number of readings: the gap of their counts is divided by
        that. Dividing each bucket, which costs more than twice as much, is left for those that have not.
        """
        its = self.parameters
        histogram = "trainwatch_gpu_utilization_samples"
        record = "run_instance:trainwatch_gpu_load_distance:max"
        shares = "run_instance_gpu_le:trainwatch_gpu_utilization_samples:ratio"
        buckets, readings = f"{histogram}_bucket", f"{histogram}_count"
        most, least = f"max without (gpu) ({readings})", f"min without (gpu) ({readings})"
        return PrometheusRules(
            targets="trainwatch_samples_total",
            every=4 * MINUTE,
            records=[
                Record(
                    shares,
                    f"""
                    {buckets}
                      / ignoring (le) group_left ()
                    ({readings} > {its.patience} unless ignoring (gpu) ({most} == {least}))
                    """,
                ),
                Record(
                    record,
                    f"""
                    round(
                      max without (le) (max without (gpu) ({buckets}) - min without (gpu) ({buckets}))
                        / ({most} == {least} > {its.patience})
                        or
                      max without (le) (max without (gpu) ({shares}) - min without (gpu) ({shares})),
                      0.000000000001
                    )
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{record} > {its.threshold:.12g}",
                    summary="The GPUs of {{ $labels.instance }} do not work alike",
                    description="In run {{ $labels.run }}, the distributions of the utilisation of two GPUs "
                    'of {{ $labels.instance }} are {{ printf "%.2f" $value }} apart '
                    f"(fires above {its.threshold:g}; 0: alike, 1: nothing in common).",
                )
            ],
        )


class NodeOfDistributions(NodeState):
    """Counts of each GPU's readings in bins of 2 points, (GPUs, BINS)."""

    def __init__(self, parameters: LoadBalancingParameters) -> None:
        self.parameters = parameters
        self.counts: Counts = np.zeros((0, BINS), np.int64)
        self.sums: NDArray[np.float64] = np.zeros(0)  # of utilisation, by GPU
        self.at_last_scan = 0  # readings so far, of all GPUs
        self.triggered = self.violations = self.judged = 0

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        grown = samples.gpu.shape[1] - len(self.counts)
        if grown > 0:
            self.counts = np.pad(self.counts, ((0, grown), (0, 0)))
            self.sums = np.pad(self.sums, (0, grown))
        self.sums = self.sums + np.nansum(samples.gpu, axis=0, dtype=np.float64)
        until = self.counts + np.cumsum(_counts_between(samples.gpu, scans), axis=0)
        self.counts = until[-1]
        self._judge(until[:-1])

    def _judge(self, counts: Counts) -> None:
        """`counts` is (scans, GPUs, BINS): what each scan sees."""
        readings = counts.sum(axis=2)
        new = np.diff(readings.sum(axis=1), prepend=self.at_last_scan) > 0
        if len(counts):
            self.at_last_scan = int(readings[-1].sum())
        distances = _gaps(counts)
        enough = readings > self.parameters.patience
        one, other = np.triu_indices(counts.shape[1], 1)
        compared = enough[:, one] & enough[:, other] & new[:, None]
        apart = compared & (distances > self.parameters.threshold)
        self.judged += int(np.count_nonzero(compared.any(axis=1)))
        self.triggered += int(np.count_nonzero(apart.any(axis=1)))
        self.violations += int(np.count_nonzero(apart))

    @property
    def most_readings(self) -> int:
        return int(self.counts.sum(axis=1).max(initial=0))

    @property
    def means(self) -> NDArray[np.float64]:
        """(GPUs,) mean utilisation; 0 where there is no reading."""
        means: NDArray[np.float64] = self.sums / np.maximum(self.counts.sum(axis=1), 1)
        return means

    @property
    def idle_beyond(self) -> float:
        """Readings' worth of time that the least used GPU idled beyond the most used one."""
        readings = self.counts.sum(axis=1)
        means = self.means[readings > 0]
        return float((means.max() - means.min()) * readings.max()) if len(means) else 0.0

    def pairs(self) -> list[tuple[int, int, float]]:
        """All pairs of GPUs that may be compared, with the distance that decides."""
        enough = self.counts.sum(axis=1) > self.parameters.patience
        ones, others = np.triu_indices(len(self.counts), 1)
        distances = _gaps(self.counts[None])[0]
        return [
            (int(one), int(other), float(distance))
            for one, other, distance in zip(ones, others, distances, strict=True)
            if enough[one] and enough[other]
        ]


def _how_different(found: tuple[str, NodeOfDistributions, tuple[int, int, float]]) -> tuple[float, float]:
    """Orders pairs of GPUs: by their distance, then by their means."""
    _, node, (one, other, distance) = found
    return distance, float(abs(node.means[one] - node.means[other]))


def _counts_between(readings: Floats, scans: Scans) -> Counts:
    """(scans + 1, GPUs, BINS): the readings up to each scan since the one before, and those after the last.

    `readings` is (n, GPUs), NaN where missing.
    """
    rows, gpus = readings.shape
    there = ~np.isnan(readings)
    parts = np.rint(PARTS * np.where(there, readings, 0)).astype(np.int64)
    bins = np.clip(-(-parts * BINS // PARTS) - 1, 0, BINS - 1)  # rounded up: a bound belongs to the bin below
    segments = np.searchsorted(scans, np.arange(rows), side="right")
    places = (segments[:, None] * gpus + np.arange(gpus)) * BINS + bins
    counts = np.bincount(places[there], minlength=(len(scans) + 1) * gpus * BINS)
    return counts.reshape(len(scans) + 1, gpus, BINS)


def _gaps(counts: Counts) -> NDArray[np.float64]:
    """(..., pairs): the Kolmogorov-Smirnov distance of each pair of GPUs of `counts` (..., GPUs, BINS)."""
    shares = np.cumsum(counts, axis=-1) / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    one, other = np.triu_indices(counts.shape[-2], 1)
    gaps = np.abs(shares[..., one, :] - shares[..., other, :]).max(axis=-1, initial=0.0)
    distances: NDArray[np.float64] = np.round(gaps, DIGITS)
    return distances


def jensen_shannon(one: Counts, other: Counts) -> float:
    """The Jensen-Shannon distance of two histograms (natural logarithm): 0 to the root of ln 2."""
    shares = np.stack((one / one.sum(), other / other.sum()))
    middle = np.broadcast_to(shares.mean(axis=0), shares.shape)
    there = shares > 0
    divergence = float((shares[there] * np.log(shares[there] / middle[there])).sum() / 2)
    return float(np.sqrt(max(0.0, divergence)))


def _details(name: str, node: NodeOfDistributions, facts: RunFacts) -> dict[str, Any]:
    """Debugger's fields of a node: histograms, and the Jensen-Shannon distance of each pair."""
    labels = gpu_labels(facts, name, len(node.counts))
    distances: dict[str, dict[str, float]] = {}
    gaps: dict[str, dict[str, float]] = {}
    for one, other, gap in node.pairs():
        distance = jensen_shannon(node.counts[one], node.counts[other])
        distances.setdefault(labels[one], {})[labels[other]] = distance
        gaps.setdefault(labels[one], {})[labels[other]] = gap
    compared = sorted({gpu for one, other, _ in node.pairs() for gpu in (one, other)})
    return {
        "workloads": {labels[gpu]: node.counts[gpu].tolist() for gpu in compared},
        "distances": distances,
        "kolmogorov_smirnov": gaps,
        "triggered": node.triggered,
        "violations": node.violations,
    }
