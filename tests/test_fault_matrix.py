"""The matrix of planted faults: its scoring, its catalogue, a small part of it, and its page."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.page import read_part
from tests.support.prometheus import needs_prometheus
from trials.fault_matrix import store
from trials.fault_matrix.__main__ import REPORTED, main, try_all
from trials.fault_matrix.alerts import GPU_BY_HAND
from trials.fault_matrix.case import KINDS, MORE_SEEDS, Case, cases
from trials.fault_matrix.faults import FAULTS, SEVERITIES
from trials.fault_matrix.healthy import HEALTHY
from trials.fault_matrix.page import (
    PAGE,
    faults_table,
    healthy_table,
    scores,
    stored,
    tables,
    wrong_table,
)
from trials.fault_matrix.play import Alert, Finding, Seen, play, read_report
from trials.fault_matrix.score import Result, Share, wilson
from trials.fault_matrix.training import WORKLOADS, Training, Truth

CASE = Case("slow rank: compute", 0.2, "data-parallel", 0)
SLOW = Finding(["Straggler"], "Rank 2 on a is slow; most of the excess is backward.", 110.0, printed=True)
HOT = Finding(["ThermalThrottling"], "Heat throttled GPU 1 of a.", 3.0, printed=True)
TRUTH = Truth(("Straggler",), "is backward", "rank 2", 100.0)
RIGHT = Result(CASE, TRUTH, Seen("found", [SLOW], [], [Alert("Straggler", "rank 2", 300.0)]))
HEALTHY_RUN = Result(Case("even steps", 0.0, "sharded", 0), Truth(()), Seen("healthy", [], []))


def said(*findings: Finding, result: Result = RIGHT) -> Result:
    return replace(result, seen=replace(result.seen, findings=list(findings)))


def test_a_first_finding_with_the_cause_and_the_rank_is_right_and_nothing_else_is() -> None:
    assert RIGHT.outcome == "right"
    assert said(HOT, SLOW).outcome == "not first"
    assert said(HOT).outcome == "wrong cause"
    assert (
        said(replace(SLOW, words="Rank 1 on a is slow; most of the excess is backward.")).outcome
        == "wrong place"
    )
    assert (
        said(replace(SLOW, words="A rank is slow; most of the excess is backward.")).outcome == "wrong place"
    )
    assert (
        said(replace(SLOW, words="Rank 2 on a is slow; most of the excess is forward.")).outcome
        == "wrong cause"
    )
    assert said(replace(SLOW, printed=False)).outcome == "not printed"


def test_an_alert_that_does_not_say_the_cause_is_none() -> None:
    assert RIGHT.alert
    assert replace(RIGHT, truth=replace(TRUTH, not_alerts=("Straggler",))).alert is None


def test_not_enough_data_on_a_planted_fault_is_missed() -> None:
    nothing = replace(said(), seen=Seen("not enough data", [], ["Straggler"]))
    assert nothing.outcome == "missed"
    assert nothing.place_is_right is None
    assert nothing.has_estimate_within is None


def test_a_fault_that_no_rule_can_name_counts_and_is_never_right() -> None:
    swapping = replace(HEALTHY_RUN, case=replace(CASE, kind="swapping"))
    assert swapping.is_fault
    assert (swapping.outcome, said(HOT, result=swapping).outcome) == ("missed", "wrong cause")


def test_any_finding_or_alert_in_a_healthy_run_is_a_false_accusation() -> None:
    assert (HEALTHY_RUN.outcome, HEALTHY_RUN.false_alert) == ("silent", False)
    assert said(HOT, result=HEALTHY_RUN).outcome == "accused"
    alerted = replace(HEALTHY_RUN, seen=Seen("healthy", [], [], [Alert("IdleGPU", "GPU 0", 60.0)]))
    assert alerted.false_alert
    by_hand = replace(HEALTHY_RUN, seen=Seen("healthy", [], [], [Alert(GPU_BY_HAND, "GPU 0", 60.0)]))
    assert by_hand.noticed_by_hand
    assert not by_hand.false_alert


def test_an_alert_of_another_rank_is_false() -> None:
    other = replace(RIGHT, seen=replace(RIGHT.seen, alerts=[Alert("Straggler", "rank 12", 300.0)]))
    assert (RIGHT.alert is not None, RIGHT.false_alert) == (True, False)
    assert (other.alert is not None, other.false_alert) == (False, True)


@pytest.mark.parametrize(("seconds", "within"), [(80.0, True), (79.0, False), (121.0, False), (None, False)])
def test_seconds_lost_may_be_wrong_by_a_fifth_and_must_be_there(seconds: float | None, within: bool) -> None:
    assert said(replace(SLOW, seconds_lost=seconds)).has_estimate_within is within


def test_a_finding_counts_as_printed_only_if_the_terminal_has_its_title_and_its_words() -> None:
    found = {
        "title": "A slow rank",
        "rule": "Straggler",
        "also": [],
        "finding": "Rank 2 is slow.",
        "seconds_lost": 1,
    }
    document = {"verdict": {"status": "found", "findings": [found]}, "rules": []}
    assert read_report(document, "  ▲ A slow rank: 1 s\n    why   Rank 2\n    is slow.").findings[0].printed
    assert not read_report(document, "  ▲ A slow rank: 1 s\n    why   Rank 1 is slow.").findings[0].printed
    found |= {"title": "Before the first step", "finding": "17 % of the run, 7 min. Its lines are not known."}
    for cost, printed in (("17 % of the run, 7 min", True), ("7 min", False)):
        text = f"▲ Before the first step: {cost}\n    why   Its lines are not known."
        assert read_report(document, text).findings[0].printed is printed


def test_the_confidence_interval_is_wilson_s() -> None:
    assert wilson(0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(0, 0) == (0.0, 1.0)
    assert str(Share(1, 1)) == "1 of 1 (100 %, 21 to 100 %)"


def test_the_matrix_has_24_faults_in_three_severities_and_as_many_healthy_runs() -> None:
    matrix = cases([REPORTED])
    faults = [case for case in matrix if case.severity]
    assert len(FAULTS) >= 24
    assert len(KINDS) == len(FAULTS) + len(HEALTHY)
    assert len(faults) == len(FAULTS) * len(SEVERITIES) <= len(matrix) - len(faults)
    assert len(set(matrix)) == len(matrix) == len({case.name for case in matrix})
    assert {case.workload for case in faults} == {workload.name for workload in WORKLOADS}
    assert {case.seed for case in faults} == {REPORTED}
    assert {case.seed for case in matrix} == {REPORTED + MORE_SEEDS * number for number in range(3)}
    assert max(case.seed for case in cases([0])) < 100  # those for tuning


def test_the_truth_is_known_before_the_run_and_grows_with_the_severity() -> None:
    for case in cases([REPORTED]):
        truth = case.training().truth()
        assert case.severity or not truth.rules
        if truth.seconds_lost is not None and case.severity > SEVERITIES[0]:
            milder = replace(case, severity=SEVERITIES[0]).training().truth().seconds_lost
            assert milder is not None
            assert 0 < milder < truth.seconds_lost


def test_results_are_the_same_after_they_were_stored(tmp_path: Path) -> None:
    store.write(tmp_path / "results.json", [RIGHT, HEALTHY_RUN])
    assert store.read(tmp_path / "results.json").results == [RIGHT, HEALTHY_RUN]


def test_the_page_has_the_tables_of_the_stored_results() -> None:
    for name, lines in tables(stored()).items():
        assert read_part(PAGE, name) == "\n".join(lines).strip("\n").split("\n"), (
            "python -m trials.fault_matrix --page"
        )


def test_wrong_results_stay_in_the_tables() -> None:
    results = [RIGHT, said(HOT), HEALTHY_RUN, said(HOT, result=HEALTHY_RUN)]
    assert "| slow rank: compute | 1 right, 1 wrong cause | 1 of 1 | 5, 5 |" in faults_table(results)
    assert "| slow rank: compute | wrong cause | `ThermalThrottling` | 1 |" in wrong_table(results)
    assert "| even steps | 2 | 1 `ThermalThrottling` | 0 | 0 |" in healthy_table(results)
    shares = {what: str(share).partition(" (")[0] for what, _, share in scores(results)}
    assert shares["cause right at 20 % and above"] == "1 of 2"
    assert shares["healthy runs accused by the report"] == "1 of 2"


def test_a_case_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nobody"])


@pytest.mark.parametrize("kind", ["rank killed", "XID error"])
def test_a_killed_rank_and_the_gpu_of_an_xid_error_are_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "length", 240.0)
    case = Case(kind, 1.0, "data-parallel", 0)
    seen, _ = play(case, "node", {"up"})
    assert Result(case, case.training().truth(), seen).outcome == "right"


def test_a_silent_exporter_is_down_while_its_run_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "length", 240.0)
    case = Case("silent exporter", 1.0, "single GPU", 0)
    seen, (up,) = play(case, "node", {"up"})
    values = [value for _, value in up[1]]
    assert values == [1] * 8 + [0] * 9  # every 15 s, from 0 to 240 s
    assert Result(case, case.training().truth(), seen).outcome == "missed"


@needs_prometheus
def test_a_slow_rank_is_named_by_report_and_alert_and_a_healthy_run_by_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Training, "length", 360.0)
    tried = [Case("slow rank: compute", 1.0, "data-parallel", 0), Case("even steps", 0.0, "single GPU", 0)]
    (results,) = try_all(tried, jobs=2)
    slow, healthy = results
    assert (slow.outcome, slow.has_estimate_within) == ("right", True)
    assert slow.alert is not None
    assert slow.alert.place == slow.truth.place
    assert (healthy.outcome, healthy.own_alerts) == ("silent", [])
