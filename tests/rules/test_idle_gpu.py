"""IdleGPU: a GPU that a process holds without using it."""

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate

from tests.support.few_rules import only
from tests.support.source import INTERVAL, MemorySource, node_samples

MINUTES = round(60 / INTERVAL)  # rows
NAN = float("nan")


def idle(*gpus: tuple[np.ndarray, np.ndarray], settings: tuple[str, ...] = ()) -> RuleResult:
    """The rule's result; each GPU has its utilisation and its number of processes, row by row."""
    load = np.column_stack([gpu[0] for gpu in gpus])
    held = np.column_stack([gpu[1] for gpu in gpus])
    samples = node_samples(np.zeros((len(load), 1)), load, of_gpus={"gpu_compute_processes": held})
    found = evaluate(MemorySource(samples), only("IdleGPU").parse(list(settings))).rules
    return next(each for each in found if each.rule == "IdleGPU")


def stretch(rows: int, of: int = 40 * MINUTES) -> np.ndarray:
    """Work for a minute, then so many rows without, then work again."""
    load = np.ones(of)
    load[MINUTES : MINUTES + rows] = 0
    return load


@pytest.mark.parametrize(
    ("rows", "status"),
    [(15 * MINUTES - 1, "healthy"), (15 * MINUTES, "healthy"), (15 * MINUTES + 1, "found")],
)
def test_a_gpu_held_for_longer_than_the_threshold_without_work_fires(rows: int, status: str) -> None:
    assert idle((stretch(rows), np.ones(40 * MINUTES))).status == status


def test_the_finding_says_which_gpu_for_how_long_and_how_many_gpu_hours() -> None:
    held = np.ones(40 * MINUTES)
    found = idle((np.ones(40 * MINUTES), held), (stretch(30 * MINUTES), held))
    assert found.finding == (
        "GPU 1 of node-a was held by a process, but not used, for up to 30 min: 0.5 GPU hours without work."
    )
    assert found.details["gpus"][1]["longest_seconds"] == 1800
    assert [gpu["triggered"] > 0 for gpu in found.details["gpus"]] == [False, True]


def test_a_free_gpu_may_idle_for_ever() -> None:
    rows = 40 * MINUTES
    assert idle((np.zeros(rows), np.zeros(rows))).status == "healthy"


def test_one_sample_with_work_begins_the_time_again() -> None:
    load = stretch(25 * MINUTES)
    load[13 * MINUTES] = 0.01
    assert idle((load, np.ones(len(load)))).status == "healthy"


def test_readings_that_are_missing_neither_count_nor_end_the_stretch() -> None:
    load = stretch(15 * MINUTES + 20)
    load[5 * MINUTES] = NAN
    assert idle((load, np.ones(len(load)))).status == "found"
    unknown = np.full(40 * MINUTES, NAN)
    assert idle((unknown, np.ones(40 * MINUTES))).status == "not enough data"  # as of a MIG device
    assert idle((np.zeros(40 * MINUTES), unknown)).status == "not enough data"  # as in old recordings


def test_the_threshold_can_be_set() -> None:
    load, held = stretch(6 * MINUTES), np.ones(40 * MINUTES)
    assert idle((load, held), settings=("IdleGPU.threshold=5",)).status == "found"
    assert idle((load, held), settings=("IdleGPU.threshold=7",)).status == "healthy"
