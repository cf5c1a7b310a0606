"""What a rank did at given moments: the phase, or nothing, and components by their share of the step."""

import numpy as np
import pytest
from stepscope.measurements.starved import END, SPANS_KEPT, START, RecentSteps
from stepscope.runs.model import COMPONENTS, PHASES, Steps

from tests.support import source
from tests.support.source import cut, node_steps

FIRST = source.START


def recent(*steps: Steps) -> RecentSteps:
    state = RecentSteps()
    for chunk in steps:
        state.add(chunk)
    return state


def during(state: RecentSteps, *moments: float) -> tuple[int, dict[str, float], dict[str, float]]:
    told, phases, components = state.during(FIRST + np.array(moments))
    return (
        told,
        {name: float(value) for name, value in zip(PHASES, phases, strict=True) if value},
        {name: round(float(value), 6) for name, value in zip(COMPONENTS, components, strict=True) if value},
    )


def test_a_moment_belongs_to_the_step_from_its_start_until_before_its_end() -> None:
    state = recent(
        node_steps([2.0, 3.0], forward=[1.0, 0.0]), node_steps([1.0], phase="eval", start=FIRST + 7)
    )
    assert during(state, 0.0, 1.9) == (2, {"train": 2}, {"forward": 1})
    assert during(state, 2.0, 4.9) == (2, {"train": 2}, {})
    assert during(state, 5.0, 6.9) == (2, {}, {})  # between steps
    assert during(state, 7.0) == (1, {"eval": 1}, {})


def test_moments_before_the_first_and_after_the_last_step_are_not_told_of() -> None:
    state = recent(node_steps([2.0]))
    assert during(state, -0.1, 2.0, 99.0)[0] == 0
    assert during(RecentSteps(), 1.0)[0] == 0


def test_short_steps_of_a_half_second_are_one_span_and_the_time_between_them_is_none_of_theirs() -> None:
    """Steps of 0.1 s with as long a pause."""
    steps = node_steps([0.1] * 50, data_wait=0.025)
    steps.starts[:] = FIRST + 0.2 * np.arange(50)
    state = recent(steps)
    assert len(state.spans) == 20
    told, phases, components = during(state, *np.arange(1.0, 9.0, 0.01))
    assert told == 800
    assert phases["train"] == pytest.approx(400, rel=0.01)
    assert components["data_wait"] == pytest.approx(100, rel=0.01)


def test_phases_are_never_one_span() -> None:
    train, evaluation = node_steps([0.1, 0.1]), node_steps([0.1], phase="eval", start=FIRST + 0.2)
    assert len(recent(train, evaluation).spans) == 2


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_spans_are_the_same_however_the_steps_are_cut(rows: int) -> None:
    durations = np.random.default_rng(0).choice([0.125, 0.25, 0.75], 500)
    steps = node_steps(durations, forward=durations / 2)
    whole, pieces = recent(steps), recent(*cut(steps, rows))  # type: ignore[arg-type]
    assert np.array_equal(whole.spans, pieces.spans)
    assert np.all(whole.spans[:, START] < whole.spans[:, END])


def test_only_the_last_spans_are_kept() -> None:
    state = recent(node_steps([1.0] * (SPANS_KEPT + 100)))
    assert len(state.spans) == SPANS_KEPT
    assert during(state, 50.0, 99.0, 100.0)[0] == 1
