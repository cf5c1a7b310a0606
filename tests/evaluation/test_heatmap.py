"""The heatmap: averages of columns, whatever the length of the run."""

import numpy as np
import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.heatmap import Heatmap
from stepscope.runs.model import GpuFacts, NodeFacts

from tests.support.source import START, MemorySource, node_samples, run_facts

NAN = float("nan")


def picture(cpu: np.ndarray, gpu: np.ndarray, start: float = START) -> Heatmap:
    facts = run_facts(nodes=[NodeFacts("node-a", cpus=("4", "7"), gpus=(GpuFacts("1"), GpuFacts("3")))])
    return evaluate(MemorySource(node_samples(cpu, gpu, start=start), facts=facts)).heatmaps[0]


def test_gpus_come_first_and_rows_have_the_names_of_the_facts() -> None:
    assert picture(np.zeros((4, 2)), np.ones((4, 2))).rows == ["GPU 1", "GPU 3", "CPU 4", "CPU 7"]


def test_a_short_run_has_a_column_a_second() -> None:
    heatmap = picture(np.array([[0.0], [0.5], [1.0], [1.0]]), np.empty((4, 0)), start=START + 0.25)
    assert (heatmap.column_seconds, heatmap.times) == (1.0, [START, START + 1])
    assert heatmap.values == [[25, 100]]


@pytest.mark.parametrize("rows", [1, 2, 1199, 1200, 1201, 2400, 2401, 50_000])
def test_columns_grow_so_that_there_are_never_more_than_600(rows: int) -> None:
    random = np.random.default_rng(rows)
    cpu = random.random((rows, 2))
    heatmap = picture(cpu, np.empty((rows, 0)))
    assert len(heatmap.times) == len(heatmap.values[0]) <= 600
    assert rows * 0.5 > 300 * heatmap.column_seconds or heatmap.column_seconds == 1
    columns = (np.arange(rows) * 0.5 // heatmap.column_seconds).astype(int)
    for device, values in enumerate(heatmap.values):
        expected = [100 * cpu[columns == column, device].mean() for column in range(len(heatmap.times))]
        assert values == pytest.approx(expected, abs=0.51)


def test_missing_readings_are_left_out_and_a_column_without_any_is_none() -> None:
    gpu = np.array([[0.4], [NAN], [NAN], [NAN], [0.6], [0.8]])
    assert picture(np.empty((6, 0)), gpu).values == [[40, None, 70]]
