"""The wait for a rank that is the slowest by turns."""

import numpy as np
import pytest
from stepscope.measurements.own_times import OwnTimes, waited_by_turns
from stepscope.runs.model import COMPONENTS, Times


def rank(own: Times, step: float, first: int = 0) -> OwnTimes:
    """A rank that spends its steps of `step` seconds by itself for `own`, and waits for the rest."""
    components = np.zeros((len(own), len(COMPONENTS)))
    components[:, COMPONENTS.index("communication")] = step - own
    times = OwnTimes()
    numbers = np.arange(first, first + len(own))
    for part in np.array_split(numbers - first, 3):
        times.add(
            numbers[part], (step * numbers[part]).astype(float), np.full(len(part), step), components[part]
        )
    return times


def test_the_slowest_by_turns_makes_the_others_wait() -> None:
    even = np.resize([1.0, 3.0], 300)
    assert waited_by_turns([rank(even, 4.0), rank(4 - even, 4.0)]) == pytest.approx(0.25)
    assert waited_by_turns([rank(even, 4.0), rank(4 - even[1:], 4.0, 1)]) == pytest.approx(0.25)


def test_a_rank_that_is_always_the_slowest_is_a_straggler_instead() -> None:
    assert waited_by_turns([rank(np.full(300, 1.0), 4.0), rank(np.full(300, 3.0), 4.0)]) == 0


def test_ranks_without_common_steps_or_peers_wait_for_nobody() -> None:
    ones = np.ones(90)
    assert waited_by_turns([]) == 0
    assert waited_by_turns([rank(ones, 2.0)]) == 0
    assert waited_by_turns([rank(ones, 2.0), rank(ones, 2.0, 100)]) == 0
