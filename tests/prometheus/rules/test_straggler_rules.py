"""Straggler in promtool: below, at and above each of its thresholds, over any number of nodes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from stepscope.runs.model import Steps

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import SCRAPE_SECONDS, Series, only, scraped_steps
from tests.support.source import node_steps

pytestmark = needs_prometheus

METRICS = ("stepscope_step_duration_seconds", "stepscope_step_component", "stepscope_step_own")
BIT = 1 / 1024  # seconds: sums of these have no rounding errors
# Thresholds without rounding errors.
EXACT = "Straggler.threshold=6.25", f"Straggler.minimum={2000 * BIT}"


def rank_steps(own: float | np.ndarray, waited: float | np.ndarray, rank: int = 0, count: int = 256) -> Steps:
    """The steps of a rank that takes `own` seconds by itself and waits for the others."""
    waiting = np.broadcast_to(waited, count)
    return node_steps(np.broadcast_to(own, count) + waiting, rank=rank, communication=waiting)


def waiting_for(*own: float) -> list[Steps]:
    """Ranks that wait for the slowest one: all steps take as long."""
    return [rank_steps(mine, max(own) + 0.25 - mine, rank) for rank, mine in enumerate(own)]


def straggling(slow: float, ranks: int = 4) -> list[Steps]:
    """Rank 2 takes `slow` times as long as the others, 0.5 s, and they wait for it."""
    own = [0.5 * (slow if rank == 2 else 1.0) for rank in range(ranks)]
    steps = max(own)
    return [
        node_steps(
            np.full(600, steps),
            rank=rank,
            communication=steps - mine,
            forward=mine - 0.25,
            backward=0.2,
        )
        for rank, mine in enumerate(own)
    ]


CASES: dict[str, tuple[Sequence[Steps], int]] = {
    "share-below": (waiting_for(0.75 - 63 * BIT, 0.75 - 63 * BIT, 0.75), 0),
    "share-at": (waiting_for(0.75 - 64 * BIT, 0.75 - 64 * BIT, 0.75), 0),
    "share-above": (waiting_for(0.75 - 65 * BIT, 0.75 - 65 * BIT, 0.75), 1),
    "time-below": ([rank_steps(7 * BIT, BIT, 0), rank_steps(8 * BIT, 0, 1)], 0),
    "time-at": ([rank_steps(6 * BIT, 2 * BIT, 0), rank_steps(8 * BIT, 0, 1)], 0),
    "time-above": ([rank_steps(5 * BIT, 3 * BIT, 0), rank_steps(8 * BIT, 0, 1)], 1),
    "waits-below": ([rank_steps(0.75, 0.25 - BIT, 0), rank_steps(0.5, 0.375, 1)], 1),
    "waits-at": ([rank_steps(0.75, 0.25, 0), rank_steps(0.5, 0.375, 1)], 0),
    "waits-above": ([rank_steps(0.75, 0.25 + BIT, 0), rank_steps(0.5, 0.375, 1)], 0),
    "few-steps": ([rank_steps(0.5, 0.5, 0, 29), rank_steps(1.0, 0.0, 1, 29)], 0),
    "enough-steps": ([rank_steps(0.5, 0.5, 0, 30), rank_steps(1.0, 0.0, 1, 30)], 1),
    "alike": (waiting_for(0.5, 0.5, 0.5, 0.5), 0),
    "alone": (waiting_for(1.0), 0),
    "two-slow": (waiting_for(0.5, 0.5, 0.5, 0.875, 1.0), 1),
    "two-ranks": (waiting_for(0.5, 1.0), 1),
}


def uncertain(errors: float) -> list[Steps]:
    """Two ranks; the excess of the first is so many of its standard errors, of 1/32 s, over 64 steps."""
    own = np.where(np.arange(64) % 2, 0.75, 0.25) + errors / 32
    return [rank_steps(own, 1 - own, 0, 64), rank_steps(0.5, 0.5, 1, 64)]


def crowded(run: str, mine: int, others: int) -> Series:
    """Four ranks, one of which takes 0.25 s more per step than the others, and waits so long for a core.

    Times without a core are in 64ths of a second per step: 8 of them are half of the excess.
    """
    steps = [
        rank_steps(0.75 if rank == 2 else 0.5, 0.25 if rank == 2 else 0.5, rank, 800) for rank in range(4)
    ]
    paused = "stepscope_rank_paused_seconds_total"
    waiting: Series = {
        f'{paused}{{job="stepscope",instance="node-a",run="{run}",rank="{rank}",reason="{reason}"}}': [
            (mine if rank == 2 else others) * SCRAPE_SECONDS / 64 * scrape * (reason == "no_core")
            for scrape in range(50)
        ]
        for rank in range(4)
        for reason in ("no_core", "stopped")
    }
    return {**only(scraped_steps(steps, 50, run), *METRICS), **waiting}


CROWDED = {
    "half-below": (7, 7, 1),
    "half-at": (8, 8, 1),
    "half-above": (9, 9, 0),
    "alone-below": (11, 4, 0),
    "alone-at": (12, 4, 1),
    "alone-above": (13, 4, 1),
}


def test_nobody_is_accused_while_waiting_for_cores_may_be_all_of_the_excess(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    test = RuleTest(rendered(*EXACT) / "stepscope.yml")
    for run, (mine, others, fires) in CROWDED.items():
        test.add(crowded(run, mine, others))
        test.status("Straggler", 240, fires, run=run)
        test.firing("Straggler", 240, fires, run=run)
        test.status("Straggler", 480, fires, run=run)
        test.status("Straggler", 720, 1, run=run)  # slow for the third time in a row: by itself
        test.firing("Straggler", 720, 1, run=run, rank="2")
    test.run(tmp_path)


def test_it_fires_above_each_threshold_and_not_at_it(rendered: Callable[..., Path], tmp_path: Path) -> None:
    test = RuleTest(rendered(*EXACT) / "stepscope.yml")
    errors = {"errors-below": 3 - BIT, "errors-at": 3.0, "errors-above": 3 + BIT}
    cases = {**CASES, **{run: (uncertain(many), int(many > 3)) for run, many in errors.items()}}
    for run, (steps, fires) in cases.items():
        test.add(only(scraped_steps(steps, 25, run), *METRICS))
        test.status("Straggler", 240, fires, run=run)
        test.firing("Straggler", 240, fires, run=run)
    test.run(tmp_path)


def test_ranks_on_other_nodes_are_peers(test: RuleTest) -> None:
    for rank, steps in enumerate(straggling(1.6)):
        test.add(only(scraped_steps([steps], 25, "run", f"node-{rank}"), *METRICS))
    excess = "run_instance_rank:stepscope_step_own:excess_seconds"
    test.equals(f'{excess}{{rank="2"}}', 360, 0.3)
    test.firing("Straggler", 360, 1)
    test.firing("Straggler", 360, 1, instance="node-2", rank="2")


def test_without_the_squares_of_an_earlier_version_nobody_is_accused(test: RuleTest) -> None:
    test.add(only(scraped_steps(straggling(1.6), 25), *METRICS[:2]))
    test.gives_nothing('stepscope:rule_status{rule="Straggler"}', 360)
    test.firing("Straggler", 360, 0)
