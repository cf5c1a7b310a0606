"""Computes box plots and histograms of each device's readings, from what rules measure anyway."""

import math
from typing import Literal

from stepscope.evaluation.analysis import BoxPlot, CoreHistogram, UtilisationHistogram
from stepscope.measurements.load import NodeLoad
from stepscope.measurements.sketch import RatioSketch
from stepscope.measurements.usage import NodeUsage
from stepscope.runs.model import RunFacts, gpu_labels


def box_plots(node: str, readings: NodeUsage, facts: RunFacts) -> list[BoxPlot]:
    """Returns box plots of the mean CPU, then of each GPU's utilisation and memory; skips unread devices."""
    boxes = [_box_plot(node, "CPU", "utilisation", readings.cpu)]
    labels = gpu_labels(facts, node, len(readings.gpus))
    for label, gpu in zip(labels, readings.gpus, strict=True):
        boxes.append(_box_plot(node, label, "utilisation", gpu.utilisation))
        boxes.append(_box_plot(node, label, "memory", gpu.memory))
    return [box for box in boxes if not math.isnan(box.p50)]


def _box_plot(
    node: str, device: str, quantity: Literal["utilisation", "memory"], readings: RatioSketch
) -> BoxPlot:
    box = readings.box_plot(5)
    return BoxPlot(
        node,
        device,
        quantity,
        *(box[name] for name in ("p05", "p25", "p50", "p75", "p95", "lower", "upper")),
    )


def core_histograms(node: str, usage: NodeUsage, facts: RunFacts) -> list[CoreHistogram]:
    """Returns the histograms of the cores that were read."""
    cpus = next((each.cpus for each in facts.nodes if each.node == node), ())
    return [
        CoreHistogram(
            node,
            cpus[place] if place < len(cpus) else str(place),
            (levels / levels.sum()).tolist(),
        )
        for place, levels in enumerate(usage.core_levels)
        if levels.any()
    ]


def histograms(node: str, readings: NodeLoad, facts: RunFacts) -> list[UtilisationHistogram]:
    """Returns the histograms of the GPUs that were read."""
    labels = gpu_labels(facts, node, len(readings.counts))
    return [
        UtilisationHistogram(node, label, counts.tolist())
        for label, counts in zip(labels, readings.counts, strict=True)
        if counts.any()
    ]
