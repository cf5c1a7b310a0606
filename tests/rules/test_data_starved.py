"""DataStarved: does training wait for data, and why. The causes are those of examples/images/slow.py."""

from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.report.right_sizing import predictions
from stepscope.rules.parts.data_loading import CoresInUse, Loading, PyDataset
from stepscope.runs.model import LineTime, Loader, StackTime, ThreadTime
from stepscope.training.layout import FETCH_BOUNDS

from tests.support.few_rules import judged, of_rule
from tests.support.source import MemorySource, node_samples, node_steps, rank_facts, run_facts

result = partial(judged, "DataStarved")


def run(
    workers: int | None,
    fetching: float,
    computing: float,
    *,
    waiting: float = 60.0,
    cores: int = 8,
    cpu: float = 0.5,
    io_wait: float = 0.0,
    core_wait: float = 0.0,
    steps: int = 200,
    threads: tuple[ThreadTime, ...] = (),
) -> RuleResult:
    """A run of 100 s that waits `waiting` s; its workers fetch for so many seconds, and compute in some."""
    samples = node_samples(np.full((200, cores), cpu), io_wait=np.full((200, cores), io_wait))
    trained = node_steps(np.full(steps, 100 / steps), data_wait=np.full(steps, waiting / steps))
    loader = Loader(
        0, "train", workers, None, None, None, steps if fetching else 0, fetching, computing, core_wait
    )
    return result(samples, trained, facts=run_facts(ranks=[rank_facts(loaders=[loader])], threads=threads))


@pytest.mark.parametrize(("waiting", "scans"), [(0.19, 1), (0.21, 5)])
def test_scans_fire_above_20_percent_of_the_step_time(waiting: float, scans: int) -> None:
    assert result(node_steps(np.full(256, 1.0), data_wait=waiting)).triggered == scans


@pytest.mark.parametrize(("waiting", "scans"), [(0.25, 1), (0.25 + 1 / 1024, 5)])
def test_scans_do_not_fire_exactly_at_the_threshold(waiting: float, scans: int) -> None:
    steps = node_steps(np.full(256, 1.0), data_wait=waiting)  # numbers that add up without rounding
    assert result(steps, threshold=25).triggered == scans


@pytest.mark.parametrize(("waiting", "status"), [(0.125, "healthy"), (0.125 + 1 / 1024, "found")])
def test_the_report_fires_above_half_of_the_threshold_of_the_whole_run(waiting: float, status: str) -> None:
    assert result(node_steps(np.full(256, 1.0), data_wait=waiting), threshold=25).status == status


def test_a_wait_at_the_begin_of_a_run_that_is_little_of_the_whole_run_is_no_finding() -> None:
    waits = np.repeat([0.19, 0.0], [100, 400])
    assert result(node_steps(np.full(500, 1.0), data_wait=waits)).status == "healthy"


@pytest.mark.parametrize(
    ("count", "status"), [(19, "not enough data"), (20, "not enough data"), (21, "found")]
)
def test_patience_delays_the_first_decision(count: int, status: str) -> None:
    found = result(node_steps(np.full(count, 1.0), data_wait=np.full(count, 0.5)))
    assert found.status == status


@pytest.mark.parametrize(("waiting", "status"), [(0.0, "healthy"), (0.25, "found")])
def test_epochs_that_begin_between_two_steps_are_no_more_than_the_wait_in_steps(
    waiting: float, status: str
) -> None:
    loader = Loader(0, "train", 4, None, None, None, 100, 50.0, 50.0, restart_seconds=30.0)
    trained = node_steps(np.full(100, 1.0), data_wait=waiting)
    found = result(trained, facts=run_facts(ranks=[rank_facts(loaders=[loader])]))
    assert found.status == status
    assert ("100 % of the wait is for the first batch" in found.finding) == (status == "found")


def test_without_steps_it_is_not_judged_and_says_how_to_add_them() -> None:
    found = result(node_samples(np.ones((50, 2))))
    assert found.status == "not enough data"
    assert "stepscope.step" in found.finding


def test_the_rank_that_waits_is_named_and_the_others_do_not_dilute_it() -> None:
    starved = node_steps(np.full(50, 1.0), rank=3, data_wait=np.full(50, 0.6))
    healthy = [node_steps(np.full(50, 1.0), rank=rank, data_wait=np.full(50, 0.01)) for rank in (0, 1, 2)]
    found = result(*healthy, starved)
    assert found.finding.startswith(
        "Rank 3 waited for data for 60 % of its step time (30.0 s); the other ranks: 1.0 %;"
    )
    assert found.seconds_lost == pytest.approx(30)
    assert found.triggered == 1


def test_each_scan_that_fires_counts() -> None:
    steps = node_steps(np.full(150, 1.0), data_wait=np.concatenate((np.zeros(60), np.full(90, 0.9))))
    assert result(steps).triggered == 2  # quiet in the first minute, not in the second nor in the last half


CAUSES = [
    # Two workers on two cores, both busy: 90 % of their time is CPU time, more than the cores bear.
    ({"workers": 2, "fetching": 190, "computing": 130, "cores": 2, "cpu": 0.97}, "heavy transform"),
    # As many workers as cores, and still twice the work that they can do.
    ({"workers": 16, "fetching": 1500, "computing": 1400, "cores": 16, "cpu": 0.93}, "heavy transform"),
    # Four workers of 64 cores; even 64 workers could not keep up.
    ({"workers": 4, "fetching": 390, "computing": 380, "cores": 4, "cpu": 0.98}, "heavy transform"),
    # The training process loads each batch itself.
    ({"workers": 0, "fetching": 60, "computing": 58, "cores": 8, "cpu": 0.13}, "too few workers"),
    ({"workers": 1, "fetching": 98, "computing": 90, "cores": 8, "cpu": 0.2}, "too few workers"),
    ({"workers": 2, "fetching": 195, "computing": 190, "cores": 64, "cpu": 0.1}, "too few workers"),
    # Workers sleep in reads: no CPU time to speak of, and (a network disk) no I/O wait either.
    ({"workers": 2, "fetching": 195, "computing": 20, "cores": 2, "cpu": 0.3}, "slow storage"),
    ({"workers": 0, "fetching": 60, "computing": 5, "cores": 2, "cpu": 0.3}, "slow storage"),
    # The node's cores wait for a disk, but not for the workers of this run, which compute.
    ({"workers": 4, "fetching": 390, "computing": 300, "cores": 8, "io_wait": 0.4}, "too few workers"),
    # Low CPU share because the cores are full: workers wait for cores, not for storage.
    ({"workers": 8, "fetching": 780, "computing": 190, "cores": 2, "cpu": 0.99}, "heavy transform"),
    # Somebody else fills the cores; that alone does not make two workers wait for 88 % of their fetches.
    ({"workers": 2, "fetching": 195, "computing": 24, "cores": 2, "cpu": 0.97}, "slow storage"),
    # Three processes that compute on two cores, and somebody else's: a share of 40 % is waiting for a core.
    ({"workers": 2, "fetching": 195, "computing": 78, "cores": 2, "cpu": 0.97}, "heavy transform"),
    # The same shares of CPU time, where the kernel has counted how long the workers waited for a core.
    ({"workers": 2, "fetching": 195, "computing": 40, "cores": 2, "core_wait": 140}, "heavy transform"),
    ({"workers": 0, "fetching": 60, "computing": 29, "cores": 2, "core_wait": 28}, "too few workers"),
    ({"workers": 2, "fetching": 195, "computing": 40, "cores": 2, "core_wait": 30}, "slow storage"),
    ({"workers": 2, "fetching": 200, "computing": 20, "cores": 2, "core_wait": 94}, "slow storage"),
    # Workers are idle: handing over batches takes long.
    ({"workers": 8, "fetching": 100, "computing": 90, "cores": 8, "cpu": 0.2}, "hand-over"),
    # Nobody knows how many workers there are.
    ({"workers": None, "fetching": 195, "computing": 190, "cores": 2}, "heavy transform"),
    ({"workers": None, "fetching": 195, "computing": 190, "cores": 8}, "not known"),
    # Fetches were not timed: neither full nor idle cores show what the workers do.
    ({"workers": 2, "fetching": 0, "computing": 0, "cores": 2, "cpu": 0.97}, "not known"),
    ({"workers": 0, "fetching": 0, "computing": 0, "cores": 2, "cpu": 0.5}, "too few workers"),
    ({"workers": 1, "fetching": 0, "computing": 0, "cores": 8, "cpu": 0.2}, "not known"),
    ({"workers": 8, "fetching": 0, "computing": 0, "cores": 8, "io_wait": 0.19}, "not known"),
    ({"workers": 8, "fetching": 0, "computing": 0, "cores": 8, "io_wait": 0.21}, "slow storage"),
    ({"workers": None, "fetching": 0, "computing": 0, "cores": 8, "cpu": 0.2}, "not known"),
]


@pytest.mark.parametrize(("facts", "cause"), CAUSES)
def test_the_cause_is_told_from_the_workers_and_the_cores(facts: dict[str, Any], cause: str) -> None:
    found = run(**facts)
    assert found.details["cause"] == cause


@pytest.mark.parametrize(
    ("workers", "cause"), [(1, "not known"), (None, "not known"), (0, "too few workers")]
)
def test_without_samples_the_cores_are_not_known_and_no_transform_is_too_heavy_for_them(
    workers: int | None, cause: str
) -> None:
    trained = node_steps(np.full(200, 0.5), data_wait=np.full(200, 0.3))
    loader = Loader(0, "train", workers, None, None, None, 200, 98.0, 90.0, 0.0)
    analysis = evaluate(MemorySource(trained, facts=run_facts(ranks=[rank_facts(loaders=[loader])])))
    found = of_rule("DataStarved", analysis)
    assert (found.status, found.details["cause"]) == ("found", cause)
    assert found.details["ranks"][0]["cores"] is None
    assert "cores" not in found.finding or "how many cores" in found.finding
    assert predictions(analysis) == []


def test_words_name_the_cause_and_the_fix() -> None:
    heavy = run(2, 190, 130, cores=2, cpu=0.97)
    assert "the transform is too heavy" in heavy.finding
    assert "3.2 CPU seconds per second of computing" in heavy.finding
    assert "cheaper" in heavy.recommendation
    few = run(1, 98, 90, cores=8)
    assert "too few loader workers: 1 worker on a share of 8 cores, and about 3 would keep up" in few.finding
    assert "num_workers=3" in few.recommendation
    none = run(0, 60, 58, cores=2)
    assert "no worker process" in none.finding
    slow = run(2, 195, 20, cores=2, cpu=0.3)
    assert "storage is slow: workers spend 90 % of a fetch waiting" in slow.finding
    assert "local storage" in slow.recommendation


def test_a_rank_that_waits_for_storage_by_itself_gets_as_many_workers_as_keep_up() -> None:
    """A wait without workers is the fetch: 1.5 s per second of computing, of which 1.2 s sleep."""
    slow = run(0, 300, 60, cores=1)
    assert slow.details["cause"] == "slow storage"
    assert "storage is slow: the rank spends 80 % of a fetch waiting" in slow.finding
    (row,) = slow.details["ranks"]
    assert row["workers_suggested"] == row["workers_needed"] == 2, "of one core: they sleep"
    assert f"num_workers={row['workers_needed']}" in (slow.recommendation or "")
    assert "fetch was timed" not in slow.finding


def loading(**changes: Any) -> Loading:
    fields: dict[str, Any] = {
        "workers": 0,
        "fetches": 100,
        "fetch_seconds": 10.0,
        "fetch_cpu_seconds": 10.0,
        "fetch_core_wait_seconds": 0.0,
        "step_seconds": 15.0,
        "wait_seconds": 10.0,
        "cores": 8.0,
        "cpu_busy": 0.2,
        "io_wait": 0.0,
    }
    return Loading(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "suggested"),
    [
        ({}, 2),
        ({"cores": 1.0}, 1),
        (
            {"fetch_seconds": 100.0, "fetch_cpu_seconds": 1.0, "wait_seconds": 100.0, "step_seconds": 105.0},
            20,
        ),
        ({"fetch_seconds": 100.0, "fetch_cpu_seconds": 100.0}, 2),  # nine tenths were for evaluation
        ({"fetches": 10_000}, None),  # of 1 ms each
        ({"fetch_seconds": 0.0, "fetch_cpu_seconds": 0.0}, None),
        ({"workers": None}, None),
        ({"workers": 1, "fetch_cpu_seconds": 0.1}, None),  # of storage that may be busy
        ({"workers": 1, "fetch_seconds": 14.0, "fetch_cpu_seconds": 5.0, "fetch_core_wait_seconds": 6.0}, 2),
    ],
)
def test_as_many_workers_are_suggested_as_keep_up_and_cores_bear(
    changes: dict[str, Any], suggested: int | None
) -> None:
    assert loading(**changes).workers_suggested == suggested


def test_neighbours_are_not_the_cause_of_fetches_that_sleep_longer_than_they_wait_for_a_core() -> None:
    full = CoresInUse(allowed=2.0, loaders=0.1, rest=0.3, others=1.6)
    waits = {"fetch_cpu_seconds": 1.0, "in_use": full}
    assert loading(fetch_core_wait_seconds=2.5, **waits).cause() == "slow storage"
    assert loading(fetch_core_wait_seconds=6.0, **waits).cause() == "neighbours"
    waits["in_use"] = CoresInUse(allowed=2.0, loaders=0.1, rest=1.0, others=0.9)
    assert loading(fetch_core_wait_seconds=6.0, **waits).cause() != "neighbours", (
        "the run uses more than they"
    )


@pytest.mark.parametrize(("computing", "cause"), [(6.0, "too few workers"), (18.0, "neighbours")])
def test_neighbours_are_not_the_cause_of_fetches_that_are_long_next_to_computing(
    computing: float, cause: str
) -> None:
    """Without workers, the same thread fetches and computes: both wait for the same cores."""
    full = CoresInUse(allowed=2.0, loaders=0.1, rest=0.3, others=1.6)
    fetched = {"fetch_cpu_seconds": 1.0, "fetch_core_wait_seconds": 9.0, "in_use": full}
    steps = {"step_seconds": 50.0, "wait_seconds": 10.0, "step_core_wait_seconds": 49.0 - computing}
    assert loading(**fetched, **steps).cause() == cause
    assert loading(**fetched, **steps | {"step_core_wait_seconds": 0.0}).cause() == "neighbours", (
        "not counted"
    )


def test_batches_of_a_few_milliseconds_get_another_remedy_than_workers() -> None:
    cause, remedy = loading(fetches=10_000).words()
    assert cause == "the rank fetches each batch itself, in 1.00 ms"
    assert remedy.startswith("Fetch whole batches at once")
    assert "num_workers" not in remedy


def test_batches_of_a_few_milliseconds_are_short_however_long_they_wait_for_a_core() -> None:
    full = CoresInUse(allowed=2.0, loaders=0.0, rest=0.3, others=1.7)
    one = loading(fetch_seconds=40.0, fetch_cpu_seconds=9.5, fetch_core_wait_seconds=30.0, in_use=full)
    assert one.cause() == "neighbours"
    many = replace(one, fetches=5_000)
    assert many.words()[0] == "the rank fetches each batch itself, in 2.00 ms"
    assert many.words()[1].startswith("Fetch whole batches at once")


def test_the_little_that_is_neither_computing_nor_a_wait_for_a_core_is_no_slow_storage() -> None:
    busy = {"workers": 2, "fetch_cpu_seconds": 0.5}
    assert loading(**busy, fetch_core_wait_seconds=7.4).cause() == "slow storage"
    assert loading(**busy, fetch_core_wait_seconds=7.6).cause() != "slow storage"


def test_a_short_fetch_that_waits_gets_the_remedy_for_short_fetches() -> None:
    cause, remedy = loading(fetches=10_000, fetch_cpu_seconds=1.0).words()
    assert cause == "the rank fetches each batch itself, in 1.00 ms"
    assert remedy.startswith("Fetch whole batches at once")


def test_one_worker_that_is_busy_is_never_said_to_keep_up() -> None:
    one = loading(workers=1, fetch_seconds=14.0, fetch_cpu_seconds=5.0, fetch_core_wait_seconds=6.0)
    cause, remedy = one.words()
    assert cause == "there are too few loader workers: 1 worker on a share of 8 cores, busy 93 % of the time"
    assert remedy == "Give the loader 2 workers (num_workers=2)."


def test_workers_that_do_not_keep_up_on_so_few_cores_are_only_half_of_the_advice() -> None:
    assert "They do not keep up" not in loading(cores=2.0).words()[1], "2 would"
    remedy = loading(cores=2.0, fetch_seconds=14.0, fetch_cpu_seconds=14.0, wait_seconds=14.0).words()[1]
    assert remedy.startswith("Give the loader 2 workers (num_workers=2). They do not keep up either: make")


@pytest.mark.parametrize(("fetch_seconds", "alone"), [(9.9, True), (10.0, False)])
def test_batches_that_are_fetched_faster_than_handed_over_need_no_workers(
    fetch_seconds: float, alone: bool
) -> None:
    idle = loading(workers=8, fetch_seconds=fetch_seconds, fetch_cpu_seconds=9.0)
    assert idle.cause() == "hand-over"
    assert ("Without workers (num_workers=0) a batch takes 99.0 ms" in idle.words()[1]) == alone


def test_workers_with_several_threads_are_told_to_use_one() -> None:
    heavy = loading(workers=2, cores=2.0, fetch_seconds=28.0, fetch_cpu_seconds=56.0)
    assert heavy.cause() == "heavy transform"
    assert heavy.words()[1].startswith("Each worker uses 2.0 cores at once: give it one thread")


def test_without_timed_fetches_it_says_what_is_unknown_and_how_to_find_out() -> None:
    full = run(2, 0, 0, cores=2, cpu=0.99)
    assert full.finding.endswith("; the cause is unknown, because no fetch was timed.")
    assert "stepscope.fetch" in full.recommendation
    none = run(0, 0, 0)
    assert "no worker process" in none.finding
    assert "how many would keep up is unknown" in none.finding
    assert "num_workers=1 or more" in none.recommendation


def test_a_quiet_run_blames_nothing() -> None:
    found = run(2, 150, 140, waiting=1.0, cores=2, cpu=0.97)
    assert (found.status, found.details["cause"]) == ("healthy", None)
    assert "heavy" not in found.finding


def test_ranks_share_the_cores_of_their_node() -> None:
    """Two ranks of 4 busy workers each on 8 cores: each has its share, so it is not that workers are few."""
    loaders = [Loader(rank, "train", 4, None, None, None, 100, 390.0, 380.0) for rank in (0, 1)]
    steps = [node_steps(np.full(100, 1.0), rank=rank, data_wait=np.full(100, 0.5)) for rank in (0, 1)]
    facts = run_facts(ranks=[rank_facts(loader.rank, loaders=[loader]) for loader in loaders])
    found = result(node_samples(np.full((200, 8), 0.98)), *steps, facts=facts)
    assert found.details["cause"] == "heavy transform"
    assert found.details["ranks"][0]["cores"] == 4


def on_own_cores(
    loaders: float, rest: float, others: float, core_wait: float = 0.0, data_wait: float = 0.45
) -> RuleResult:
    """Two workers on 2 cores; all in cores on average, over 100 s."""
    seconds = 0.5 * np.arange(201)
    use = {
        "allowed_cores": np.full(201, 2.0),
        "cpu_seconds": (loaders + rest) * seconds,
        "other_cpu_seconds": others * seconds,
    }
    samples = node_samples(np.ones((201, 2)), of_run=use)
    trained = node_steps(np.full(200, 0.5), data_wait=np.full(200, data_wait))
    fetched = 100 * loaders + core_wait
    loader = Loader(0, "train", 2, None, None, None, 200, fetched, 100 * loaders, core_wait)
    return result(samples, trained, facts=run_facts(ranks=[rank_facts(loaders=[loader])]))


def test_full_cores_are_full_of_the_run_s_own_loaders_if_these_use_them() -> None:
    found = on_own_cores(loaders=1.7, rest=0.2, others=0.1)
    assert found.details["cause"] == "heavy transform"
    assert found.finding.endswith("of 2 cores, its loaders use 1.7, the rest of the run 0.2, others 0.1.")
    assert found.recommendation is not None
    assert found.recommendation.endswith(": the cores are full of its own loaders.")


@pytest.mark.parametrize(
    ("others", "core_wait", "data_wait", "named"),
    [
        (1.4, 60.0, 0.375, True),
        (1.4, 60.0, 0.38, False),  # fetches take 50 s, and steps compute for less than half of that
        (1.4, 9.0, 0.375, False),  # the workers hardly wait for a core
        (0.5, 60.0, 0.375, False),  # the cores are not full
    ],
)
def test_neighbours_are_named_if_they_fill_the_cores_that_fetches_wait_for(
    others: float, core_wait: float, data_wait: float, named: bool
) -> None:
    found = on_own_cores(0.5, 0.1, others, core_wait, data_wait)
    assert (found.details["cause"] == "neighbours") == named
    assert ("full of neighbours" in found.finding) == named


def test_cores_that_are_not_full_are_not_said_to_be() -> None:
    found = on_own_cores(loaders=1.2, rest=0.1, others=0.1)
    assert "full of" not in f"{found.finding} {found.recommendation}"


def test_workers_that_wait_for_one_lock_are_not_told_that_storage_is_slow() -> None:
    waiting = {"workers": 4, "fetch_seconds": 30.0, "fetch_cpu_seconds": 1.0}
    assert loading(**waiting, waits={"lock": 0.4, "disk": 0.6}).cause() == "slow storage"
    locked = loading(**waiting, waits={"lock": 0.8, "disk": 0.2})
    assert locked.cause() == "lock"
    assert locked.words()[0].startswith("workers wait for a lock: 80 % of their waits are for one")
    assert locked.workers_suggested is None


def test_a_rank_that_waits_in_its_fetches_for_threads_is_not_told_that_storage_or_a_network_is_slow() -> None:
    threads = loading(fetch_seconds=30.0, fetch_cpu_seconds=1.0, waits={"lock": 0.9, "other": 0.1})
    clause, remedy = threads.words()
    assert clause.endswith("97 % of a fetch waiting for other threads, which compute, read or hold a lock")
    assert "num_workers=1" in remedy
    assert threads.workers_suggested is None


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ({}, "storage is slow"),
        ({"disk": 0.6, "other": 0.4}, "storage is slow"),
        ({"other": 1.0}, "for a network"),
    ],
)
def test_storage_is_slow_unless_fetches_are_seen_to_wait_for_something_else(
    waits: dict[str, float], said: str
) -> None:
    for workers in (0, 4):
        slow = loading(workers=workers, fetch_seconds=30.0, fetch_cpu_seconds=1.0, waits=waits)
        assert slow.cause() == "slow storage"
        assert said in slow.words()[0]


def test_tensors_of_the_numbers_in_lists_are_seen_in_the_stacks_of_waits() -> None:
    def details(seconds: float) -> dict[str, Any]:
        made = ("main, train.py:9", "torch.utils.data._utils.collate.collate_int_fn")
        stacks = (
            StackTime("train", "data_wait", made, seconds),
            StackTime("train", "data_wait", made[:1], 1.0),
            StackTime("train", "forward", made, 9.0),
        )
        thread = ThreadTime("node-a", 0, "training", 1, 100.0, 90.0, 0.0, 0.0, (), stacks=stacks)
        return run(0, 50, 50, cores=8, cpu=0.3, waiting=50, threads=(thread,)).details

    assert details(1.1)["cause"] == "lists"
    assert details(1.0)["cause"] == "too few workers"
    many = loading(lists_share=0.6)
    assert many.words()[0].startswith("items are lists of numbers: 60 % of the wait")
    assert many.workers_suggested is None
    assert loading(lists_share=0.6, workers=1).cause() != "lists"


def test_a_wait_that_is_in_no_fetch_is_the_sampler_s() -> None:
    alone = {"workers": 0, "fetches": 1000, "fetch_cpu_seconds": 4.0}
    assert loading(**alone, wait_seconds=10.0, fetch_seconds=5.1).cause() == "too few workers"
    sampler = loading(**alone, wait_seconds=10.0, fetch_seconds=4.9)
    assert sampler.cause() == "sampler"
    assert sampler.words()[0].startswith("fetches take 49 % of the wait: the rest is the sampler")
    assert sampler.workers_suggested is None


def test_workers_that_start_again_at_each_epoch_are_to_be_kept_or_the_sampler_is_slow() -> None:
    waiting = {"workers": 2, "fetch_seconds": 30.0, "fetch_cpu_seconds": 25.0}
    assert loading(**waiting, restart_seconds=4.9).cause() == "too few workers"
    again = loading(**waiting, restart_seconds=6.0, persistent_workers=False)
    assert again.cause() == "restarts"
    cause, remedy = again.words()
    assert (
        cause
        == "60 % of the wait is for the first batch of an epoch, because 2 workers start again at each epoch"
    )
    assert remedy.startswith("Keep the workers alive (persistent_workers=True)")
    kept = loading(**waiting, restart_seconds=6.0, persistent_workers=True)
    assert "although the workers persist" in kept.words()[0]
    assert "persistent_workers" not in kept.words()[1]
    assert loading(**waiting | {"workers": 0}, restart_seconds=6.0).cause() == "too few workers"
    full = CoresInUse(allowed=2.0, loaders=0.1, rest=0.3, others=1.6)
    waiting |= {"fetch_seconds": 10.0, "fetch_cpu_seconds": 2.0, "fetch_core_wait_seconds": 8.0}
    assert loading(**waiting, in_use=full, restart_seconds=4.9).cause() == "neighbours"
    assert loading(**waiting, in_use=full, restart_seconds=6.0).cause() == "restarts", "it is in no fetch"


def test_workers_with_more_threads_than_cores_are_told_to_use_one() -> None:
    waiting = {"workers": 2, "fetch_seconds": 30.0, "fetch_cpu_seconds": 20.0, "cores": 2.0}
    assert loading(**waiting, worker_threads=4).cause() == "heavy transform"
    crowded = loading(**waiting, worker_threads=16)
    assert crowded.cause() == "threads"
    assert crowded.words()[0] == "each of 2 workers computes with 8 threads on a share of 2 cores"
    assert crowded.words()[1].startswith("Give each worker one thread")
    assert loading(**waiting | {"cores": 8.0}, worker_threads=16).cause() != "threads"


def test_one_of_several_workers_that_fetches_everything_is_named_as_such() -> None:
    waiting = {"workers": 4, "fetch_seconds": 30.0, "fetch_cpu_seconds": 1.0, "fetches": 100}
    assert loading(**waiting, busiest_fetch_seconds=20.0).cause() == "slow storage"
    alone = loading(**waiting, busiest_fetch_seconds=29.0)
    assert alone.cause() == "one worker"
    assert alone.words()[0] == "one of 4 workers does 97 % of the fetching"
    assert alone.workers_suggested is None
    assert loading(**waiting | {"fetches": 7}, busiest_fetch_seconds=29.0).cause() == "slow storage"
    assert loading(**waiting | {"workers": 1}, busiest_fetch_seconds=30.0).cause() == "slow storage"


def test_the_lock_is_seen_in_the_lines_of_the_workers() -> None:
    def line(place: str, lock: float, other: float) -> LineTime:
        seconds = {"running": 5.0, "disk": 0.0, "lock": lock, "child": 0.0, "other": other}
        return LineTime("", "", place, "load", "", "", "", seconds)

    def cause(*lines: LineTime) -> str | None:
        thread = ThreadTime("node-a", 0, "loader worker", 2, 100.0, 10.0, 0.0, 0.0, lines)
        waits = run(2, 195, 20, cores=2, cpu=0.3, threads=(thread,))
        found: str | None = waits.details["cause"]
        return found

    assert cause(line("data.py:3", 8.0, 2.0), line("", 0.0, 99.0)) == "lock"  # idle workers have no line
    assert cause(line("data.py:3", 2.0, 8.0)) == "slow storage"


def counts(**fetches: int) -> list[int]:
    """Returns a histogram: `ms_60=5` fetches of 60 ms."""
    made = [0] * (len(FETCH_BOUNDS) + 1)
    for name, number in fetches.items():
        made[bisect_left(FETCH_BOUNDS, int(name.removeprefix("ms_")) / 1000)] += number
    return made


def test_a_few_long_fetches_need_more_batches_ahead_and_not_storage() -> None:
    """100 fetches of 2 workers: 95 of 20 ms, and 5 of 1.5 s. A step computes for 100 ms."""
    uneven = loading(
        workers=2,
        prefetch=2,
        fetch_seconds=9.4,
        fetch_cpu_seconds=0.5,
        fetch_counts=counts(ms_20=95, ms_1500=5),
        step_seconds=15.5,
        wait_seconds=5.5,
    )
    assert uneven.cause() == "uneven fetches"
    clause, advice = uneven.words()
    assert clause == (
        "few fetches are long: 4 batches are made ahead, which last 400 ms, and the longest fetch takes "
        "up to 1.80 s"
    )
    assert "prefetch_factor=9 instead of 2, or num_workers=9 instead of 2" in advice
    one = replace(uneven, fetch_seconds=33.0, fetch_counts=counts(ms_20=99, ms_31000=1))
    short = replace(one, step_seconds=50.0, wait_seconds=20.0)
    assert short.cause() == "uneven fetches"
    assert short.words()[1].startswith("Split the items that take long"), "a queue of hundreds is no advice"
    unlike = [
        replace(uneven, prefetch=None),  # not known
        replace(uneven, fetch_counts=()),
        replace(uneven, prefetch=16),  # enough for the long ones
        replace(uneven, wait_seconds=15.0, step_seconds=25.0),  # most of the wait is for something else
        replace(uneven, fetch_seconds=25.0, fetch_counts=counts(ms_250=100)),  # all are long
        replace(uneven, workers=0),
    ]
    assert {each.cause() for each in unlike} == {"slow storage"}


@pytest.mark.parametrize(
    ("python", "facts", "clause", "words"),
    [
        (PyDataset(0, False, 0), {}, "Python makes one batch after another", "`workers=3` in"),
        (PyDataset(0, False, 0), {}, "", "which no generator does"),
        (PyDataset(0, False, 0), {}, "", "`use_multiprocessing=True`, unless `__getitem__` mostly waits"),
        (
            PyDataset(0, False, 0),
            {"workers": 0, "fetch_seconds": 60.0, "fetch_cpu_seconds": 3.0},
            "",
            "`__getitem__` mostly waits, so threads are enough.",
        ),
        (
            PyDataset(0, False, 0),
            {"workers": 0, "fetch_seconds": 60.0, "fetch_cpu_seconds": 59.0},
            "",
            "`workers=2` in the `super().__init__` of the PyDataset, and `use_multiprocessing=True`:",
        ),
        (PyDataset(4, False, 10), {}, "4 threads of the PyDataset share", "Pass `use_multiprocessing=True`"),
        (PyDataset(4, True, 10), {}, "the 4 processes of the PyDataset do not keep up", "`workers=8`"),
        (PyDataset(8, True, 10), {}, "do not keep up on 8 cores", "Make `__getitem__` cheaper"),
        (PyDataset(4, True, 2), {}, "", "Raise `max_queue_size` from 2"),
    ],
)
def test_a_late_py_dataset_of_keras_gets_the_advice_of_keras(
    python: PyDataset, facts: dict[str, Any], clause: str, words: str
) -> None:
    changes = {"step_seconds": 100.0, "wait_seconds": 60.0, "fetch_seconds": 0.0, **facts}
    late = loading(py_dataset=python, **changes)
    assert late.cause() == "PyDataset"
    assert late.workers_suggested is None
    why, advice = late.words()
    assert clause in why
    assert words in advice
    assert "num_workers" not in advice


@pytest.mark.parametrize("late", [0, 1])
def test_the_py_dataset_of_each_rank_is_known_from_the_gauges_of_rank_0(late: int) -> None:
    known = {"workers": 2.0, "processes": 0.0, "queue": 10.0}
    gauges = {f"keras_py_dataset_{name}": value for name, value in known.items()}
    steps = [node_steps(np.full(200, 0.5), rank=rank, data_wait=0.3 * (rank == late)) for rank in range(2)]
    loader = Loader(0, "train", 2, None, None)
    ranks = [rank_facts(rank, loaders=[loader], gauges={} if rank else gauges) for rank in range(2)]
    found = result(node_samples(np.full((200, 8), 0.5)), *steps, facts=run_facts(ranks=ranks))
    assert found.details["cause"] == "PyDataset"
    assert found.finding.endswith("the 2 threads of the PyDataset share one interpreter.")


@pytest.mark.parametrize(
    ("maps", "python", "words", "remedy"),
    [
        (0, 0.0, "it takes longer than the steps", "Make its functions cheaper."),
        (1, 15.0, "1 map without parallel calls", "num_parallel_calls"),
        (1, 15.5, "its Python functions computed for 15.5 s, one at a time", "with TensorFlow's operations"),
    ],
)
def test_a_pipeline_of_tf_data_is_late_for_its_maps_or_for_python(
    maps: int, python: float, words: str, remedy: str
) -> None:
    late = loading(
        sequential_maps=maps,
        workers=None,
        fetch_seconds=0.0,
        wait_seconds=30.0,
        pipeline_python_seconds=python,
    )
    why, do = late.words()
    assert why == f"the tf.data pipeline is late: {words}"
    assert remedy in do
