"""The simulated day: its mix, its series, how alerts are counted, and a small hour of it."""

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.prometheus.crosscheck.offline.prometheus import samples_of

from benchmarks.page import RESULTS, markdown, read_part, read_table
from tests.docs.test_metrics import collectors
from tests.support.prometheus import needs_prometheus
from trials.day import __main__ as command
from trials.day import faults, jobs
from trials.day.__main__ import simulate
from trials.day.activity import TICK, Activity
from trials.day.faults import FAULTS, Found, plant, planted, search
from trials.day.incidents import INCIDENTS
from trials.day.jobs import (
    DAY,
    HELD_BACK,
    HOUR,
    KINDS,
    MINUTE,
    MIX,
    ON_CORES,
    OTHERS,
    TUNING,
    Day,
    Job,
    make_day,
)
from trials.day.node import RETENTION, ScrapedNode, scraped
from trials.day.notifications import Alert, Notification
from trials.day.rules import Reads, that_alert
from trials.day.score import Result, episodes, rows
from trials.day.store import _encode, _samples
from trials.shared_cluster.judge import rule_groups
from trials.shared_cluster.plan import START


class Everything(Reads):
    """Reads every series, and the bounds that a rule could read."""

    def __init__(self) -> None:
        super().__init__([])

    def __contains__(self, name: object) -> bool:
        return True

    def bound(self, name: str, bound: str) -> bool:
        return bound in ("0.1", "0.7")


@cache
def small() -> Day:
    return make_day(1, seconds=HOUR, nodes=4)


@cache
def nodes() -> list[ScrapedNode]:
    return [scraped(small(), number, Everything()) for number in range(len(small().nodes))]


def test_a_day_has_the_jobs_users_and_gpus_that_the_page_says() -> None:
    for seed in (1, *HELD_BACK):
        day = make_day(seed)
        assert [node.devices for node in day.nodes] == ["gpus"] * 20 + [*OTHERS]
        assert day.gpu_days == 160
        assert 1570 <= sum(max(job.parts) < 20 for job in day.jobs) <= 1601
        assert len({job.user for job in day.jobs}) == 40
        assert {job.kind.name for job in day.jobs} == {kind.name for kind in (*KINDS, ON_CORES)}
    assert not set(HELD_BACK) & set(TUNING)


def test_no_gpu_has_two_jobs_at_once_and_a_seed_is_always_the_same_day() -> None:
    for day in (make_day(2), small()):
        uses = [(node, gpu, job) for job in day.jobs for node, own in job.parts.items() for gpu in own]
        for node, gpu in {(node, gpu) for node, gpu, _ in uses}:
            own = sorted((job.begin, job.end) for where, which, job in uses if (where, which) == (node, gpu))
            assert all(first[1] < second[0] for first, second in pairwise(own))
    assert make_day(2) == make_day(2)


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_changes_the_day_and_leaves_each_gpu_one_job_at_a_time(name: str) -> None:
    day = make_day(3, seconds=4 * HOUR)
    INCIDENTS[name].befall(day)
    assert day != make_day(3, seconds=4 * HOUR)
    uses = [(node, gpu, job) for job in day.jobs for node, own in job.parts.items() for gpu in own]
    for node, gpu in {(node, gpu) for node, gpu, _ in uses}:
        own = sorted((job.begin, job.end) for where, which, job in uses if (where, which) == (node, gpu))
        assert all(first[1] < second[0] for first, second in pairwise(own))


def test_a_suspended_job_is_shown_as_stopped_and_makes_no_step() -> None:
    day = make_day(1, seconds=HOUR, nodes=4)
    INCIDENTS["suspension"].befall(day)
    job = next(job for job in day.jobs if job.fault)
    place = next(iter(job.parts))
    own = [each for each in scraped(day, place, Everything()).series if each.labels.get("run") == job.run]
    states = {
        each.labels["state"]: each.values
        for each in own
        if each.labels["__name__"] == "stepscope_rank_process_state" and each.labels["rank"] == "0"
    }
    (age,) = (each.values for each in own if each.labels["__name__"] == "stepscope_run_last_step_age_seconds")
    stopped = ~np.isnan(states["stopped"])
    assert stopped.sum() * 15 == pytest.approx(8 * MINUTE, abs=30)
    assert np.isnan(states["running"][stopped]).all()
    assert (np.diff(age[stopped]) == 15).all()


def test_a_node_without_driver_shows_no_gpu_and_one_that_prometheus_does_not_know_nothing() -> None:
    day = make_day(1, seconds=HOUR, nodes=4)
    INCIDENTS["new drivers"].befall(day)
    place = next(place for place, node in enumerate(day.nodes) if node.without_driver[0] < HOUR)
    own = {frozenset(each.labels.items()): each.values for each in scraped(day, place, Everything()).series}
    (up,) = (
        values for labels, values in own.items() if labels >= {("__name__", "stepscope_gpu_up"), ("gpu", "0")}
    )
    (works,) = (values for labels, values in own.items() if ("collector", "gpu") in labels)
    assert (np.isnan(up) == (works == 0)).all()
    assert np.isnan(up).sum() * 15 == pytest.approx(5 * MINUTE, abs=15)
    INCIDENTS["renamed nodes"].befall(day)
    before, after = (
        scraped(day, number, Everything()).times / 1000 - START for number in (place, len(day.nodes) - 1)
    )
    assert before[-1] < HOUR / 2 < HOUR / 2 + MINUTE <= after[0]


def test_an_upgraded_exporter_has_another_version_after_its_restart() -> None:
    day = make_day(1, seconds=HOUR, nodes=4)
    INCIDENTS["upgrade"].befall(day)
    series = scraped(day, 0, Everything()).series
    builds = [each.values for each in series if each.labels["__name__"] == "stepscope_exporter_build_info"]
    assert (np.sum(~np.isnan(builds), axis=0) == 1).all()
    assert len(builds) == 2


def test_there_is_a_checkpoint_of_75_s_and_a_generation_of_110_s() -> None:
    lasts = Counter[str]()
    for job in make_day(1).jobs:
        if job.kind.name in ("pre-training", "steps of 90 s", "training with generation"):
            for pause in Activity(job).pauses:
                lasts[pause.component] = max(lasts[pause.component], int(pause.end - pause.begin))
    assert lasts["checkpoint"] >= 75
    assert lasts["host"] >= 110


def test_a_user_who_is_away_worked_until_then() -> None:
    """Otherwise the GPU would have been idle before, and its alert would be older than the fault."""
    for seed in (8, 13, 20):  # in these, the user would have been away for 20 minutes and more
        day = plant(make_day(seed))
        (job,) = (job for fault, job, _ in planted(day) if fault.name == "idle GPU")
        activity = Activity(job)
        begin = int(activity.faulty[0] / TICK)
        busy = np.flatnonzero(activity.loads(0) > 0)
        last = busy[busy < begin + int(15 * MINUTE / TICK)].max()
        assert begin <= last, seed
        assert not (busy[busy > last] < begin + int(30 * MINUTE / TICK)).any(), seed


def test_the_series_are_those_of_the_exporter_with_its_labels(tmp_path: Path) -> None:
    exporter = Exporter(collectors(tmp_path), node="node")
    try:
        families = [*exporter.families(), *SampleCounters(None, list).families]
    finally:
        exporter.close()
    known = {family.name: set(family.labels) for family in families}
    known["up"] = set()
    for node in nodes():
        for series in node.series:
            labels = set(series.labels) - {"__name__", "job", "instance"}
            name = series.labels["__name__"]
            for suffix in ("_bucket", "_count", "_sum"):
                if name not in known and name.endswith(suffix):
                    name = name.removesuffix(suffix)
                    labels -= {"le"} if suffix == "_bucket" else set()
            assert name in known
            assert labels <= known[name], name


def test_nodes_without_gpus_and_with_mig_devices_show_what_these_have() -> None:
    shown = [
        {(each.labels["__name__"], each.labels.get("gpu", "")) for each in node.series} for node in nodes()
    ]
    *_, cores, divided = shown
    assert not [name for name, gpu in cores if gpu or name.startswith("stepscope_gpu")]
    assert "stepscope_step_duration_seconds_count" in {name for name, _ in cores}
    assert {gpu for name, gpu in divided if name == "stepscope_gpu_memory_samples_count"} >= {"0:0", "2:1"}
    assert {gpu for name, gpu in divided if name == "stepscope_gpu_up"} == {"0", "1", "2", "3"}
    assert "stepscope_gpu_utilization_samples_count" not in {name for name, _ in divided}
    assert ("stepscope_gpu_utilization_samples_count", "0") in shown[0]


def test_no_counter_falls_except_those_that_begin_anew_with_the_exporter() -> None:
    for node in nodes():
        for series in node.series:
            name = series.labels["__name__"]
            if name.endswith(("_total", "_bucket", "_count")) and "sampler_ticks" not in name:
                values = series.values[~np.isnan(series.values)]
                assert (np.diff(values) >= -1e-6).all(), series.labels


def test_a_run_ends_with_its_retention_and_has_no_age_from_its_end_on() -> None:
    job = next(job for job in small().jobs if job.run and job.end < HOUR - RETENTION - MINUTE)
    (number,) = job.parts
    node = nodes()[number]
    own = {each.labels["__name__"]: each for each in node.series if each.labels.get("run") == job.run}
    age, ended = own["stepscope_run_age_seconds"], own["stepscope_run_end_time_seconds"]
    assert (np.isnan(age.values) != np.isnan(ended.values)).all()
    times, values = _samples(node, ended)
    assert np.isnan(values[-1])  # Prometheus is told that it ends
    assert not np.isnan(values[-2])
    assert 0 <= (times[-1] - times[0]) / 1000 - RETENTION <= small().interval


def test_samples_are_encoded_as_the_cross_check_encodes_them() -> None:
    times = np.array([1_700_000_160_123, 1_700_000_175_000])
    values = np.array([0.25, np.nan])
    expected = samples_of([(1_700_000_160_123, 0.25), (1_700_000_175_000, None)])
    assert _encode(times, values).tobytes() == expected


def test_records_that_no_alert_reads_are_not_evaluated() -> None:
    whole = rule_groups(15)
    kept = that_alert(whole)
    names = [rule.name for group in kept for rule in group.rules]
    alerts = [rule.name for group in whole for rule in group.rules if rule.is_alert]
    assert [name for name in names if not name.startswith(("run", "instance", "stepscope:"))] == alerts
    assert "stepscope:rule_info" not in names
    reads = Reads(kept)
    assert "stepscope_gpu_utilization_samples_bucket" in reads
    assert reads.bound("stepscope_gpu_utilization_samples_bucket", "0.7")
    assert not reads.bound("stepscope_gpu_utilization_samples_bucket", "0.72")


def alert(rule: str, begin: float, end: float, **labels: str) -> Alert:
    return Alert({"alertname": f"Stepscope{rule}", "rule": rule, "severity": "warning", **labels}, begin, end)


def test_alerts_of_a_run_within_an_hour_are_one_episode() -> None:
    first = alert("Straggler", 0, 100, run="a", rank="0")
    assert episodes([first, alert("Straggler", 500, 600, run="a", rank="1")]) == 1
    assert episodes([first, alert("Straggler", 500, 600, run="b", rank="0")]) == 2
    assert episodes([first, alert("Straggler", 100 + HOUR + 1, 9000, run="a", rank="0")]) == 2


def test_the_rows_count_per_rule_and_the_totals_per_audience() -> None:
    mine = alert("DataStarved", 0, 100, run="a", audience="owner")
    theirs = alert("GPULost", 0, 100, audience="platform", severity="critical")
    sent = [
        Notification(30, "slack", [mine], []),
        Notification(330, "slack", [], [mine]),
        Notification(40, "slack", [theirs], []),
    ]
    found = Result(make_day(1), [mine, theirs], sent)
    assert rows([found]) == [
        ("DataStarved", "warning", "owner", "1", "1", "2", "1"),
        ("GPULost", "critical", "platform", "1", "1", "1", "0"),
        ("**all, to slack**", "", "", "2", "2", "3", "1"),
    ]
    assert rows([found, found])[-1] == ("**all, to slack**", "", "", "4", "4", "6", "2")
    assert (found.sent("owner"), found.sent("platform")) == (100 * 2 / 160, 100 / 160)
    assert (found.critical, found.holds) == (1, False)
    assert found.row() == ("1", "15 s", "1,798", "2", "2", "3", "0.6", "1.2", "1")


def test_two_notifications_to_the_platform_per_100_gpu_days_hold_and_no_critical_one() -> None:
    sent = [Notification(30, "slack", [alert("GPULost", 0, 100)], [])] * 3
    assert Result(make_day(1), [], sent).holds
    assert not Result(make_day(1), [], [*sent, *sent[:1]]).holds
    critical = Notification(30, "slack", [alert("GPULost", 0, 100, severity="critical")], [])
    assert not Result(make_day(1), [], [critical]).holds


def test_each_kind_of_fault_is_planted_once_in_a_healthy_job_of_its_own() -> None:
    day = plant(make_day(1))
    assert [len(planted(day)), len({job.number for _, job, _ in planted(day)})] == [12, 12]
    assert {fault.name for fault, _, _ in planted(day)} == {fault.name for fault in FAULTS}
    for _, job, own in planted(day):
        assert job.begin + 20 * MINUTE < own.begin < own.end <= job.end


def a_slow_rank() -> tuple[Day, Job, dict[str, str], float]:
    day = plant(make_day(1))
    fault = next(each for each in planted(day) if each[0].name == "slow rank")
    (number,) = fault[1].parts
    return day, fault[1], {"run": fault[1].run, "instance": day.nodes[number].name}, fault[2].begin


def found(day: Day, alerts: list[Alert], sent: list[Notification]) -> Found:
    return next(each for each in search(Result(day, alerts, sent)) if each.name == "slow rank")


def test_a_fault_is_found_by_its_rule_with_its_place_and_the_cause_must_come_first() -> None:
    day, _, own, begin = a_slow_rank()
    right = alert("Straggler", begin + 120, begin + 600, rank="0", **own)
    symptom = alert("CommunicationBound", begin + 60, begin + 600, rank="1", **own)
    sent = [
        Notification(begin + 150, "slack", [right], []),
        Notification(begin + 180, "slack", [symptom], []),
    ]
    seen = found(day, [right, symptom], sent)
    assert (seen.rule, seen.delay, seen.told, seen.holds) == ("Straggler", 120, 150, True)
    seen = found(day, [right, symptom], [Notification(begin + 90, "slack", [symptom], []), *sent])
    assert (seen.rule, seen.symptom, seen.holds) == ("Straggler", "CommunicationBound", False)
    for wrong in ({"rank": "1"}, {"run": "other"}, {"instance": "other"}):
        other = Alert({**right.labels, **wrong}, right.begin, right.end)
        assert not found(day, [other], []).holds
    assert not found(day, [alert("Straggler", begin + DAY, begin + DAY + 60, rank="0", **own)], []).holds


@needs_prometheus
def test_a_small_healthy_hour_with_an_upgrade_of_all_exporters_notifies_nobody() -> None:
    day = small()
    for node in day.nodes:
        node.restarts = [*node.restarts, HOUR / 2]
    result = simulate(day)
    assert result.alerts  # the simulation does something
    assert result.notifications == [], rows([result])


def test_the_page_describes_every_kind_of_job_and_every_fault() -> None:
    page = RESULTS.read_text(encoding="utf-8")
    lines = [*markdown(MIX, jobs.described()), *markdown(faults.CATALOGUE, faults.described())]
    assert [line for line in lines if line not in page] == []


def test_the_command_writes_its_table_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    page.write_text(RESULTS.read_text(encoding="utf-8"))
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "simulate", lambda day: Result(day, [], []))
    assert command.main(["--held-back", "--markdown"]) == 0
    assert [row[:2] for row in read_table(page, "day")][:3] == [
        [str(seed), f"{interval} s"] for seed, interval in zip(HELD_BACK, (15, 30, 60), strict=True)
    ]
    assert "`python -m trials.day --held-back`" in "\n".join(read_part(page, "day"))
    assert command.main(["--faults", "--markdown"]) == 1  # none was found
    assert [row[2] for row in read_table(page, "planted")] == ["**missed**"] * 12
    before = [row[0] for row in read_table(page, "incidents") if row[0] != "lunch"]
    assert command.main(["--hours", "1", "--nodes", "4", "--incidents", "lunch", "--markdown"]) == 0
    assert {row[0] for row in read_table(page, "incidents")} == {*before, "lunch"}


def test_an_interrupt_ends_the_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "simulate", Mock(side_effect=KeyboardInterrupt))
    assert command.main([]) == 130
