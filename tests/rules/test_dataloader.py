"""Dataloader: workers against cores."""

from dataclasses import replace

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import Loader, RankFacts

from tests.support.few_rules import judged, of_rule
from tests.support.source import MemorySource, node_samples, node_steps, rank_facts, run_facts


def result(cores: int, *ranks: RankFacts, percent: float = 25.0) -> RuleResult:
    """Steps of 12.5 s wait for data for some percent of their time."""
    chunks = [node_steps(np.full(30, 12.5), rank=one.rank, data_wait=percent / 8) for one in ranks]
    samples = node_samples(np.zeros((60, cores)))
    return judged("Dataloader", samples, *chunks, facts=run_facts(ranks=ranks))


def loading(workers: int | None, rank: int = 0, phase: str = "train") -> RankFacts:
    return rank_facts(rank, loaders=[Loader(rank, phase, workers, True, 2)])


@pytest.mark.parametrize(
    ("workers", "status"),
    [(0, "found"), (6, "found"), (7, "healthy"), (8, "healthy"), (20, "healthy"), (21, "found")],
)
def test_it_fires_beyond_70_and_200_percent_of_the_cores(workers: int, status: str) -> None:
    found = result(10, loading(workers))
    assert (found.status, found.triggered) == (status, status == "found")


@pytest.mark.parametrize(
    ("workers", "percent", "status"),
    [
        (0, 0, "healthy"),
        (6, 9, "healthy"),
        (6, 10, "healthy"),
        (6, 11, "found"),
        (7, 50, "healthy"),
        (21, 0, "found"),
    ],
)
def test_too_few_fire_only_if_steps_wait_for_more_than_10_percent_of_their_time(
    workers: int, percent: float, status: str
) -> None:
    assert result(10, loading(workers), percent=percent).status == status


def test_the_rank_that_waits_most_decides_and_debuggers_count_does_not_look_at_time() -> None:
    ranks = [loading(1, rank) for rank in range(2)]
    chunks = [node_steps(np.full(30, 1.0), rank=rank, data_wait=wait) for rank, wait in ((0, 0.0), (1, 0.3))]
    found = judged("Dataloader", node_samples(np.zeros((60, 8))), *chunks, facts=run_facts(ranks=ranks))
    assert found.status == "found"
    assert found.finding.endswith("; steps of a rank waited for data for up to 30 % of their time.")
    quick = result(8, *ranks, percent=0.4)
    assert (quick.status, quick.triggered, quick.debugger_triggered) == ("healthy", 0, 1)
    assert quick.finding == (
        "node-a has 8 cores and 2 workers that load data (25 %), memory is pinned, each prefetches 2; steps "
        "of a rank waited for data for up to 0.4 % of their time."
    )


def test_without_a_step_it_is_unknown_whether_few_workers_are_too_few() -> None:
    def without_steps(workers: int) -> RuleResult:
        samples = node_samples(np.zeros((60, 8)))
        return judged("Dataloader", samples, facts=run_facts(ranks=[loading(workers)]))

    few = without_steps(2)
    assert few.status == "not enough data"
    assert few.finding.endswith("; no step was timed, so it is unknown whether they are too few.")
    assert without_steps(8).status == "healthy"
    assert without_steps(17).status == "found"


def test_workers_of_all_ranks_of_a_node_count_together() -> None:
    assert result(8, *(loading(2, rank) for rank in range(4))).status == "healthy"
    assert result(8, loading(2)).status == "found"


def test_the_training_loader_counts_where_there_is_one() -> None:
    both = rank_facts(loaders=[Loader(0, "train", 8, None, None), Loader(0, "eval", 1, None, None)])
    assert result(8, both).status == "healthy"


def test_it_notes_pinned_memory_prefetching_and_how_long_steps_waited() -> None:
    found = result(8, loading(2))
    assert found.finding == (
        "node-a has 8 cores and 2 workers that load data (25 %, too few), memory is pinned, "
        "each prefetches 2; steps of a rank waited for data for up to 25 % of their time."
    )
    details = found.details
    assert (details["cores"], details["dataloaders"]) == (8, 2)
    assert (details["pin_memory"], details["prefetch"]) == (True, 2)
    waits = details["dataloading_time"]
    assert waits["p50"] == pytest.approx(3.125, rel=0.005)
    assert (len(waits["probs"]), len(waits["binedges"]), sum(waits["probs"])) == (100, 101, 30)
    assert found.datapoints == 375


@pytest.mark.parametrize("ranks", [[], [rank_facts()], [loading(None)]])
def test_without_a_known_loader_it_is_not_judged(ranks: list[RankFacts]) -> None:
    assert result(8, *ranks).status == "not enough data"


def test_a_restarted_rank_counts_once() -> None:
    first = loading(8)
    again = rank_facts(0, pid=2000, start=first.start + 100, loaders=[Loader(0, "train", 8, None, None)])
    assert result(8, first, again).details["dataloaders"] == 8


def of_192(workers: int, allowed: float, limit: float = np.nan, **gauges: float) -> RuleResult:
    """A node with 192 cores, of which the run may use a few."""
    rows = 60
    use = {"allowed_cores": allowed, "cpu_limit_cores": limit, "other_cpu_seconds": 0.0}
    ranks = [replace(loading(workers), gauges=gauges)]
    samples = node_samples(
        np.zeros((rows, 192)), of_run={name: np.full(rows, value) for name, value in use.items()}
    )
    steps = node_steps(np.full(30, 1.0), data_wait=0.25)
    analysis = evaluate(MemorySource(samples, steps, facts=run_facts(ranks=ranks)))
    return of_rule("Dataloader", analysis)


def test_192_cores_of_which_the_pod_may_use_4_shared_by_16_workers_is_a_finding_with_its_advice() -> None:
    found = of_192(16, 4.0, limit=4.0)
    assert found.finding == (
        "node-a has 192 cores, of which the run may use 4 because of its CPU limit, and 16 workers that load "
        "data (400 %, too many), memory is pinned, each prefetches 2."
    )
    assert (
        found.recommendation
        == "Give each rank 4 workers (num_workers=4), or raise its CPU limit to 16 cores."
    )
    of_keras = of_192(16, 4.0, limit=4.0, keras_py_dataset_workers=16.0)
    assert of_keras.recommendation == found.recommendation.replace("num_workers", "workers")


@pytest.mark.parametrize(("workers", "status"), [(2, "found"), (3, "healthy"), (8, "healthy"), (9, "found")])
def test_workers_are_compared_with_the_cores_that_the_run_may_use(workers: int, status: str) -> None:
    found = of_192(workers, 4.0)
    assert found.status == status
    assert "CPU limit" not in found.finding
