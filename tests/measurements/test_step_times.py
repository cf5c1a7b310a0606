"""Own times and pauses of ranks: the same in however many blocks the steps come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.own_times import ALIKE, Aligned, NodeOwnTimes, OwnTimes, most_slow
from stepscope.measurements.pauses import Pauses
from stepscope.runs.model import COMPONENTS, Steps

from tests.support.source import node_steps, piece, rank_facts

NO_SCANS = np.empty(0, np.intp)
durations = st.lists(st.floats(0.1, 10), min_size=1, max_size=60).map(np.array)
rows_of_a_block = st.integers(1, 60)


def blocks(steps: Steps, rows: int) -> list[Steps]:
    return [piece(steps, start, start + rows) for start in range(0, len(steps), rows)]


def own_times(*blocks: Steps) -> OwnTimes:
    node = NodeOwnTimes()
    for block in blocks:
        node.observe_steps(block, NO_SCANS)
    return node.ranks[0]


@given(durations, rows_of_a_block, st.floats(0, 5))
def test_slices_are_sums_of_ten_steps_and_of_their_own_times(
    took: np.ndarray, rows: int, communicated: float
) -> None:
    steps = node_steps(took, first_number=0, communication=communicated, forward=0.5)
    own = np.maximum(took - communicated, 0)
    found = own_times(*blocks(steps, rows))
    whole = len(took) // 10
    assert (found.steps, found.own, found.seconds) == pytest.approx((len(took), own.sum(), took.sum()))
    slices = found.slices()
    tens = own[: 10 * whole].reshape(whole, 10)
    assert slices["steps"].tolist() == [10] * whole
    assert slices["own"] == pytest.approx(tens.sum(axis=1))
    assert slices["squares"] == pytest.approx((tens**2).sum(axis=1))
    assert slices["components"][:, COMPONENTS.index("forward")] == pytest.approx(np.full(whole, 5.0))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8, unique=True))
def test_ranks_above_the_widest_gap_are_compared_with_the_median_of_those_below(means: list[float]) -> None:
    ranks = [own_times(node_steps(np.full(30, mean), first_number=0)) for mean in means]
    (windows,) = Aligned(ranks).windows((30, 100, 1000))
    view = windows.compared(1)
    if len(means) == 1:
        assert np.isnan(view.excess).all()
        return
    ordered = sorted(means, reverse=True)
    alike = [
        (ordered[k - 1] - ordered[k], -k)
        for k in range(1, min(most_slow(len(means)), len(means) - 1) + 1)
        if ordered[k - 1] - ordered[k] >= ALIKE * (ordered[0] - ordered[k - 1])
    ]
    count = -max(alike)[1]
    assert view.slow[:, 0].tolist() == [mean in ordered[:count] for mean in means]
    expected = np.array(means) - np.median(ordered[count:])
    assert view.excess[:, 0] == pytest.approx(expected, abs=1e-9)


@given(durations, rows_of_a_block, st.floats(0, 8))
def test_pauses_longer_than_asked_for_are_kept_and_the_usual_one_is_the_median(
    took: np.ndarray, rows: int, longer_than: float
) -> None:
    steps = node_steps(took)
    pauses = Pauses(longer_than)
    for block in blocks(steps, rows):
        pauses.add(block)
    *ended, lasting = pauses.pauses([rank_facts()], failed=False)
    ends = steps.starts + steps.durations
    between = np.diff(ends)
    assert [pause.seconds for pause in ended] == between[between > longer_than].tolist()
    assert lasting == (ends[-1], 0.0, None)
    if len(between):
        assert pauses.usual == pytest.approx(np.percentile(between, 50), rel=0.02)
