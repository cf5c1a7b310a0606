"""What is usual while a run starts or only evaluates is no finding of the live page."""

from dataclasses import replace

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import Evaluator
from stepscope.report.held import holds_now
from stepscope.rules.parts.starting import Beginning
from stepscope.runs.model import RankFacts

from tests.support.source import START, MemorySource, node_samples, rank_facts, run_facts

MINUTES = 120  # samples


def live(
    minutes: float, rank: RankFacts | None, rule: str, *, core: float = 1.0, gpu: float = 0.0
) -> RuleResult:
    """The rule's result after these minutes, in which one of eight cores and the GPU were so busy."""
    rows = int(minutes * MINUTES)
    cores = np.full((rows, 8), 0.1)
    cores[:, 0] = core
    facts = replace(run_facts(), ranks=() if rank is None else (rank,))
    evaluator = Evaluator(MemorySource(node_samples(cores, np.full((rows, 1), gpu)), facts=facts))
    evaluator.advance()
    return next(result for result in evaluator.analysis(live=True).rules if result.rule == rule)


@pytest.mark.parametrize(
    ("minutes", "first_step", "found"),
    [
        (5, None, False),  # loads, compiles
        (25, None, True),  # for too long
        (5, 4, False),  # the last minutes are mostly the start
        (5, 0, True),
        (14, 4, True),
    ],
)
def test_a_busy_core_is_no_bottleneck_while_a_run_starts(
    minutes: int, first_step: int | None, found: bool
) -> None:
    rank = rank_facts(first_step_start=None if first_step is None else START + 60 * first_step)
    result = live(minutes, rank, "CPUBottleneck")
    assert holds_now(result) == found
    assert (result.status == "found") == found
    assert ("no finding yet" in result.finding) != found


def test_a_run_that_reports_no_steps_has_no_start_that_explains_anything() -> None:
    assert holds_now(live(5, None, "CPUBottleneck"))


@pytest.mark.parametrize(("phase", "found"), [("eval", False), ("predict", False), ("train", True)])
def test_a_run_that_only_evaluates_has_no_low_use_of_gpus(phase: str, found: bool) -> None:
    rank = rank_facts(first_step_start=START, phase_seconds={phase: 1200.0, "other": 1.0})
    assert holds_now(live(20, rank, "LowGPUUtilization", core=0.1, gpu=0.3)) == found
    assert holds_now(live(20, rank, "BatchSize", core=0.1, gpu=0.3)) == found


@pytest.mark.parametrize(
    ("beginning", "mostly"),
    [
        (Beginning(100.0, None, frozenset()), True),
        (Beginning(1200.0, None, frozenset()), False),  # MaxInitializationTime finds that
        (Beginning(299.0, 100.0, frozenset({"train"})), True),
        (Beginning(300.0, 100.0, frozenset({"train"})), False),  # two thirds are steps
        (Beginning(1100.0, 500.0, frozenset({"train"})), True),
        (Beginning(1400.0, 500.0, frozenset({"train"})), False),  # the start is not in the window any more
    ],
)
def test_the_start_is_most_of_a_window_of_15_minutes(beginning: Beginning, mostly: bool) -> None:
    assert beginning.is_mostly_start(900.0) == mostly
