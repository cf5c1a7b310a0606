"""The short form of the shared cluster with planted faults, its scoring, and the page that describes it."""

from dataclasses import replace

import pytest

from benchmarks.page import RESULTS
from tests.support.prometheus import needs_prometheus
from trials.shared_cluster.__main__ import HELD_BACK, described, simulate, table
from trials.shared_cluster.faults import FAULTS, MINUTE
from trials.shared_cluster.judge import WINDOW, FiringAlert, Score, judge
from trials.shared_cluster.plan import Plan, Planted, make_plan, make_short_plan


def hot(plan: Plan) -> Planted:
    return next(planted for planted in plan.planted if planted.rule == "ThermalThrottling")


def alert(plan: Plan, planted: Planted, after: float = 5 * MINUTE) -> FiringAlert:
    assert planted.run is not None
    own = {"run": plan.runs[planted.run].label, **planted.labels}
    return FiringAlert(planted.rule, own, planted.begin + after, planted.end + 2 * MINUTE)


def scored(plan: Plan, *alerts: FiringAlert) -> tuple[Score, list[FiringAlert]]:
    scores, false, _ = judge(plan, alerts)
    return scores["ThermalThrottling"], false


def test_a_fault_that_is_named_in_time_is_found_with_its_delay_and_clearing() -> None:
    plan = make_short_plan()
    score, false = scored(plan, alert(plan, hot(plan)))
    assert (score.planted, score.found, false) == (1, 1, [])
    assert score.delays == [pytest.approx(5 * MINUTE)]
    assert score.clearings == [pytest.approx(2 * MINUTE)]


@pytest.mark.parametrize(
    "wrong", [{"gpu": "7"}, {"instance": "gpu-9"}, {"cluster": "beta"}, {"run": "other"}]
)
def test_an_alert_with_a_wrong_label_is_false_and_the_fault_missed(wrong: dict[str, str]) -> None:
    plan = make_short_plan()
    named = alert(plan, hot(plan))
    score, false = scored(plan, replace(named, labels={**named.labels, **wrong}))
    assert (score.found, len(false)) == (0, 1)


def test_runs_on_mig_devices_have_no_fault_that_only_utilisation_shows() -> None:
    needs_load = {kind.rule for kind in FAULTS if kind.needs_load}
    for plan in map(make_plan, range(1, 21)):
        on_mig = {
            run.number
            for run in plan.runs
            if any(plan.nodes[part.node].divided is not None and max(part.gpus) >= 8 for part in run.parts)
        }
        assert len(on_mig) in (2, 3)  # two places, and a rerun
        assert not needs_load & {planted.rule for planted in plan.planted if planted.run in on_mig}


def test_an_alert_after_two_windows_comes_too_late() -> None:
    plan = make_short_plan()
    assert scored(plan, alert(plan, hot(plan), after=2 * WINDOW))[0].found == 1
    plan.planted = [replace(planted, end=planted.end + WINDOW) for planted in plan.planted]
    assert scored(plan, alert(plan, hot(plan), after=2 * WINDOW + 1))[0].found == 0


def test_a_near_miss_that_fires_is_false() -> None:
    plan = make_short_plan()
    plan.planted = [replace(hot(plan), strength="miss")]
    score, false = scored(plan, alert(plan, hot(plan)))
    assert (score.misses, score.silent, len(false)) == (1, 0, 1)


def test_a_consequence_explains_itself_on_the_same_run_only() -> None:
    plan = make_short_plan()
    starved = next(planted for planted in plan.planted if planted.rule == "DataStarved")
    low = replace(alert(plan, starved), rule="LowGPUUtilization")
    elsewhere = replace(low, labels={**low.labels, "run": "other"})
    assert judge(plan, [low, elsewhere])[1] == [elsewhere]


@needs_prometheus
@pytest.mark.trial
def test_the_short_form_finds_each_fault_and_accuses_nobody_else() -> None:
    scores = simulate(make_short_plan())
    assert {rule for rule, score in scores.items() if not score.holds} == set()
    assert sum(score.found for score in scores.values()) == 4


def test_a_third_of_the_faults_of_the_table_lie_near_their_threshold_and_all_kinds_are_tried() -> None:
    planted = [planted for seed in HELD_BACK for planted in make_plan(seed).planted]
    faults = [each for each in planted if each.strength != "miss"]
    assert sum(each.strength == "near" for each in faults) >= 0.3 * len(faults)
    assert {kind.rule for kind in FAULTS} <= {each.rule for each in planted}


def test_a_cluster_has_the_runs_users_and_names_that_the_page_says() -> None:
    plan = make_plan(1)
    assert len(plan.runs) == 20
    assert len({run.uid for run in plan.runs}) == 6
    assert len({run.name for run in plan.runs}) == 4
    assert len({node.cluster for node in plan.nodes}) == 2
    assert len({run.label for run in plan.runs}) == 20
    assert {make_plan(seed).scrape_interval for seed in HELD_BACK} == {5, 15, 30, 60}


def test_the_page_describes_every_fault() -> None:
    page = RESULTS.read_text(encoding="utf-8")
    assert [row for row in described() if row not in page] == []


def test_the_table_has_a_row_per_rule_and_their_sum() -> None:
    first, second = Score(2, 1, 1, 1, 1, 0, [60.0], [120.0]), Score(1, 1, 1, 0, 0, 3, [90.0], [-30.0])
    rows = table({"A": first, "B": second})
    assert rows[0] == ("A", "2", "1", "1", "1 of 1", "0", "1.0", "2.0")
    assert rows[2] == ("**all**", "3", "2", "2", "1 of 1", "3", "1.0 to 1.5", "-0.5 to 2.0")
