"""Steps that nobody marked: inferred from what repeats, and not known when that is not sure."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.runs.traces.events import load
from stepscope.runs.traces.repetition import repetition

from tests.runs.test_kineto import on_gpu, read, row, write

BEFORE = ["embedding", "dropout"]
LAYER = ["layer_norm", "linear", "addmm", "softmax", "gelu"]
AFTER = ["cross_entropy", "log_softmax", "nll_loss", "backward", "foreach_add", "zero_"]


def step_of(layers: int) -> list[str]:
    return [*BEFORE, *LAYER * layers, *AFTER]


def moments_of(names: list[str], durations: list[float] | None = None) -> tuple[str, list[float]] | None:
    """The repetition of operators that run one after the other; milliseconds."""
    ends = np.cumsum(durations or [1.0] * len(names))
    starts = [0.0, *ends[:-1]]
    rows = [row("cpu_op", name, *times) for name, *times in zip(names, starts, ends, strict=True)]
    with TemporaryDirectory() as folder:
        found = repetition(load(write(Path(folder) / "trace.json", rows)))
    return found and (found.name, (found.moments / 1000).tolist())


@given(layers=st.integers(1, 30), steps=st.integers(4, 12), cut=st.floats(0, 1))
def test_steps_begin_with_an_event_that_runs_once_in_each(layers: int, steps: int, cut: float) -> None:
    """A trace may begin and end anywhere in a step."""
    step = step_of(layers)
    cut_off = int(cut * len(step))
    found = moments_of((step * (steps + 1))[cut_off : cut_off + steps * len(step)])
    assert found is not None
    assert set(np.diff(found[1])) == {len(step)}
    assert len(found[1]) == steps


def noisy(seed: int, layers: int) -> tuple[str, list[float]] | None:
    chance = random.Random(seed)
    names = []
    for _ in range(8):
        names += [*step_of(layers), *["item"] * chance.choice((0, 0, 1))]
    return moments_of(names, [chance.lognormvariate(0, 1) for _ in names])


@given(layers=st.integers(30, 60), seed=st.integers(0, 1000))
def test_with_noise_and_some_more_operators_the_steps_are_right_or_not_known(layers: int, seed: int) -> None:
    found = noisy(seed, layers)
    assert found is None or (len(found[1]) == 8 and found[0] in (*BEFORE, *AFTER))


def test_nearly_all_steps_with_noise_are_found() -> None:
    assert sum(noisy(seed, 30) is not None for seed in range(20)) >= 15


@given(layers=st.integers(1, 60))
def test_the_layers_of_one_step_are_no_steps(layers: int) -> None:
    backward = [f"{name}_backward" for name in reversed(step_of(layers))]
    assert moments_of([*step_of(layers), *backward, *(f"adam_{part}" for part in range(5))]) is None


@given(st.lists(st.sampled_from(LAYER + AFTER), min_size=1, max_size=300), st.randoms())
def test_what_comes_by_chance_is_no_step(names: list[str], chance: random.Random) -> None:
    chance.shuffle(names)
    assert moments_of(names) is None


def test_something_every_tenth_step_leaves_the_number_of_steps_unknown() -> None:
    assert moments_of([*step_of(30) * 10, "item"] * 5) is None


@pytest.mark.parametrize("names", [["add"] * 50, ["add", "mul"] * 50, step_of(2) * 3])
def test_too_little_that_repeats_is_no_step(names: list[str]) -> None:
    assert moments_of(names) is None


def test_kernels_show_the_steps_of_a_trace_without_the_host(tmp_path: Path) -> None:
    kernels = enumerate(step_of(4) * 5)
    rows = [on_gpu("kernel", name, start, start + 0.5) for start, name in kernels]
    steps, summaries, facts = read(write(tmp_path / "kernels.json", rows))
    np.testing.assert_allclose(steps[0].durations, [0.001 * len(step_of(4))] * 4, atol=1e-9)
    assert summaries[0].steps_from == "embedding"
    assert any("inferred from repetition: each begins with embedding" in said for said in facts.unknowns)
