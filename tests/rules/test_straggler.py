"""Straggler: the rank that is slow by itself, never one that waits for it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepscope.evaluation.analysis import RuleResult
from stepscope.runs.model import COMPONENTS, LineTime, Loader, Steps, ThreadTime
from stepscope.training.layout import GRAPHS_WAIT, THREADS

from tests.support.few_rules import judged
from tests.support.source import node_samples, node_steps, rank_facts, run_facts

COMMUNICATION = COMPONENTS.index("communication")
BIT = 1 / 1024  # seconds: sums of these have no rounding errors
seeds = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=settings().max_examples // 4)  # for examples that evaluate runs of many scans

result = partial(judged, "Straggler")


def synchronous(own: np.ndarray, exchange: float = 0.01, **components: Any) -> list[Steps]:
    """Ranks that wait for each other at each step; `own` (steps, ranks): the time without communication."""
    longest = own.max(axis=1) + exchange
    ranks = []
    for rank in range(own.shape[1]):
        parts: dict[str, Any] = {name: seconds[:, rank] for name, seconds in components.items()}
        parts["communication"] = longest - own[:, rank]
        ranks.append(node_steps(longest, rank=rank, node=f"node-{rank // 4}", first_number=0, **parts))
    return ranks


def cluster(*own: float, steps: int = 100, exchange: float = 0.01) -> list[Steps]:
    """Ranks that take so many seconds by themselves at each step."""
    return synchronous(np.tile(own, (steps, 1)), exchange)


def accused(found: RuleResult) -> int | None:
    return found.details.get("rank")


def fired_ranks(found: RuleResult) -> set[int]:
    return {row["rank"] for row in found.details["ranks"] if row["triggered"]}


def without(steps: Steps, keep: np.ndarray) -> Steps:
    arrays = ("numbers", "phases", "starts", "durations", "components")
    return replace(steps, **{name: getattr(steps, name)[keep] for name in arrays})


# -- thresholds: just below, at and just above ----------------------------------------------------------


@pytest.mark.parametrize(("excess", "rank"), [(64 * BIT - BIT, None), (64 * BIT, None), (64 * BIT + BIT, 3)])
def test_the_excess_is_above_a_share_of_the_step(excess: float, rank: int | None) -> None:
    own = 0.75
    steps = cluster(own - excess, own - excess, own - excess, own, exchange=0.25)  # steps of 1 s
    assert accused(result(*steps, threshold=6.25)) == rank


@pytest.mark.parametrize(("excess", "rank"), [(BIT, None), (2 * BIT, None), (3 * BIT, 1)])
def test_the_excess_is_above_some_milliseconds(excess: float, rank: int | None) -> None:
    steps = cluster(32 * BIT - excess, 32 * BIT, exchange=32 * BIT)
    assert accused(result(*steps, threshold=0, minimum=2000 * BIT)) == rank


@pytest.mark.parametrize(("errors", "rank"), [(3 - BIT, None), (3, None), (3 + BIT, 0)])
def test_the_excess_is_above_three_standard_errors(errors: float, rank: int | None) -> None:
    """The variance of the slow rank's 30 steps is 30 / 64², so the standard error of their mean is 1/64 s."""
    away = np.array([6] * 9 + [5] * 5 + [1])
    own = np.full((30, 2), 0.5)
    own[:, 0] += (errors + np.concatenate((away, -away))) / 64
    assert accused(result(*synchronous(own, exchange=0.25), threshold=0)) == rank


@pytest.mark.parametrize(("waited", "rank"), [(0.25 + BIT, None), (0.25, None), (0.25 - BIT, 0)])
def test_a_straggler_waits_less_than_the_others_by_more_than_half_of_the_excess(
    waited: float, rank: int | None
) -> None:
    """Its own time is 0.25 s longer, and the others wait for 0.375 s per step."""
    slow = node_steps(np.full(100, 0.75 + waited), communication=waited)
    others = [node_steps(np.full(100, 0.875), rank=rank, communication=0.375) for rank in (1, 2)]
    assert accused(result(slow, *others)) == rank


@pytest.mark.parametrize(("steps", "status"), [(29, "not enough data"), (30, "found"), (39, "found")])
def test_thirty_steps_are_enough(steps: int, status: str) -> None:
    assert result(*cluster(0.5, 0.5, 1.0, steps=steps)).status == status


@pytest.mark.parametrize(("step", "status"), [(68 * BIT, "not enough data"), (69 * BIT, "found")])
def test_ranks_are_compared_over_at_least_two_seconds(step: float, status: str) -> None:
    """For less, a scheduler of busy cores prefers one process to another. 30 steps of 69 BIT are 2.02 s."""
    found = result(*cluster(step - 50 * BIT, step - 50 * BIT, step - 9 * BIT, steps=30, exchange=9 * BIT))
    assert found.status == status, found.finding


def test_many_windows_need_more_standard_errors_than_one() -> None:
    """Else a long run without any slow rank has one by chance."""
    own = np.random.default_rng(1).gamma(4, 0.1, (20_000, 4))
    assert result(*synchronous(own)).status == "healthy"
    own[10_000:10_100, 2] += 0.3
    assert fired_ranks(result(*synchronous(own))) == {2}


# -- who is slow, and why ---------------------------------------------------------------------------------


def test_ranks_on_several_nodes_are_peers_and_both_sides_numbers_are_in_the_text() -> None:
    own = np.tile([0.5, 0.5, 0.5, 0.5, 0.5, 1.0], (300, 1))
    found = result(*synchronous(own, forward=own - 0.25, data_wait=np.full_like(own, 0.2)))
    assert found.finding == (
        "Rank 5 on node-1 is slow by itself, and the other ranks wait for it: its own time is 1.00 s per "
        "step, theirs 500 ms (median). It waits 500 ms less, in 10 of 10 windows of 30 steps. Most of the "
        "excess is forward: 750 ms per step, 250 ms on the other ranks."
    )
    assert found.seconds_lost == pytest.approx(150)
    wanted = {"rank": 5, "node": "node-1", "component": "forward", "steps": 300, "excess_seconds": 0.5}
    assert {key: found.details[key] for key in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(("often", "lost"), [(1.04, 0.0), (1.08, 300 * 0.04 + 300 * 0.08)])
def test_a_rank_that_fired_costs_time_below_the_thresholds_too(often: float, lost: float) -> None:
    """Half of its windows are above 5 % of the step, the others below."""
    slow = np.repeat([1.04, often], 300)
    own = np.column_stack((np.ones(600), slow, np.ones(600)))
    assert result(*synchronous(own)).seconds_lost == pytest.approx(lost)


@pytest.mark.parametrize("component", [name for name in COMPONENTS if name != "communication"])
def test_the_cause_is_the_component_with_the_largest_excess(component: str) -> None:
    own = np.tile([0.5, 0.5, 0.75], (100, 1))
    steps = synchronous(own, 0.01, **{component: own - 0.45})
    found = result(*steps)
    assert found.details["component"] == component


def test_time_outside_all_components_is_the_hosts() -> None:
    own = np.tile([0.5, 0.5, 0.75], (100, 1))
    found = result(*synchronous(own, forward=np.full_like(own, 0.4)))
    assert found.details["component"] == "host"
    assert "host time outside all components: 350 ms per step, 100 ms on the other ranks" in found.finding


def test_a_rank_that_saves_for_all_is_told_so_kindly() -> None:
    own = np.full((200, 4), 0.5)
    saving = np.zeros_like(own)
    saving[::10, 0] = 3.0
    found = result(*synchronous(own + saving, checkpoint=saving))
    assert found.finding.startswith("Rank 0 on node-0 saves checkpoints, and the other ranks wait for it")
    assert "which is usual" in found.recommendation


def test_a_short_pause_in_every_tenth_step_shows_after_about_100_steps() -> None:
    """200 ms in steps of 100 ms."""
    own = np.random.default_rng(0).normal(0.1, 0.002, (150, 4))
    own[4::10, 1] += 0.2
    steps = synchronous(own)
    early = [without(one, one.numbers < 30) for one in steps]
    assert result(*early).status == "healthy"
    assert accused(result(*steps)) == 1


def test_a_rank_that_only_waits_is_never_accused_although_its_step_takes_as_long() -> None:
    steps = cluster(0.2, 1.0, 0.2, 0.2, steps=300)
    assert len({float(one.durations.sum()) for one in steps}) == 1
    assert fired_ranks(result(*steps)) == {1}


def test_of_two_ranks_each_is_the_others_peer() -> None:
    assert fired_ranks(result(*cluster(0.5, 1.0))) == {1}


@pytest.mark.parametrize(
    ("own", "first", "slow"),
    [
        ((0.5, 0.5, 0.5, 0.9, 1.0), 4, {3, 4}),  # the slowest one first
        ((0.5, 1.0, 1.0), 1, {1, 2}),
        ((0.5, 0.5, 1.0, 1.0), 2, {2, 3}),
        ((0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0), 4, {4, 5, 6, 7}),  # those of one slow node of two
        ((0.5, 1.0, 1.0, 1.0), None, set()),  # one rank that has less to do than all others
    ],
)
def test_all_ranks_that_are_slower_than_the_fast_ones_are_named(
    own: tuple[float, ...], first: int | None, slow: set[int]
) -> None:
    found = result(*cluster(*own))
    assert (accused(found), fired_ranks(found)) == (first, slow)
    assert set(found.details.get("slow_ranks", ())) == slow
    if first is not None:
        assert found.details["excess_seconds"] == pytest.approx(own[first] - 0.5)
        assert all(str(rank) in found.finding.rpartition(";")[2] for rank in slow - {first})


def test_a_rank_that_is_slow_for_a_short_time_is_found_by_short_windows() -> None:
    own = np.full((3000, 3), 0.5)
    own[600:660, 1] = 0.7
    found = result(*synchronous(own))
    assert (accused(found), found.details["window"]) == (1, 30)
    assert "in 2 of 100 windows of 30 steps" in found.finding


@pytest.mark.parametrize(("last", "lasts"), [(90, False), (300, True)])
def test_a_rank_has_bands_from_the_end_of_its_first_slow_window_to_that_of_the_next_other(
    last: int, lasts: bool
) -> None:
    own = np.full((320, 4), 0.5)  # the last 20 steps are too few to be judged
    own[30:last, 3] = 1.0
    steps = synchronous(own)
    (band,) = result(*steps).bands
    ends = steps[3].starts + steps[3].durations
    end = ends[last - 1] if lasts else ends[last + 30 - 1]
    assert (band.node, band.subject, band.lasts) == ("node-0", "rank 3", lasts)
    assert (band.start, band.end) == pytest.approx((ends[59], end))
    assert band.worst == pytest.approx(0.5)
    assert band.words == "500 ms more own time per step"


def test_a_run_without_a_straggler_has_no_bands() -> None:
    assert result(*cluster(0.5, 0.5, 0.5)).bands == []


def test_other_ranks_that_were_slow_at_other_times_are_counted() -> None:
    own = np.full((300, 3), 0.5)
    own[:200, 2] = own[200:, 0] = 1.0
    assert result(*synchronous(own)).finding.endswith("1 more rank was slow at other times.")


def test_pauses_that_are_not_its_own_work_are_told_apart() -> None:
    own = np.full((100, 3), 0.5)
    own[40:50, 1] += 2.0  # 20 s
    steps = synchronous(own)
    paused = {"stopped": 19.5, "no_core": 0.2, "throttled": 0.0}
    ranks = [
        rank_facts(rank, node="node-0", paused_seconds=paused if rank == 1 else {"no_core": 0.2})
        for rank in range(3)
    ]
    found = result(*steps, facts=run_facts(ranks=ranks), deviations=1)
    assert found.finding.endswith(
        "This is not its own work: it was stopped by a signal for 19.5 s of the run (the other ranks: 0 s)."
    )
    assert "SIGSTOP" in found.recommendation
    assert found.details["paused_seconds"] == paused
    partly = [
        rank_facts(rank, node="node-0", paused_seconds={"stopped": 12.0 * (rank == 1)}) for rank in range(3)
    ]
    found = result(*steps, facts=run_facts(ranks=partly), deviations=1)
    assert "Most of this is not its own work: it was stopped by a signal for 12.0 s" in found.finding
    assert "SIGSTOP" in found.recommendation
    assert "time what each rank does" in found.recommendation
    short = [rank_facts(rank, node="node-0", paused_seconds={"stopped": 4.0 * rank}) for rank in range(3)]
    assert "not its own work" not in result(*steps, facts=run_facts(ranks=short), deviations=1).finding


@pytest.mark.parametrize(
    ("component", "library", "is_stage"),
    [
        ("forward", "torch.distributed.distributed_c10d.recv", True),
        ("backward", "torch.distributed.pipelining.schedules.step", True),
        ("forward", "torch.distributed.distributed_c10d.all_reduce", False),
        ("host", "torch.distributed.distributed_c10d.recv", False),  # no layer that could move
    ],
)
def test_a_stage_of_a_pipeline_is_told_to_hand_layers_over(
    component: str, library: str, is_stage: bool
) -> None:
    own = np.tile([0.2, 0.4, 0.2], (100, 1))
    names = {component: own} if component != "host" else {"forward": own / 4}
    waits = LineTime("train", "communication", "train.py:9", "train", library, "", "", {"other": 1.0})
    thread = ThreadTime("node-0", 0, "training", 1, 100.0, 50.0, 0.0, 0.0, (waits,))
    found = result(*synchronous(own, **names), facts=run_facts(threads=(thread,)))
    assert found.finding.startswith("Rank 1 on node-0 has the longest stage of a pipeline") == is_stage
    assert found.recommendation.startswith("Move layers") == is_stage


def crowded(
    no_core: float, threads: Sequence[ThreadTime] = (), torch_threads: int | None = None, **more: float
) -> RuleResult:
    """Rank 1 takes 20 s more in ten steps; it waited for a core for so long, the others for 10 s.

    `more`: seconds of other pauses of rank 1.
    """
    own = np.full((100, 3), 0.5)
    own[40:50, 1] += 2.0
    ranks = [
        rank_facts(
            rank,
            node="node-0",
            gauges={THREADS: float(torch_threads)} if torch_threads else {},
            paused_seconds={"no_core": no_core, **more} if rank == 1 else {"no_core": 10.0},
        )
        for rank in range(3)
    ]
    return result(*synchronous(own), facts=run_facts(ranks=ranks, threads=tuple(threads)), deviations=1)


def on_cores(
    ran: float, asleep: float = 0.0, component: str = "host", spins: float = 0.0
) -> list[ThreadTime]:
    """Three ranks, of which rank 1 had a core for so long in training steps, and slept; the others 2 s.

    Each waited twice as long for its cores. The others' waits for rank 1 are `spins` seconds of these.
    """

    def thread(rank: int, ran: float, asleep: float) -> ThreadTime:
        spent = spins * (rank != 1)
        lines = (
            LineTime(
                "train", component, "train.py:8", "read", "", "", "", {"other": asleep, "running": 3 * ran}
            ),
            LineTime("train", "communication", "train.py:9", "step", "", "", "", {"running": 3 * spent}),
        )
        ran += spent
        return ThreadTime(
            *("node-0", rank, "training", 1, 100.0, ran, 2 * ran, 0.0, lines),
            train_ran_seconds=ran,
            train_core_wait_seconds=2 * ran,
        )

    return [thread(0, 2.0, 1.0), thread(1, ran, asleep), thread(2, 2.0, 1.0)]


@pytest.mark.parametrize(
    "threads",
    [on_cores(2.0, asleep=18.0), on_cores(8.0), on_cores(24.0, spins=22.0)],
    ids=["sleeps", "computes", "others spin"],
)
def test_a_rank_that_is_known_to_work_longer_is_accused_on_crowded_cores_too(
    threads: list[ThreadTime],
) -> None:
    found = crowded(16.0, threads=threads)
    assert accused(found) == 1
    assert "not its own work" not in found.finding


def test_a_rank_that_was_stopped_is_accused_on_crowded_cores_too() -> None:
    found = crowded(16.0, stopped=15.0)
    assert accused(found) == 1
    assert "stopped by a signal for 15.0 s" in found.finding
    assert crowded(16.0, stopped=5.0).status == "healthy"


def test_a_rank_whose_other_threads_hold_the_interpreter_lock_is_told_so() -> None:
    """Rank 1 takes 50 s more; by samples, its main thread ran for 40 s more than the kernel saw."""
    runs = LineTime("train", "backward", "train.py:9", "step", "", "", "", {"running": 80.0})
    monitor = LineTime("", "", "monitor.py:3", "watch", "", "", "", {"running": 60.0})
    threads = [
        ThreadTime("node-0", rank, "training", 1, 99.0, ran, 0.0, 0.0, (runs,), 99.0, (monitor,))
        for rank, ran in enumerate((80.0, 40.0, 80.0))
    ]
    ranks = [rank_facts(rank, node="node-0") for rank in range(3)]
    steps = synchronous(np.tile([0.5, 1.0, 0.5], (100, 1)))
    found = result(*steps, facts=run_facts(ranks=ranks, threads=tuple(threads)))
    assert "interpreter lock, which other threads of its process held, for 40.0 s of the run" in found.finding
    assert "into another process" in found.recommendation
    assert found.details["lines_of"] == "interpreter_lock"
    ranks[1].paused_seconds["no_core"] = 45.0
    both = result(*steps, facts=run_facts(ranks=ranks, threads=tuple(threads)))
    assert "without a core for 45.0 s" in both.finding
    assert both.recommendation.startswith("Move what the other threads"), "which use its cores, too"


def test_waits_before_the_first_step_explain_no_longer_steps_of_a_single_thread() -> None:
    few = [replace(thread, train_core_wait_seconds=9.0) for thread in on_cores(2.0)]
    assert accused(crowded(16.0, threads=few)) is None
    assert accused(crowded(16.0, threads=few, torch_threads=2)) is None
    assert accused(crowded(16.0, threads=few, torch_threads=1)) == 1
    assert "without a core" in crowded(40.0, threads=few, torch_threads=2).finding
    assert "without a core" not in crowded(40.0, threads=few, torch_threads=1).finding
    many = [replace(thread, train_core_wait_seconds=11.0) for thread in on_cores(2.0)]
    assert accused(crowded(16.0, threads=many, torch_threads=1)) is None


@pytest.mark.parametrize(("of_others", "rank"), [(9.0, 1), (4.0, 1), (2.0, None)])
def test_waits_that_the_others_had_in_the_same_steps_explain_nothing(
    of_others: float, rank: int | None
) -> None:
    """Rank 1 takes 12 s more in all 60 steps, and waited for a core for 9 s of them. One rank has gauges."""
    gauges = [{THREADS: 1.0}, {}, {}]
    ranks = [
        rank_facts(each, node="node-0", gauges=gauges[each], paused_seconds={"no_core": 30.0})
        for each in range(3)
    ]
    threads = tuple(
        replace(thread, train_core_wait_seconds=9.0 if thread.rank == 1 else of_others)
        for thread in on_cores(2.0)
    )
    steps = synchronous(np.tile([0.5, 0.7, 0.5], (60, 1)))
    assert accused(result(*steps, facts=run_facts(ranks=ranks, threads=threads))) == rank


def test_sleep_for_other_ranks_and_waits_for_cores_are_no_work_of_a_rank() -> None:
    assert crowded(16.0, threads=on_cores(2.0, asleep=18.0, component="communication")).status == "healthy"
    assert crowded(16.0, threads=on_cores(2.5, asleep=1.0)).status == "healthy"
    little = [replace(thread, train_core_wait_seconds=18.0) for thread in on_cores(3.9)]
    assert crowded(16.0, threads=little).status == "healthy"
    # The same work, which took up to 1.6 times as long.
    same = [replace(thread, train_ran_seconds=8 * thread.train_ran_seconds) for thread in on_cores(3.9)]
    assert crowded(16.0, threads=same).status == "healthy"


def test_what_a_rank_waits_for_cores_because_it_works_longer_is_its_own_work() -> None:
    """Rank 1 alone waits long for cores: so do the others per second of their work."""
    assert "not its own work" in crowded(31.0, threads=on_cores(2.0)).finding
    assert "not its own work" not in crowded(31.0, threads=on_cores(8.0)).finding


@pytest.mark.parametrize(
    ("usual", "workers", "rank"), [(0.01, 0, 1), (0.01, 2, None), (0.2, 0, None)], ids=["", "workers", "all"]
)
def test_a_rank_that_does_what_the_others_hardly_do_is_accused_on_crowded_cores_too(
    usual: float, workers: int, rank: int | None
) -> None:
    """Chance makes all components longer, and also what workers do that lack a core."""
    own, waits = np.full((100, 3), 0.5), np.full((100, 3), usual)
    own[40:50, 1] += 2.0
    waits[40:50, 1] += 2.0
    loaders = [Loader(1, "train", workers, None, None)]
    ranks = [
        rank_facts(
            each, node="node-0", loaders=loaders, paused_seconds={"no_core": 16.0 if each == 1 else 10.0}
        )
        for each in range(3)
    ]
    steps = synchronous(own, data_wait=waits)
    assert accused(result(*steps, facts=run_facts(ranks=ranks), deviations=1)) == rank


def test_nobody_is_accused_while_all_ranks_wait_for_cores_and_that_may_be_all_of_the_excess() -> None:
    found = crowded(12.0)
    assert (found.status, found.triggered, found.seconds_lost) == ("healthy", 0, 0.0)
    assert found.finding.startswith(
        "No rank can be accused: in 1 of 3 windows of 30 steps, rank 1 on node-0 took"
    )
    assert "it waited 12.0 s for a core in this run, the others 10.0 s" in found.finding
    assert "rank" not in found.details
    assert crowded(9.9).status == "found"  # less than half of the excess


def test_a_rank_that_alone_has_no_core_is_accused_and_so_is_one_that_is_always_slow() -> None:
    alone = crowded(30.1)
    assert alone.status == "found"
    assert "This is not its own work: it was ready to run but without a core for 30.1 s" in alone.finding
    ranks = [rank_facts(rank, node="node-0", paused_seconds={"no_core": 100.0}) for rank in range(3)]
    always = synchronous(np.tile([0.5, 0.7, 0.5], (90, 1)))
    assert result(*always, facts=run_facts(ranks=ranks)).status == "found"
    some = synchronous(np.tile([0.5, 0.7, 0.5], (60, 1)))
    assert result(*some, facts=run_facts(ranks=ranks)).status == "healthy"


def test_a_rank_that_alone_is_slow_in_many_windows_waited_for_no_core_by_chance() -> None:
    """It waited for cores as long as the other rank: that explains none of it."""
    ranks = [rank_facts(rank, node="node-0", paused_seconds={"no_core": 100.0}) for rank in range(2)]
    own = np.full((480, 2), 0.5)
    for window in range(0, 16, 2):
        own[30 * window : 30 * window + 30, 0] = 0.6
    assert accused(result(*synchronous(own), facts=run_facts(ranks=ranks))) == 0
    own[30:60, 1] = own[90:120, 1] = 0.6  # the other one is slow, too, in two of ten windows
    assert accused(result(*synchronous(own), facts=run_facts(ranks=ranks))) is None


# -- what is not known --------------------------------------------------------------------------------------


def test_where_no_communication_is_timed_waiting_cannot_be_told_from_computing() -> None:
    found = result(*(node_steps(np.full(100, 1.0), rank=rank, first_number=0) for rank in range(4)))
    assert found.status == "healthy"
    assert "communication was not timed" in found.finding


def test_one_rank_alone_has_no_peers() -> None:
    found = result(*cluster(1.0))
    assert (found.status, "only one rank" in found.finding) == ("not enough data", True)
    assert "no rank" in result(node_samples(np.ones((50, 2)))).finding


def test_ranks_are_compared_in_the_same_steps() -> None:
    """A rank that lacks some steps is compared with the others in the steps that it has."""
    own = np.tile([0.5, 0.5, 0.5], (60, 1))
    own[20:30] *= 3  # in which rank 2 was not seen
    steps = synchronous(own)
    steps[2] = without(steps[2], (steps[2].numbers < 20) | (steps[2].numbers >= 30))
    assert result(*steps).status == "healthy"
    slow = cluster(0.5, 0.5, 1.0, steps=300)
    slow[2] = without(slow[2], slow[2].numbers % 10 != 3)
    assert fired_ranks(result(*slow)) == {2}


def test_after_a_restart_of_all_ranks_their_steps_are_compared_anew() -> None:
    first, second = cluster(0.5, 0.5, 1.0), cluster(1.0, 0.5, 0.5)
    later = [replace(steps, starts=steps.starts + 1000) for steps in second]
    assert fired_ranks(result(*first, *later)) == {0, 2}


def test_only_training_steps_are_compared() -> None:
    evaluation = node_steps(np.full(500, 9.0), phase="eval", first_number=0)
    assert result(*cluster(0.5, 0.5, 0.5), evaluation).status == "healthy"


# -- laws ---------------------------------------------------------------------------------------------------


def noisy(seed: int, steps: int = 200, ranks: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(-1, 0.3, (steps, ranks))


@FEW
@given(seeds, st.floats(0.1, 10), st.integers(2, 12))
def test_the_same_time_added_to_all_ranks_accuses_nobody(seed: int, more: float, ranks: int) -> None:
    assert result(*cluster(*[more] * ranks)).status == "healthy"
    own = np.random.default_rng(seed).uniform(0.9, 1.1, (200, ranks))
    assert result(*synchronous(own)).status == "healthy"
    assert result(*synchronous(own + more)).status == "healthy"


@given(seeds, st.permutations(range(4)))
def test_permuting_ranks_permutes_the_verdict(seed: int, order: list[int]) -> None:
    own = noisy(seed)
    own[:, 2] += 0.2
    before, after = result(*synchronous(own)), result(*synchronous(own[:, order]))
    assert accused(before) == 2
    assert order[accused(after)] == 2  # type: ignore[index]
    assert {order[rank] for rank in fired_ranks(after)} == fired_ranks(before)


@given(seeds, st.floats(0.0, 1.0))
def test_the_rank_that_waits_longest_is_never_accused(seed: int, slower: float) -> None:
    own = noisy(seed)
    own[:, 1] += slower
    longest = max(
        range(own.shape[1]), key=lambda rank: synchronous(own)[rank].components[:, COMMUNICATION].sum()
    )
    assert accused(result(*synchronous(own))) != longest


@FEW
@given(seeds, st.floats(0.1, 100))
def test_scaling_time_changes_nothing(seed: int, scale: float) -> None:
    own = noisy(seed)
    own[:, 1] *= 1.4
    before, after = result(*synchronous(own)), result(*synchronous(scale * own, scale * 0.01))
    assert fired_ranks(before) == fired_ranks(after) == {1}


@given(seeds)
def test_a_slower_network_accuses_nobody(seed: int) -> None:
    """It lengthens each step and its communication alike."""
    own = noisy(seed)
    assert fired_ranks(result(*synchronous(own, exchange=5.0))) <= fired_ranks(result(*synchronous(own)))


@pytest.mark.parametrize("in_graphs", [False, True])
def test_ranks_that_wait_inside_of_graphs_are_compared_by_what_they_do_outside(in_graphs: bool) -> None:
    own = np.random.default_rng(0).normal((0.02, 0.02, 0.08), 0.001, (100, 3))
    steps = []
    for rank in range(3):
        waits = 0.2 - own[:, rank]
        steps.append(node_steps([0.2] * 100, rank=rank, node="node-0", first_number=0, forward=waits))
    gauges = {GRAPHS_WAIT: 1.0} if in_graphs else {}
    ranks = tuple(rank_facts(rank, node="node-0", gauges=gauges) for rank in range(3))
    found = result(*steps, facts=run_facts(ranks=ranks))
    assert accused(found) == (2 if in_graphs else None)
    if in_graphs:
        assert found.details["component"] == "host"
        assert found.seconds_lost == pytest.approx(100 * 0.06, rel=0.02)
        assert "Most of the excess is host time outside all components: 80" in found.finding
    alike = result(*(replace(steps[0], rank=rank) for rank in range(2)), facts=run_facts(ranks=ranks[:2]))
    assert ("in graphs is not known" in alike.finding) == in_graphs
