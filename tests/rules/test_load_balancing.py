"""LoadBalancing: how far apart the distributions of utilisation of two GPUs of a node are."""

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from stepscope.measurements.load import BINS, Distances
from stepscope.rules.load_balancing import LoadBalancing, jensen_shannon
from stepscope.runs.model import NodeSamples

from tests.support.few_rules import judged
from tests.support.source import node_samples, run_facts

NAN = float("nan")

result = partial(judged, "LoadBalancing")


def gpus(*columns: Any, rows: int = 1001, **more: Any) -> NodeSamples:
    """A node of a GPU a column: one level for all its readings, or the readings."""
    readings = np.stack([np.broadcast_to(np.asarray(column, np.float32), rows) for column in columns], axis=1)
    return node_samples(np.zeros((rows, 1)), readings, **more)


def mixed(share_idle: float, rows: int = 2000) -> np.ndarray:
    """Busy at 90 %, and idle for a share of the time, evenly."""
    return np.where(np.arange(rows) % 100 < round(100 * share_idle), 0.0, 0.9)


@pytest.mark.parametrize(
    ("share", "status"),
    [(0.0, "healthy"), (0.19, "healthy"), (0.2, "healthy"), (0.21, "found"), (1.0, "found")],
)
@pytest.mark.parametrize("base", [0.0, 0.1])
def test_it_fires_above_a_distance_of_a_fifth_and_not_at_it(base: float, share: float, status: str) -> None:
    if base + share > 1:
        share = 1 - base
    found = result(gpus(mixed(base), mixed(base + share), rows=2000), patience=1999)
    assert found.status == status


def test_a_gpu_at_100_percent_beside_one_at_0_is_as_far_apart_as_can_be() -> None:
    details = result(gpus(1.0, 0.0)).details["node-a"]
    assert details["kolmogorov_smirnov"]["GPU 0"]["GPU 1"] == 1
    assert details["distances"]["GPU 0"]["GPU 1"] == pytest.approx(math.sqrt(math.log(2)))
    assert sum(details["workloads"]["GPU 0"]) == details["workloads"]["GPU 0"][-1] == 1001
    assert sum(details["workloads"]["GPU 1"]) == details["workloads"]["GPU 1"][0] == 1001


def test_two_gpus_that_are_both_at_100_percent_are_alike() -> None:
    found = result(gpus(1.0, 1.0), threshold=0)
    assert (found.status, found.violations) == ("healthy", 0)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [(0.51, 0.6, False), (0.6, 0.601, True), (0.6, 0.61, True), (0.92, 0.98, False), (0.0, 0.1, False)],
)
def test_tenths_include_their_upper_bound(one: float, other: float, apart: bool) -> None:
    assert (result(gpus(one, other)).status == "found") == apart


@pytest.mark.parametrize(
    ("readings", "status"), [(999, "not enough data"), (1000, "not enough data"), (1001, "found")]
)
def test_patience_delays_the_first_comparison(readings: int, status: str) -> None:
    found = result(gpus(1.0, 0.0, rows=readings))
    assert (found.status, found.triggered) == (status, status == "found")


@pytest.mark.parametrize(("readings", "status"), [(405, "not enough data"), (406, "found")])
def test_with_few_samples_a_minute_a_full_live_window_is_compared(readings: int, status: str) -> None:
    found = result(gpus(1.0, 0.0, rows=readings, interval=2.0), facts=replace(run_facts(), interval=2.0))
    assert found.status == status
    if status == "found":
        assert re.match("After 13 min .* GPU 0 .* and of GPU 1 .* by 1.00, in 1 of 1 scans", found.finding)
        assert found.details["node-a"]["kolmogorov_smirnov"]["GPU 0"]["GPU 1"] == 1


def test_patience_holds_for_both_gpus_of_a_pair() -> None:
    late = np.full(1600, NAN)
    late[601:] = 0.0
    assert result(gpus(1.0, late, rows=1600)).status == "not enough data"
    late[599] = 0.0
    late[598] = 0.0
    assert result(gpus(1.0, late, rows=1600)).status == "found"


def test_scans_are_triggered_and_pairs_are_violations() -> None:
    found = result(gpus(1.0, 1.0, 0.0, rows=1200))
    assert (found.triggered, found.violations, found.datapoints) == (2, 4, 1200)
    pairs = found.details["node-a"]["distances"]
    assert pairs["GPU 0"]["GPU 1"] == 0
    assert pairs["GPU 0"]["GPU 2"] == pairs["GPU 1"]["GPU 2"] > 0.8


def test_nodes_are_not_compared_with_each_other() -> None:
    found = result(gpus(1.0, 1.0), gpus(0.0, 0.0, node="node-b"))
    assert found.status == "healthy"
    assert result(gpus(1.0), gpus(0.0, node="node-b")).status == "not enough data"


def test_details_are_of_nodes_that_fired_and_the_finding_names_the_pair() -> None:
    found = result(gpus(1.0, 0.95, 0.0), gpus(0.5, 0.5, node="node-b"))
    assert list(found.details) == ["node-a"]
    assert "GPU 0 (mean 100 %) and of GPU 2 (mean 0 %)" in found.finding
    assert found.seconds_lost == pytest.approx(1001 * 0.5)


def test_a_run_that_stopped_sampling_gpus_is_not_judged_again() -> None:
    one, other = np.full((2, 2400), NAN)
    one[:1200], other[:1200] = 1.0, 0.0
    assert result(gpus(one, other, rows=2400)).triggered == 2


def test_without_two_gpus_it_is_not_judged_and_says_so() -> None:
    assert result(gpus(1.0)).finding == "No node has two GPUs that could be compared."


def test_the_jensen_shannon_distance_is_that_of_shares_not_of_counts() -> None:
    one, other = np.array([10, 30, 0]), np.array([1, 3, 0])
    assert jensen_shannon(one, other) == 0
    # 0.5 (1 ln 2 + (0.5 ln 2/3 ...)): by hand for (1, 0) and (1/2, 1/2), middle (3/4, 1/4)
    expected = math.sqrt((math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2)) / 2)
    assert jensen_shannon(np.array([4, 0]), np.array([5, 5])) == pytest.approx(expected)


@pytest.mark.parametrize(("busy", "distance"), [(0.68, 0.0), (0.72, 1.0)])
def test_a_live_window_is_compared_as_the_report_is(busy: float, distance: float) -> None:
    """Readings of 62 and of 68 % are in the same tenth; those of 62 and of 72 % are not."""
    counts = np.zeros((1, 2, BINS), np.int64)
    counts[0, 0, round(50 * 0.62) - 1] = counts[0, 1, round(50 * busy) - 1] = 1800
    judged = LoadBalancing().judge_live(Distances.between(counts), 0.5)
    assert judged.conditions[0].value.tolist() == [[distance]]
    assert judged.fired.tolist() == [[distance > 0]]
