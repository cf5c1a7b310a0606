"""What a scan finds is the same however the samples are cut into blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.memory_growth import MemoryOfGpus
from stepscope.measurements.state import HighestSinceScan

from tests.support.source import node_samples, piece

NAN = float("nan")
readings = st.lists(st.one_of(st.floats(0, 1, width=32), st.just(NAN)), min_size=1, max_size=40)
cuts = st.sets(st.integers(0, 40), max_size=5)


def blocks(rows: int, scans: list[int], at: set[int]) -> list[tuple[slice, np.ndarray]]:
    """Blocks of rows, each with the scans that end in it."""
    starts = sorted({0, *(cut for cut in at if cut < rows)})
    ends = [*starts[1:], rows]
    return [
        (
            slice(start, end),
            np.array([scan - start for scan in scans if start < scan <= end or start == scan == 0], np.intp),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


@given(readings, cuts, cuts)
def test_each_scan_finds_the_highest_since_the_one_before(
    values: list[float], scans: set[int], at: set[int]
) -> None:
    ends = sorted(scan for scan in scans if scan <= len(values))
    column, highest = np.array(values, np.float32)[:, None], HighestSinceScan()
    parts = blocks(len(values), ends, at)
    found = np.concatenate([highest.add(column[rows], within) for rows, within in parts])[:, 0]
    expected = [
        max((value for value in values[start:end] if value == value), default=NAN)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_a_gpu_that_comes_later_was_not_read_before() -> None:
    highest = HighestSinceScan()
    none = highest.add(np.array([[0.5]]), np.array([], np.intp))
    found = highest.add(np.array([[0.25, 0.75]]), np.array([0, 1], np.intp))
    assert none.shape == (0, 1)
    np.testing.assert_array_equal(found, [[0.5, NAN], [0.25, 0.75]])


@given(st.integers(0, 2**32 - 1), cuts, cuts)
def test_the_growth_of_memory_is_the_same_in_any_blocks(seed: int, scans: set[int], at: set[int]) -> None:
    random = np.random.default_rng(seed)
    memory = np.clip(np.linspace(0.2, random.random(2), 40) + 0.01 * random.random((40, 2)), 0, 1)
    samples = node_samples(np.zeros((40, 1)), np.ones((40, 2)), gpu_memory=memory)
    ends = sorted(scans)
    whole, cut = MemoryOfGpus(), MemoryOfGpus()
    expected = list(whole.observe(samples, np.array(ends, np.intp)))
    views = [
        list(cut.observe(piece(samples, rows.start, rows.stop), within))
        for rows, within in blocks(40, ends, at)
    ]
    for column in (0, 1):
        for number, values in enumerate(expected[column][1]):
            found = np.concatenate([block[column][1][number] for block in views])
            np.testing.assert_array_equal(found, values)
