"""Measures a scrape of 2,500 series, against prometheus_client's generate_latest in the same run.

The series are those of a node with 192 cores and 8 GPUs in a run: gauges and counters of cores and GPUs, and
the sample counters' histograms. prometheus_client gets finished metric families from a custom collector, so
only the writing is timed on both sides. Every value changes between two scrapes.
"""

import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from stepscope.exporter.sampling.exposition import Exposition
from stepscope.exporter.sampling.families import Family, HistogramValue, LabelValues

from benchmarks import Row
from benchmarks.measure import cpu_seconds
from benchmarks.node import CORES, GPUS, BusyNode, exporter_in_this_process

SERIES = 2500
BOUNDS = tuple(number / 50 for number in range(51))  # every 0.02, as in the samples' histograms


class Node:
    """Families with SERIES series in total; `tick` draws new values."""

    def __init__(self) -> None:
        cores: list[LabelValues] = [(str(core),) for core in range(192)]
        gpus: list[LabelValues] = [(str(gpu),) for gpu in range(8)]
        self.plain: list[tuple[Family, Sequence[LabelValues]]] = [
            (
                Family("stepscope_cpu_utilization_ratio", "gauge", "Utilisation of the core.", ("cpu",)),
                cores,
            ),
            (Family("stepscope_cpu_io_wait_ratio", "gauge", "I/O wait of the core.", ("cpu",)), cores),
        ]
        self.plain += [
            (Family(f"stepscope_gpu_{number}_ratio", "gauge", "Something of the GPU.", ("gpu",)), gpus)
            for number in range(18)
        ]
        self.histograms = [
            (
                Family(f"stepscope_{what}_samples", "histogram", "Samples.", ("run", "gpu"), BOUNDS),
                [("resnet", *gpu) for gpu in gpus],
            )
            for what in ("gpu_utilization", "gpu_memory", "sm_active", "dram_active")
        ]
        lines = sum(len(series) for _, series in self.plain)
        lines += sum(len(series) for _, series in self.histograms) * (len(BOUNDS) + 3)
        counters: list[LabelValues] = [("resnet", f"{number / 1000:g}") for number in range(SERIES - lines)]
        low = Family(
            "stepscope_gpu_low_samples_total", "counter", "Samples with a low GPU.", ("run", "gpu_below")
        )
        self.plain.append((low, counters))
        self.families = [family for family, _ in self.plain + self.histograms]
        self._random = random.Random(2500)
        self.tick()

    def tick(self) -> None:
        draw = self._random
        for family, series in self.plain:
            if family.kind == "counter":
                family.publish({labels: draw.randrange(10**6) for labels in series})
            else:
                family.publish({labels: draw.random() for labels in series})
        for family, series in self.histograms:
            family.publish_histograms(
                {
                    labels: HistogramValue(draw.choices(range(1000), k=len(BOUNDS) + 1), draw.random())
                    for labels in series
                }
            )


class ClientFamilies(Collector):
    """The same families as objects of prometheus_client, built when they change and not when scraped."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.metrics: list[Metric] = []

    def tick(self) -> None:
        self._node.tick()
        self.metrics = [self._metric(family) for family in self._node.families]

    def collect(self) -> Iterable[Metric]:
        return self.metrics

    def _metric(self, family: Family) -> Metric:
        name = family.name.removesuffix("_total")
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
            for labels, value in family.histograms.items():
                counts = [sum(value.counts[: index + 1]) for index in range(len(value.counts))]
                bounds = [str(bound) for bound in family.bounds] + ["+Inf"]
                histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), value.sum)
            return histogram
        metric = Metric(name, family.help, family.kind)
        for labels, number in family.samples.items():
            metric.add_sample(family.name, dict(zip(family.labels, labels, strict=True)), number)
        return metric


def rows() -> list[Row]:
    node = Node()
    exposition = Exposition()
    theirs = ClientFamilies(node)
    registry = CollectorRegistry()
    registry.register(theirs)
    theirs.tick()
    series = _same_samples(exposition.write(node.families, "text"), generate_latest(registry))

    whole, lines = _whole_scrape()
    ours = cpu_seconds(lambda: exposition.write(node.families, "text"), 300, before_each=node.tick)
    openmetrics = cpu_seconds(
        lambda: exposition.write(node.families, "openmetrics"), 300, before_each=node.tick
    )
    client = cpu_seconds(lambda: generate_latest(registry), 60, before_each=theirs.tick)
    return [
        (f"scrape of {series:,} series", ours * 1e3, "ms CPU", "<= 2"),
        (f"scrape of {series:,} series, OpenMetrics", openmetrics * 1e3, "ms CPU", "<= 2"),
        ("the same series by prometheus_client's generate_latest", client * 1e3, "ms CPU", ""),
        ("  speed-up over prometheus_client", client / ours, "times", ">= 10"),
        (
            f"whole scrape of {CORES} cores, {GPUS} GPUs and a run: {lines:,} series",
            whole * 1e3,
            "ms CPU",
            "<= 2",
        ),
    ]


def _whole_scrape() -> tuple[float, int]:
    """Returns the CPU time of a scrape of the real exporter on a busy node after a tick, and its series."""
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        node = BusyNode(Path(directory))
        with exporter_in_this_process(node) as exporter:

            def tick() -> None:
                node.advance()
                exporter._sampler.tick()

            seconds = cpu_seconds(lambda: exporter.scrape("text"), 100, before_each=tick)
            lines = exporter.scrape("text").decode().splitlines()
    return seconds, sum(not line.startswith("#") for line in lines)


def _same_samples(ours: bytes, theirs: bytes) -> int:
    """Returns the number of samples in both texts. Raises ValueError if the texts differ."""
    parsed = [
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }
        for text in (ours, theirs)
    ]
    if parsed[0] != parsed[1]:
        raise ValueError("the two texts have different samples")
    return len(parsed[0])
