"""Self times and pauses of ranks: the same in however many blocks the steps come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainwatch.measurements.pauses import Pauses
from trainwatch.measurements.self_times import COMMUNICATION, NodeSelfTimes, PeersByWindow, SelfTimes
from trainwatch.runs.model import Steps

from tests.support.source import node_steps, piece, rank_facts

NO_SCANS = np.empty(0, np.intp)
durations = st.lists(st.floats(0.01, 10), min_size=1, max_size=60).map(np.array)
rows_of_a_block = st.integers(1, 60)


def blocks(steps: Steps, rows: int) -> list[Steps]:
    return [piece(steps, start, start + rows) for start in range(0, len(steps), rows)]


def self_times(*blocks: Steps) -> SelfTimes:
    node = NodeSelfTimes()
    for block in blocks:
        node.observe_steps(block, NO_SCANS)
    return node.ranks[0]


@given(durations, rows_of_a_block, st.floats(0, 5))
def test_self_times_are_means_of_ten_steps_without_communication(
    took: np.ndarray, rows: int, communicated: float
) -> None:
    steps = node_steps(took, first_number=0, communication=communicated)
    own = np.maximum(took - steps.components[:, COMMUNICATION], 0)
    found = self_times(*blocks(steps, rows))
    whole = len(took) // 10
    assert found.seconds == pytest.approx(own.sum())
    assert found.means()[:, 1] == pytest.approx(own[: 10 * whole].reshape(whole, 10).mean(axis=1))


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8))
def test_peers_are_the_median_of_the_others_as_a_share_of_the_own_time(means: list[float]) -> None:
    found = PeersByWindow([self_times(node_steps(np.full(10, mean), first_number=0)) for mean in means], 10)
    ratios, slowest = found.view.ratio[:, 0], found.view.slowest[:, 0]
    if len(means) == 1:
        assert np.isnan(ratios).all()
        return
    own = found.own[:, 0]
    expected = [np.median(np.delete(own, place)) / mean for place, mean in enumerate(own)]
    assert ratios == pytest.approx(np.array(expected))
    assert slowest.tolist() == [float(mean == own.max()) for mean in own]


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
