"""CPUThrottled and NoisyNeighbour: what stops a run on its own cores, its limit or others."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.problems import problems_of
from stepscope.runs.model import RUN_USE, Loader, NodeFacts, NodeSamples
from stepscope.training.layout import PY_WORKERS

from tests.support.few_rules import judged, of_rule
from tests.support.source import INTERVAL, START, MemorySource, node_samples, rank_facts, run_facts

ROWS = 401  # the first has no gain


def result(
    rule: str, samples: NodeSamples, neighbours: Any = (), ranks: Any = (), **parameters: float
) -> RuleResult:
    facts = run_facts(nodes=[NodeFacts("node-a", neighbours=neighbours)], ranks=ranks)
    return judged(rule, samples, facts=facts, **parameters)


def per_second(rate: float, rows: int = ROWS) -> np.ndarray:
    """A counter that grows by `rate` a second."""
    return rate * INTERVAL * np.arange(rows)


def limited(stopped: float, limit: float = 4.0, rows: int = ROWS) -> NodeSamples:
    """A run whose limit stops it for `stopped` core seconds a second, in 3 of 10 periods."""
    use = {
        "cpu_limit_cores": np.full(rows, limit),
        "cpu_throttled_seconds": per_second(stopped, rows),
        "cpu_periods": per_second(10, rows),
        "cpu_throttled_periods": per_second(3, rows),
    }
    return node_samples(np.zeros((rows, 4)), of_run=use)


@pytest.mark.parametrize(("stopped", "status"), [(0.399, "healthy"), (0.4, "healthy"), (0.401, "found")])
def test_a_limit_is_found_if_it_stops_more_than_a_tenth_of_what_it_grants(
    stopped: float, status: str
) -> None:
    assert result("CPUThrottled", limited(stopped)).status == status


def test_a_throttled_run_says_its_limit_and_how_often_it_is_used_up() -> None:
    found = result("CPUThrottled", limited(2.0))
    assert (
        "the CPU limit of 4 cores stopped the run for 50.0 % of the CPU time that it grants" in found.finding
    )
    assert "in 30 % of the periods" in found.finding
    assert found.details["nodes"]["node-a"]["throttled_seconds"] == pytest.approx(2.0 * INTERVAL * (ROWS - 1))


def test_a_limit_decides_after_its_patience() -> None:
    assert result("CPUThrottled", limited(2.0, rows=120)).status == "not enough data"
    assert result("CPUThrottled", limited(2.0, rows=121)).status == "found"


def test_a_run_without_a_limit_is_not_judged() -> None:
    found = result("CPUThrottled", limited(2.0, limit=np.nan))
    assert (found.status, found.finding) == ("not enough data", "No CPU limit of the run's cgroup was seen.")


@pytest.mark.parametrize(
    ("waited", "throttled", "lost"),
    [(100.0, 0.0, 200 / 3), (50.0, 10.0, 60.0), (0.0, 100.0, 200 / 3), (0.0, 0.0, 5.0)],
)
def test_a_limit_costs_what_more_cores_would_save_if_a_rank_waited(
    waited: float, throttled: float, lost: float
) -> None:
    """In 200 s, the run wanted 6 cores and got 4: with 6, it would have taken 133 s."""
    ranks = (
        rank_facts(0, component_seconds={"data_wait": waited}, paused_seconds={"throttled": throttled}),
        rank_facts(1, component_seconds={"data_wait": 5.0}),
        rank_facts(2, node="node-b", component_seconds={"data_wait": 200.0}),
    )
    assert result("CPUThrottled", limited(2.0), ranks=ranks).seconds_lost == pytest.approx(lost)
    assert result("CPUThrottled", limited(0.2), ranks=ranks).seconds_lost == 0


def shared(
    waited: float,
    others: float,
    own: float = 2.0,
    ran: float = 2.0,
    rows: int = ROWS,
) -> NodeSamples:
    """A run that may use 4 cores; all in core seconds a second."""
    use = {
        "allowed_cores": np.full(rows, 4.0),
        "cpu_seconds": per_second(own, rows),
        "other_cpu_seconds": per_second(others, rows),
        "main_threads_ran_seconds": per_second(ran, rows),
        "main_threads_waited_seconds": per_second(waited, rows),
    }
    return node_samples(np.zeros((rows, 4)), of_run=use)


@pytest.mark.parametrize(("waited", "status"), [(0.499, "healthy"), (0.5, "healthy"), (0.501, "found")])
def test_neighbours_are_found_if_main_threads_wait_more_than_a_tenth_of_the_time_for_them(
    waited: float, status: str
) -> None:
    """Half of what is used of the cores is the others', so half of the waits: 0.5 / 2.5 / 2 = 10 %."""
    assert result("NoisyNeighbour", shared(waited, others=2.0)).status == status


@pytest.mark.parametrize(("waited", "status"), [(0.039, "healthy"), (0.041, "found")])
def test_waits_that_cost_no_more_than_2_percent_of_the_time_are_not_found(waited: float, status: str) -> None:
    """Half of the waits are because of others, for far more than a tenth of the time in which threads ran."""
    assert result("NoisyNeighbour", shared(waited, others=2.0, ran=0.01)).status == status


def test_the_finding_says_what_was_compared_and_names_the_users() -> None:
    users = (("carol", 25.0), ("bob", 75.0), ("root", 0.0))
    found = result("NoisyNeighbour", shared(2.0, others=2.0), users)
    assert found.finding == (
        "On node-a, main threads of the run waited for other processes for 25.0 % of the time in which they "
        "could run. It may use 4 cores: others used 2 (bob 75 %, carol 25 %), the run itself 2."
    )


def test_a_run_whose_cores_are_not_known_is_compared_with_others_without_their_number() -> None:
    samples = shared(2.0, others=2.0)
    samples.run_use[:, RUN_USE.index("allowed_cores")] = np.nan
    ranks = [rank_facts(gauges={"torch_threads": 8.0}, end=START + 200)]
    facts = run_facts(ranks=ranks, end=START + 200)
    analysis = evaluate(MemorySource(samples, facts=facts))
    finding = of_rule("NoisyNeighbour", analysis).finding
    assert "Its cores are not known: others used 2, the run itself 2." in finding
    assert analysis.run_cores == []
    assert problems_of(analysis)


def test_a_run_that_fills_its_cores_itself_has_no_neighbour_to_blame() -> None:
    assert result("NoisyNeighbour", shared(12.0, others=0.1, own=3.9, ran=3.9)).status == "healthy"


def test_a_sleeping_run_on_cores_that_others_fill_has_nothing_to_complain_of() -> None:
    found = result("NoisyNeighbour", shared(0.0, others=4.0, own=0.0, ran=0.0))
    assert (found.status, found.triggered) == ("healthy", 0)


def test_without_measurements_of_its_cores_neighbours_are_not_judged() -> None:
    found = result("NoisyNeighbour", node_samples(np.ones((ROWS, 4))))
    assert found.status == "not enough data"
    assert found.finding == "What the run and others use of its cores was not read."


def test_it_decides_after_its_patience() -> None:
    assert result("NoisyNeighbour", shared(2.0, 2.0, rows=120)).status == "not enough data"
    assert result("NoisyNeighbour", shared(2.0, 2.0, rows=121)).status == "found"


@pytest.mark.parametrize(("rows", "status"), [(39, "not enough data"), (40, "found")])
def test_it_decides_after_20_s_if_the_share_is_clear_cut(rows: int, status: str) -> None:
    """Threads waited for others for 70 % of the time in which they could run."""
    found = result("NoisyNeighbour", shared(14.0, others=8.0, rows=rows))
    assert found.status == status
    assert found.finding.startswith("After 20.0 s of samples: ") == (status == "found")


@pytest.mark.parametrize(
    ("own", "share"),
    [
        (2.0, 1.0),  # with 2 / (1 - 1 / 2) cores it would not have waited
        (3.0, 1 - (1 - 4 / 6) / 0.5),  # it wants 6 cores and may use 4
        (1.0, 1.0),
    ],
)
def test_waits_that_a_run_would_not_have_alone_are_lost(own: float, share: float) -> None:
    """Main threads waited for half of the time; the rank that waited longest delays all others."""
    ranks = [rank_facts(rank, paused_seconds={"no_core": 40.0 + rank}) for rank in (0, 1)]
    found = result("NoisyNeighbour", shared(2.0, others=2.0, own=own), ranks=ranks)
    assert found.status == "found"
    assert found.seconds_lost == pytest.approx(41 * share)


@pytest.mark.parametrize(
    ("workers", "gauges", "outside"),
    [(0, {}, 30.0), (2, {}, 40.0), (None, {}, 40.0), (0, {PY_WORKERS: 1.0}, 40.0)],
)
def test_waits_in_fetches_of_the_rank_itself_are_known_apart(
    workers: int | None, gauges: dict[str, float], outside: float
) -> None:
    """Those of workers are no waits of the main thread."""
    loader = Loader(0, "train", workers, None, None, fetch_core_wait_seconds=10.0)
    ranks = [
        rank_facts(0, paused_seconds={"no_core": 40.0}, loaders=(loader,), gauges=gauges),
        rank_facts(1, paused_seconds={"no_core": 39.0}),
    ]
    found = result("NoisyNeighbour", shared(2.0, others=2.0), ranks=ranks)
    assert found.seconds_lost == pytest.approx(40.0)
    assert found.details["nodes"]["node-a"]["lost_outside_fetches_seconds"] == pytest.approx(outside)


def test_without_the_waits_of_its_ranks_no_seconds_are_estimated() -> None:
    found = result("NoisyNeighbour", shared(2.0, others=2.0), ranks=[rank_facts()])
    assert (found.status, found.seconds_lost) == ("found", 0)
