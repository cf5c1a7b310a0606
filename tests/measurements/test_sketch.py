"""Sketches: percentiles of many values, block by block."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.sketch import RatioSketch, SizeSketch, Sketch

NAN = float("nan")

kinds = st.sampled_from([RatioSketch, SizeSketch])
some_values = st.lists(st.one_of(st.floats(0, 1, width=32), st.just(NAN)), max_size=40)


def sketch(kind: type[Sketch], values: list[float]) -> Sketch:
    found = kind()
    found.add(np.array(values, np.float64))
    return found


def test_a_sketch_of_whole_percents_is_exact() -> None:
    values = np.round(np.random.default_rng(2).random(999), 2).astype(np.float32)
    sketch = RatioSketch()
    sketch.add(values)
    for percent in range(0, 101, 5):
        exact = np.percentile(values.astype(np.float64), percent)
        assert sketch.percentile(percent) == pytest.approx(exact, abs=1e-6)


def test_a_sketch_of_sizes_keeps_0_apart_and_is_within_half_a_percent() -> None:
    sketch = SizeSketch()
    sketch.add(np.array([0.0, 0.0, 3e-7, 1.0, 5e13]))
    assert sketch.percentile(25) == 0
    assert sketch.percentile(50) == pytest.approx(3e-7, rel=0.005)
    assert sketch.percentile(75) == pytest.approx(1.0, rel=0.005)
    assert sketch.percentile(100) == 5e13


def test_an_empty_sketch_knows_nothing() -> None:
    sketch = RatioSketch()
    sketch.add(np.array([NAN], np.float32))
    assert np.isnan(sketch.percentile(50))
    assert np.isnan(sketch.mean)


@given(kinds, some_values, some_values)
def test_blocks_add_up_to_the_whole(kind: type[Sketch], one: list[float], other: list[float]) -> None:
    both, whole = sketch(kind, one), sketch(kind, one + other)
    both.add(np.array(other, np.float64))
    assert both.counts.tolist() == whole.counts.tolist()
    assert (both.count, both.min, both.max) == (whole.count, whole.min, whole.max)
    assert both.sum == pytest.approx(whole.sum)
    assert [both.percentile(percent) for percent in (0, 5, 50, 95, 100)] == pytest.approx(
        [whole.percentile(percent) for percent in (0, 5, 50, 95, 100)], nan_ok=True
    )
