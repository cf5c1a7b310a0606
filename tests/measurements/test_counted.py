"""Throughput and MFU from what ranks count."""

from typing import Any

import pytest
from stepscope.measurements.counted import Counted, counted, flops_utilisation

from tests.support.source import START, rank_facts

STEPS: dict[str, Any] = {"first_step_start": START + 5, "last_step_end": START + 15}


def test_counts_of_all_ranks_and_of_all_their_processes_are_added() -> None:
    ranks = [
        rank_facts(0, **STEPS, counts={"tokens": 100.0}),
        rank_facts(0, first_step_start=START + 20, last_step_end=START + 25, counts={"tokens": 50.0}),
        rank_facts(1, **STEPS, counts={"tokens": 150.0, "samples": 2.0}),
    ]
    assert counted(ranks) == [Counted("tokens", 300, 15.0), Counted("samples", 2, 0.1)]


def test_without_a_step_the_pace_is_not_known() -> None:
    assert counted([rank_facts(counts={"tokens": 100.0})]) == [Counted("tokens", 100, None)]


def test_mfu_is_operations_of_all_ranks_by_what_their_devices_can_do() -> None:
    ranks = [
        rank_facts(rank, **STEPS, counts={"flops": 4e15}, gauges={"peak_flops": 1e15}) for rank in (0, 1)
    ]
    assert flops_utilisation(ranks) == pytest.approx(0.4)


@pytest.mark.parametrize("gauges", [{}, {"peak_flops": 0.0}, {"peak_flops": float("nan")}])
def test_mfu_is_unknown_if_one_rank_does_not_say_what_its_device_can_do(gauges: dict[str, float]) -> None:
    ranks = [
        rank_facts(0, **STEPS, counts={"flops": 4e15}, gauges={"peak_flops": 1e15}),
        rank_facts(1, **STEPS, counts={"flops": 4e15}, gauges=gauges),
    ]
    assert flops_utilisation(ranks) is None
    assert flops_utilisation(ranks[:1]) is not None
