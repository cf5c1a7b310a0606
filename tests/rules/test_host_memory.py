"""MemoryPressure and HostMemoryLeak: a run that waits for memory, and one whose memory grows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.memory_growth import Filling
from stepscope.rules.host_memory_leak import HostMemoryLeak
from stepscope.runs.model import NodeSamples

from tests.support.few_rules import judged
from tests.support.source import INTERVAL, node_samples

ROWS = 401  # the first has no gain
HOUR = 7200  # rows
TIME = np.linspace(0, 1, HOUR)


def waits(share: float, rows: int = ROWS, node: str = "node-a") -> NodeSamples:
    """Some process waits for memory for this share of the time."""
    waited = share * INTERVAL * np.arange(rows)
    return node_samples(np.zeros((rows, 1)), of_run={"memory_waiting_seconds": waited}, node=node)


def holds(share: Any, node: str = "node-a", capacity: float = 64e9) -> NodeSamples:
    """The run holds this share of the memory that it may use."""
    use = {"anonymous_memory_bytes": capacity * share, "memory_capacity_bytes": np.full(len(share), capacity)}
    return node_samples(np.zeros((len(share), 1)), of_run=use, node=node)


@pytest.mark.parametrize(("share", "status"), [(0.0999, "healthy"), (0.1, "healthy"), (0.1001, "found")])
def test_waits_of_more_than_a_tenth_of_the_time_are_found(share: float, status: str) -> None:
    assert judged("MemoryPressure", waits(share)).status == status


def test_the_node_that_waits_longest_is_named_with_the_seconds() -> None:
    found = judged("MemoryPressure", waits(0.01), waits(0.25, node="node-b"))
    assert found.finding == (
        "On node-b, some process of the run's cgroup waited for memory for 25.0 % of the time."
    )
    assert found.seconds_lost == pytest.approx(0.25 * 200)
    assert found.details["nodes"]["node-a"]["triggered"] == 0


def test_waits_are_decided_after_their_patience() -> None:
    assert judged("MemoryPressure", waits(0.5, rows=120)).status == "not enough data"
    assert judged("MemoryPressure", waits(0.5, rows=121)).status == "found"


def test_a_kernel_that_counts_no_waits_is_not_a_healthy_one() -> None:
    found = judged("MemoryPressure", waits(np.nan))
    assert found.status == "not enough data"
    assert found.finding.startswith("The kernel counted no waits for memory")


@given(st.floats(0, 1).filter(lambda share: abs(share - 0.1) > 1e-9), st.integers(1, ROWS - 1))
def test_when_in_the_run_it_waited_does_not_matter(share: float, cut: int) -> None:
    samples = waits(share)
    waited = np.diff(samples.of_run("memory_waiting_seconds"), prepend=0.0)
    moved = np.cumsum(np.roll(waited[1:], cut))
    other = node_samples(
        np.zeros((ROWS, 1)), of_run={"memory_waiting_seconds": np.concatenate(([0.0], moved))}
    )
    assert judged("MemoryPressure", other).seconds_lost == pytest.approx(
        judged("MemoryPressure", samples).seconds_lost
    )


@pytest.mark.parametrize(("growth", "status"), [(0.068, "healthy"), (0.0689, "found")])
def test_the_growth_after_the_warm_up_must_be_above_the_threshold(growth: float, status: str) -> None:
    """3 of 4 quarters of the hour (of which the last stretch is cut off) are after the warm-up: 5 points."""
    assert judged("HostMemoryLeak", holds(0.3 + growth * TIME)).status == status


@pytest.mark.parametrize(
    ("rows", "status"), [(1199, "not enough data"), (1200, "not enough data"), (1201, "found")]
)
def test_patience_delays_the_first_decision(rows: int, status: str) -> None:
    assert judged("HostMemoryLeak", holds(0.3 + 0.3 * np.linspace(0, 1, rows))).status == status


@pytest.mark.parametrize("shape", ["flat", "one jump", "loaders come and go", "a cache that is full"])
def test_memory_that_grows_otherwise_is_no_leak(shape: str) -> None:
    held = {
        "flat": np.full(HOUR, 0.5),
        "one jump": np.where(TIME < 0.6, 0.3, 0.8),
        "loaders come and go": 0.3 + 0.2 * (np.arange(HOUR) // 240 % 2),
        "a cache that is full": np.minimum(0.2 + TIME, 0.6),
    }[shape]
    found = judged("HostMemoryLeak", holds(held))
    assert found.details["nodes"]["node-a"]["points_per_hour"] is None
    assert found.status == "healthy"
    levelled = shape == "a cache that is full"  # while it filled, it looked like a leak
    assert ("grew steadily for a time, then levelled off" in found.finding) == levelled


@pytest.mark.parametrize(
    ("age", "seen", "full_in", "leaks"),
    [
        (12, 10, 59, True),  # of ten minutes, half of the horizon
        (12, 10, 61, False),
        (40, 30, 119, True),
        (40, 30, 121, False),
        (69, 52, 200, False),
        (71, 53, 200, True),  # the warm-up and `patience` are over
    ],
)
def test_in_the_first_hour_a_forecast_reaches_as_far_as_what_it_saw_allows(
    age: float, seen: float, full_in: float, leaks: bool
) -> None:
    one = np.ones(1)
    view = Filling(
        120 * age * one, one > 0, growth=0.06 * one, full_in=60 * full_in * one, seen=60 * seen * one
    )
    conditions = HostMemoryLeak().judge_live(view, INTERVAL).conditions
    assert [bool(met.holds[0]) for met in conditions] == [leaks, not leaks]


def test_the_finding_names_the_node_and_says_what_others_do() -> None:
    found = judged("HostMemoryLeak", holds(np.full(HOUR, 0.5)), holds(0.3 + 0.2 * TIME, node="node-b"))
    assert found.finding == (
        "On node-b, the memory of the run's processes grows by 20 % of what they may use per hour. They hold "
        "50 % of it now, and would hold all of it in 2 h 30 min. It grew steadily on 0 of 1 other nodes."
    )


def test_processes_that_share_more_pages_than_there_are_have_no_forecast() -> None:
    found = judged("HostMemoryLeak", holds(1.3 + 0.2 * TIME))
    assert found.details["nodes"]["node-a"]["full_in_seconds"] == 0
    assert found.finding == (
        "On node-a, the memory of the run's processes grows by 20 % of what they may use per hour. They hold "
        "150 % of it now."
    )


def test_memory_without_a_known_size_is_not_judged() -> None:
    for capacity in (np.nan, 0.0):
        use = {"anonymous_memory_bytes": 1e9 + 1e9 * TIME, "memory_capacity_bytes": np.full(HOUR, capacity)}
        found = judged("HostMemoryLeak", node_samples(np.zeros((HOUR, 1)), of_run=use))
        assert found.status == "not enough data"


def test_without_readings_memory_is_not_judged() -> None:
    found = judged("HostMemoryLeak", holds(np.full(HOUR, np.nan)))
    assert (found.status, found.finding) == (
        "not enough data",
        "The memory of the run's processes was not read.",
    )
