"""What a run and its findings cost."""

from stepscope.common.words import money
from stepscope.report.figures import cost, cost_of_finding, cost_of_run, saving

from tests.support import analysis as made


def test_the_published_case_saves_five_dollars() -> None:
    """Amazon's profiler case: 3 large nodes, then 2 small ones in the same time."""
    before, after = cost(3, 503, 14.688), cost(2, 502, 3.825)
    assert (money(before), money(after)) == ("$6.16", "$1.07")
    assert f"{saving(before, after):.1%}" == "82.6%"


def test_nothing_is_saved_of_nothing() -> None:
    assert saving(0.001, 0.0) == 0.0
    assert saving(2.0, 3.0) == -0.5


def test_a_run_costs_all_its_nodes_from_start_to_end() -> None:
    analysis = made.slow_loader(nodes=["a", "b"], start=0.0, end=1800.0)
    assert cost_of_run(analysis, 10.0) == 10.0
    assert cost_of_run(analysis, None) is None


def test_a_run_of_unknown_duration_has_no_cost() -> None:
    assert cost_of_run(made.slow_loader(start=None), 10.0) is None


def test_a_finding_costs_all_nodes_while_one_loses_time_and_never_more_than_the_run() -> None:
    analysis = made.slow_loader(nodes=["a", "b"], start=0.0, end=3600.0)
    half, all_day, nothing = 1800.0, 86_400.0, 0.0
    assert cost_of_finding(analysis, half, 3.0) == 3.0
    assert cost_of_finding(analysis, all_day, 3.0) == cost_of_run(analysis, 3.0) == 6.0
    assert cost_of_finding(analysis, nothing, 3.0) is None
    assert cost_of_finding(analysis, half, None) is None
