"""Box plots and histograms of each device, and samples with a low GPU, by cause."""

import numpy as np
import pytest
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.heatmap import LowGpuSamples

from tests.support.source import MemorySource, node_samples

NAN = float("nan")


def of(cpu: object, gpu: object, io_wait: object = None, gpu_memory: object = None) -> Analysis:
    samples = node_samples(cpu, gpu, io_wait, gpu_memory=gpu_memory)  # type: ignore[arg-type]
    return evaluate(MemorySource(samples))


def test_low_gpu_samples_are_counted_by_what_the_cores_did() -> None:
    cpu = [[0.95, 0.1], [0.95, 0.1], [0.1, 0.1], [0.1, 0.1], [0.95, 0.1]]
    io_wait = [[0.0, 0.0], [0.0, 0.6], [0.0, 0.6], [0.0, 0.0], [0.0, 0.6]]
    gpu = [[0.05], [0.05], [0.05], [0.05], [0.5]]
    assert of(cpu, gpu, io_wait).low_gpu_snapshots == [
        LowGpuSamples("node-a", snapshots=5, low=4, cpu=1, io=1, both=1)
    ]


def test_without_a_gpu_no_sample_is_counted() -> None:
    assert of([[0.95]], np.empty((1, 0))).low_gpu_snapshots == []
    assert of([[0.95]], [[NAN]]).low_gpu_snapshots == []  # MIG


def test_a_heatmap_marks_the_share_of_starved_samples_of_each_column() -> None:
    (heatmap,) = of([[0.95], [0.1], [0.95], [0.95]], [[0.05], [0.05], [0.05], [0.05]]).heatmaps
    assert heatmap.starved == {"cpu": [50, 100], "io": [0, 0]}


def test_a_heatmap_has_the_memory_of_each_gpu() -> None:
    (heatmap,) = of([[0.0]] * 2, [[0.5, 0.5]] * 2, gpu_memory=[[0.25, NAN], [0.35, NAN]]).heatmaps
    assert heatmap.gpu_memory == [[30], [None]]


def test_box_plots_are_numpys_percentiles_with_whiskers_of_1_5_interquartile_ranges() -> None:
    random = np.random.default_rng(5)
    gpu = np.round(random.beta(2, 5, (5000, 1)), 2)
    boxes = {(box.device, box.quantity): box for box in of(np.zeros((5000, 2)), gpu).box_plots}
    assert set(boxes) == {("CPU", "utilisation"), ("GPU 0", "utilisation"), ("GPU 0", "memory")}
    box = boxes["GPU 0", "utilisation"]
    percent = 100 * gpu[:, 0]
    assert (box.p5, box.p25, box.p50, box.p75, box.p95) == pytest.approx(
        tuple(np.percentile(percent, (5, 25, 50, 75, 95))), abs=0.01
    )
    assert box.upper == pytest.approx(min(percent.max(), box.p75 + 1.5 * (box.p75 - box.p25)), abs=0.01)


def test_a_gpu_that_was_never_read_has_neither_box_nor_histogram() -> None:
    analysis = of([[0.5]] * 3, [[NAN, 0.999]] * 3, gpu_memory=[[NAN, 0.1]] * 3)
    assert [(box.device, box.quantity) for box in analysis.box_plots] == [
        ("CPU", "utilisation"),
        ("GPU 1", "utilisation"),
        ("GPU 1", "memory"),
    ]
    (histogram,) = analysis.utilisation_histograms
    assert (histogram.gpu, histogram.counts) == ("GPU 1", [0] * 49 + [3])
