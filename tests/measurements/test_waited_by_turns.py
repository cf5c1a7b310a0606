"""The wait for a rank that is the slowest by turns."""

import numpy as np
import pytest
from stepscope.measurements.own_times import OwnTimes, uneven_component, waited_by_turns
from stepscope.runs.model import COMPONENTS, Times


def rank(own: Times, step: Times | float, first: int = 0, **others: Times | float) -> OwnTimes:
    """A rank that spends its steps of `step` seconds by itself for `own`, and waits for the rest."""
    components = np.zeros((len(own), len(COMPONENTS)))
    for name, seconds in {"communication": step - own, **others}.items():
        components[:, COMPONENTS.index(name)] = seconds
    steps = np.broadcast_to(step, own.shape)
    times = OwnTimes()
    numbers = np.arange(first, first + len(own))
    for part in np.array_split(numbers - first, 3):
        times.add(numbers[part], np.cumsum(steps)[part], steps[part], components[part])
    return times


def test_the_slowest_by_turns_makes_the_others_wait() -> None:
    even = np.resize([1.0, 3.0], 300)
    assert waited_by_turns([rank(even, 4.0), rank(4 - even, 4.0)]) == pytest.approx(0.25)
    assert waited_by_turns([rank(even, 4.0), rank(4 - even[1:], 4.0, 1)]) == pytest.approx(0.25)


@pytest.mark.parametrize("slow", [[3.0], [3.0, 0.99, 0.99]], ids=["always", "at every third step"])
def test_a_rank_for_which_the_others_mostly_wait_is_a_straggler_instead(slow: list[float]) -> None:
    assert waited_by_turns([rank(np.full(300, 1.0), 4.0), rank(np.resize(slow, 300), 4.0)]) == 0


def test_ranks_that_meet_after_many_steps_do_not_wait_in_each() -> None:
    even = np.resize([1.0, 3.0], 300)
    assert waited_by_turns([rank(even, even), rank(4 - even, 4 - even)]) == 0


@pytest.mark.parametrize("component", ["forward", "host"])
def test_what_takes_longest_by_turns_is_named_and_not_what_takes_longer_on_one_rank(component: str) -> None:
    even = np.resize(np.repeat([1.0, 1.2], 25), 300)
    of_forward = float(component == "forward")
    ranks = [
        rank(own, 4.0, optimizer=optimizer, forward=of_forward * (own - 0.8))
        for own, optimizer in ((even, 0.5), (2.2 - even, 0.0))
    ]
    assert uneven_component(ranks) == component


def test_few_steps_do_not_say_what_takes_longest_by_turns() -> None:
    even = np.resize([1.0, 3.0], 9)
    assert uneven_component([rank(even, 4.0), rank(4 - even, 4.0)]) == ""


def test_ranks_without_common_steps_or_peers_wait_for_nobody() -> None:
    ones = np.ones(90)
    assert waited_by_turns([]) == 0
    assert waited_by_turns([rank(ones, 2.0)]) == 0
    assert waited_by_turns([rank(ones, 2.0), rank(ones, 2.0, 100)]) == 0
