"""When scans end, and how rows become blocks."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.evaluation import blocks
from stepscope.evaluation.blocks import Blocks
from stepscope.evaluation.engine import Evaluator, evaluate
from stepscope.runs.model import NodeSamples

from tests.support.few_rules import judged
from tests.support.source import START, MemorySource, node_samples, node_steps, piece, run_facts


def triggered(samples: NodeSamples, interval: float = 60.0) -> int:
    """Scans of a run of which each one fires."""
    return judged("CPUBottleneck", samples, scan=interval, patience=0).triggered


def starved(rows: int, start: float = START) -> NodeSamples:
    return node_samples(np.ones((rows, 1)), np.zeros((rows, 1)), start=start)


@pytest.mark.parametrize(
    ("start", "seconds", "scans"),
    [
        (0, 0.5, 1),
        (0, 60, 1),
        (0, 60.5, 2),  # a sample exactly at a minute belongs to the next one
        (0, 120, 2),
        (59.5, 1, 2),  # the first scan ends at the minute, half a second after the first sample
        (30, 60, 2),
        (30, 90.5, 3),
    ],
)
def test_scans_end_at_whole_minutes_and_with_the_last_sample(
    start: float, seconds: float, scans: int
) -> None:
    assert triggered(starved(int(2 * seconds), START + start)) == scans


def test_a_gap_holds_no_scans() -> None:
    samples = starved(240)
    samples.times[120:] += 86_400
    assert triggered(samples) == 2


def test_a_clock_that_is_set_back_ends_no_scan_twice() -> None:
    samples = starved(360)
    samples.times[130:] -= 45
    assert triggered(samples) == 3  # the third minute is reached late


def scan_ends(times: list[float], interval: float) -> list[int]:
    """Returns how many rows have come at the end of each scan; the last one ends with the last row."""
    scans = [(time - times[0] // 60 * 60) // interval for time in times]
    return [*(row for row in range(1, len(times)) if scans[row] > scans[row - 1]), len(times)]


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=60),
    st.sampled_from([1.0, 7.5, 60.0]),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_blocks_hold_each_row_once_and_scans_end_at_multiples_of_the_interval(
    gaps: list[float], interval: float, chunk_rows: int, block_rows: int
) -> None:
    samples = starved(len(gaps))
    samples.times[:] = START + 17.3 + np.cumsum(gaps)
    stream: Blocks[NodeSamples] = Blocks(interval)
    with patch.object(blocks, "BLOCK_ROWS", block_rows):
        pieces = [piece(samples, start, start + chunk_rows) for start in range(0, len(samples), chunk_rows)]
        found = [block for one in pieces for block in stream.add(one)]
        assert all(len(block.rows) == block_rows for block in found)
        found += stream.copy().rest()
    assert np.array_equal(np.concatenate([block.rows.times for block in found]), samples.times)
    starts = np.cumsum([0] + [len(block.rows) for block in found])
    ends = [int(start + end) for start, block in zip(starts, found, strict=False) for end in block.scans]
    assert ends == scan_ends(samples.times.tolist(), interval)


def test_a_gpu_that_appears_later_is_missing_before() -> None:
    """A driver that comes up after the exporter: the columns grow in the middle of a block."""
    before = node_samples(np.ones((100, 1)), np.zeros((100, 1)))
    after = node_samples(np.ones((3000, 1)), np.zeros((3000, 2)), start=START + 50)
    analysis = evaluate(MemorySource(before, after))
    found = {one.rule: one for one in analysis.rules}
    assert found["LowGPUUtilization"].datapoints == 3100
    heatmap = analysis.heatmaps[0]
    assert heatmap.rows == ["GPU 0", "GPU 1", "CPU 0"]
    assert heatmap.values[1][0] is None
    assert heatmap.values[1][-1] == 0


def test_a_gpu_that_goes_for_good_keeps_its_row() -> None:
    before = node_samples(np.ones((3000, 1)), np.zeros((3000, 2)))
    after = node_samples(np.ones((3000, 1)), np.zeros((3000, 1)), start=START + 1500)
    heatmap = evaluate(MemorySource(before, after)).heatmaps[0]
    assert heatmap.rows == ["GPU 0", "GPU 1", "CPU 0"]
    assert heatmap.values[1][-1] is None


def test_the_evaluator_refuses_a_scan_interval_of_nothing() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Evaluator(MemorySource(), scan_interval=0)


def test_an_empty_run_has_an_analysis_too() -> None:
    analysis = evaluate(MemorySource(facts=run_facts(name="nothing")))
    assert (analysis.run, analysis.samples_taken, analysis.heatmaps, analysis.steps) == ("nothing", 0, [], [])
    assert {found.status for found in analysis.rules} == {"not enough data"}
    assert all(found.finding for found in analysis.rules)


def test_steps_without_samples_are_evaluated() -> None:
    analysis = evaluate(MemorySource(node_steps(np.full(200, 0.1), data_wait=0.05)))
    assert analysis.rules[0].rule == "DataStarved"
    assert analysis.rules[0].status == "found"


def test_progress_is_told_the_rows_read() -> None:
    told: list[int] = []
    evaluate(MemorySource(starved(250), chunk_rows=100), progress=told.append)
    assert told == [100, 200, 250]
