"""OverallFrameworkMetrics: shares of phases, components, operators and collectives."""

from typing import Any

import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.runs.model import ActivityTime, CollectiveTime, OperatorTime

from tests.support.few_rules import judged
from tests.support.source import node_steps, rank_facts, run_facts

PHASE_SECONDS = {"train": 60.0, "eval": 20.0, "other": 20.0, "initialization": 900.0, "finalization": 50.0}
COMPONENT_SECONDS = {"forward": 10.0, "backward": 30.0, "data_wait": 6.0, "optimizer": 2.0}


def result(**facts: Any) -> RuleResult:
    return judged("OverallFrameworkMetrics", node_steps([0.5] * 9), facts=run_facts(**facts))


def operator(name: str, seconds: float, device: str = "cpu", rank: int = 0, own: Any = None) -> OperatorTime:
    return OperatorTime("node-a", rank, device, name, 10, seconds, own)


def test_phases_are_shares_of_the_time_from_the_first_step_to_the_last() -> None:
    ranks = [rank_facts(rank, phase_seconds=PHASE_SECONDS) for rank in (0, 1)]
    found = result(ranks=ranks)
    assert found.details["phase"] == pytest.approx(
        {"Step:ModeKeys.TRAIN": 60, "Step:ModeKeys.EVAL": 20, "others": 20}
    )
    assert found.details["phase_seconds"]["initialization"] == 1800
    assert (found.status, found.triggered, found.datapoints) == ("healthy", 0, 9)
    assert "training steps took 60 %" in found.finding.lower()


def test_others_are_there_even_if_there_was_no_time_between_steps() -> None:
    """The notebook of Debugger looks them up."""
    found = result(ranks=[rank_facts(phase_seconds={"train": 60.0})])
    assert found.details["phase"] == {"Step:ModeKeys.TRAIN": 100, "others": 0}


def test_forward_and_backward_are_shares_of_both_and_other_components_of_the_rest() -> None:
    found = result(ranks=[rank_facts(phase_seconds=PHASE_SECONDS, component_seconds=COMPONENT_SECONDS)])
    assert found.details["forward_backward"] == {"Forward pass": 25, "Backward pass": 75}
    assert found.details["general"] == {"data_wait": 75, "optimizer": 25}
    assert "backward took most (62 %)" in found.finding


def test_where_one_pass_was_not_timed_the_other_is_one_component_of_many() -> None:
    found = result(ranks=[rank_facts(component_seconds={"forward": 10.0, "data_wait": 30.0})])
    assert "forward_backward" not in found.details
    assert found.details["general"] == {"forward": 25, "data_wait": 75}


def test_activities_of_debuggers_files_are_the_general_metrics() -> None:
    activities = [
        ActivityTime("node-a", 0, "DataLoaderIter", 5, 3.0),
        ActivityTime("node-a", 1, "DataLoaderIter", 5, 3.0),
        ActivityTime("node-a", 0, "NCCLManager", 5, 2.0),
        ActivityTime("node-a", 0, "Forward-SubModuleInternal", 5, 9.0),
    ]
    found = result(activities=activities)
    assert found.details["general"] == {"DataLoaderIter": 75, "NCCLManager": 25}
    assert found.details["phase"] == {"others": 100}


def test_operators_above_2_percent_are_renormalised_and_the_rest_left_out() -> None:
    operators = [
        operator("conv", 60.0),
        operator("conv", 6.0, rank=1),
        operator("add", 31.0),
        operator("exactly 2 %", 2.0),
        operator("small", 1.0),
        operator("kernel", 300.0, device="gpu0"),
        operator("kernel", 100.0, device="gpu1"),
    ]
    details = result(operators=operators).details
    assert details["CPU"] == pytest.approx({"conv": 100 * 66 / 97, "add": 100 * 31 / 97})
    assert details["CPU_total"] == {"conv": 66e6, "add": 31e6}  # microseconds, as Debugger
    assert details["GPU"] == {"kernel": 100}
    assert details["GPU_total"] == {"kernel": 400e6}
    assert details["ratio"] == {"cpu": 20, "gpu0": 60, "gpu1": 20}
    assert list(details["operator_seconds"]["cpu"]) == ["conv", "add", "exactly 2 %", "small"]


def test_an_operators_own_time_counts_where_it_is_known() -> None:
    operators = [operator("outer", 10.0, own=1.0), operator("inner", 9.0, own=9.0)]
    assert result(operators=operators).details["CPU"] == {"inner": 90, "outer": 10}


def test_where_no_operator_is_above_2_percent_none_is_shown_as_if_it_were() -> None:
    found = result(operators=[operator(f"operator {number}", 1.0) for number in range(50)])
    assert "CPU" not in found.details
    assert "CPU_total" not in found.details
    assert len(found.details["operator_seconds"]["cpu"]) == 20
    assert found.details["operator_total_seconds"] == {"cpu": 50.0}


def test_collectives_are_renormalised_too() -> None:
    collectives = [
        CollectiveTime("node-a", 0, "allreduce", 10, 66.0, 5.0),
        CollectiveTime("node-a", 1, "allgather", 10, 33.0, 2.0),
        CollectiveTime("node-a", 1, "barrier", 10, 1.0),
    ]
    details = result(collectives=collectives).details
    assert details["horovod"] == pytest.approx({"allreduce": 100 * 66 / 99, "allgather": 100 * 33 / 99})
    assert details["communication_seconds"] == {"allreduce": 66, "allgather": 33, "barrier": 1}
    assert details["communication_exposed_seconds"] == 7


def test_where_nothing_was_timed_it_says_so() -> None:
    found = result()
    assert (found.status, found.details) == ("not enough data", {})
