"""Alerts on Stepscope itself, and what dashboards read of all rules."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.prometheus.rules.conftest import ran
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

TARGET = 'job="stepscope",instance="node-a"'
GONE = float("nan")  # Prometheus's mark of the end of a series


@pytest.fixture
def test(meta: Path, tmp_path: Path) -> Iterator[RuleTest]:
    yield from ran(RuleTest(meta), tmp_path)


def node(
    name: str, up_scrapes: int, down_scrapes: int, again: int, ended: bool
) -> dict[str, list[float | None]]:
    """A node whose run trains, whose exporter goes down, and comes back without the run."""
    labels = f'job="stepscope",instance="{name}"'
    samples: list[float | None] = [30.0 * number for number in range(up_scrapes)]
    ends: list[float | None] = [100.0] * up_scrapes
    up: list[float | None] = [*[1.0] * up_scrapes, *[0.0] * down_scrapes, *[1.0] * again]
    gone: list[float | None] = [None] * (down_scrapes + again)
    series: dict[str, list[float | None]] = {
        f"up{{{labels}}}": up,
        f'stepscope_samples_total{{{labels},run="run"}}': samples + gone,
    }
    if ended:
        series[f'stepscope_run_end_time_seconds{{{labels},run="run"}}'] = ends + gone
    return series


def stale(series: dict[str, list[float | None]], up_scrapes: int) -> dict[str, list[float | None]]:
    """As Prometheus stores it: a target that is down leaves a stale marker."""
    return {
        name: values
        if name.startswith("up")
        else [*values[:up_scrapes], float("nan"), *values[up_scrapes + 1 :]]
        for name, values in series.items()
    }


def test_an_exporter_that_is_down_alerts_while_its_run_has_not_ended(test: RuleTest) -> None:
    test.add(stale(node("training", 40, 60, 8, ended=False), 40))  # down from 10 min to 25 min
    test.add(stale(node("ended", 40, 60, 8, ended=True), 40))
    test.firing("ExporterDown", 600 + 165, 0)
    test.firing("ExporterDown", 600 + 180, 1, instance="training", run="run", severity="warning")
    test.firing("ExporterDown", 600 + 180, 0, instance="ended")
    test.firing("ExporterDown", 1485, 1)  # longer than any look back
    test.firing("ExporterDown", 1500, 0)


def test_a_node_that_is_turned_off_as_soon_as_its_run_has_ended_loses_no_run(
    meta: Path, tmp_path: Path
) -> None:
    """The run of the drained node ends after 10 min, half a minute before the node; evaluated every 2 min."""
    test = RuleTest(meta, every=120)
    for name, ended in (("drained", True), ("broken", False)):
        series = stale(node(name, 43, 60, 8, ended), 43)
        ends = [*[None] * 41, 100.0, 100.0, float("nan"), *[None] * 67]
        test.add({key: ends if "end_time" in key else values for key, values in series.items()})
    for minute in (12, 14, 16, 20, 24):
        test.firing("ExporterDown", 60 * minute, int(minute > 14), severity="warning")
        test.firing("ExporterDown", 60 * minute, 0, severity="warning", instance="drained")
    test.run(tmp_path)


def test_a_node_that_leaves_service_discovery_alerts_only_while_its_run_waits_for_it(
    meta: Path, tmp_path: Path
) -> None:
    """Rank 1 is on a node that is no target from 10:45 on; its run has stalled from 13 to 40 min."""
    test = RuleTest(meta, every=120)
    for case in ("broken", "drained", "ended", "moved", "suspended"):
        severity = "warning" if case == "suspended" else "critical"
        alert = f'rule="CollectiveHang",standstill="cause",alertstate="firing",severity="{severity}"'
        stalled = [None] * 52 + [1.0] * (0 if case == "drained" else 108) + [GONE]
        test.add({f'ALERTS{{cluster="{case}",run="run",{alert}}}': stalled})
        for name, rank, scrapes in (
            ("stays", 0, slice(0, 180)),
            ("leaves", 1, slice(0, 43)),
            ("new", 1, slice(44, 180 if case == "moved" else 44)),
        ):
            labels = f'job="stepscope",cluster="{case}",instance="{name}"'
            series = {
                f"up{{{labels}}}": 1.0,
                f'stepscope_samples_total{{{labels},run="run"}}': 30.0,
                f'stepscope_run_world_size{{{labels},run="run"}}': 2.0,
                f'stepscope_rank_process_state{{{labels},run="run",rank="{rank}",state="running"}}': 1.0,
            }
            for key, value in series.items():
                test.add({key: [*[None] * scrapes.start, *[value] * (scrapes.stop - scrapes.start), GONE]})
            if case == "ended" and name == "leaves":
                ended = f'stepscope_run_end_time_seconds{{{labels},run="run"}}'
                test.add({ended: [None] * 41 + [100.0] * 2 + [GONE]})
    for minute, expected in ((16, 0), (18, 1), (38, 1), (42, 0)):
        test.firing("ExporterDown", 60 * minute, expected)
        test.firing(
            "ExporterDown", 60 * minute, expected, cluster="broken", instance="leaves", severity="warning"
        )
    test.run(tmp_path)


def test_the_owner_of_a_run_hears_of_its_node_that_is_off_and_not_of_an_exporter_that_is(
    meta: Path, tmp_path: Path
) -> None:
    """After 10 min, nodes are no targets any more, or do not answer; the run of one had ended."""
    test = RuleTest(meta)
    test.add({'stepscope_exporter_build_info{job="stepscope",instance="other"}': [1.0] * 160})
    for name, ours, other in (
        ("removed", None, None),
        ("off", 0.0, 0.0),
        ("alone", 0.0, 1.0),
        ("unknown", 0.0, None),
        ("ended", None, None),
        ("moved", None, None),
        ("pod", None, None),  # without an exporter
    ):
        labels = f'job="stepscope",instance="{name}"'
        if name != "pod":
            test.add({f"stepscope_exporter_build_info{{{labels}}}": [*[1.0] * 40, GONE]})
        run = f'{labels},run="{name}",user="ann"'
        test.add({f"up{{{labels}}}": [*[1.0] * 40, GONE if ours is None else ours, *[ours] * 119]})
        test.add({f'up{{job="node",instance="{name}:9100"}}': [1.0] * 40 + [other] * 120})
        test.add({f"stepscope_run_info{{{run}}}": [*[1.0] * 40, GONE]})
        if name == "ended":
            test.add(
                {f'stepscope_run_end_time_seconds{{{labels},run="{name}"}}': [*[None] * 30, *[1.0] * 10]}
            )
        if name == "moved":
            test.add(
                {f"stepscope_run_info{{{run.replace('moved', 'new', 1)}}}": [*[None] * 41, *[1.0] * 119]}
            )
    for minute, fires in ((19, 0), (21, 2), (33, 2), (36, 0)):
        test.firing("RunFailed", 60 * minute, fires)
        for name in ("removed", "off") if fires else ():
            told = {"fault": "node", "audience": "owner", "severity": "warning", "user": "ann"}
            test.firing("RunFailed", 60 * minute, 1, instance=name, run=name, **told)
    test.run(tmp_path)


def test_a_collector_that_fails_for_5_minutes_of_a_run_alerts(test: RuleTest) -> None:
    test.add({f'stepscope_samples_total{{{TARGET},run="run"}}': [float(n) for n in range(60)]})
    test.add({f'stepscope_collector_success{{{TARGET},collector="gpu"}}': [1.0] * 10 + [0.0] * 50})
    test.add({f'stepscope_collector_success{{{TARGET},collector="cpu"}}': [1.0] * 60})
    idle = TARGET.replace("node-a", "idle")
    test.add({f'stepscope_collector_success{{{idle},collector="gpu"}}': [0.0] * 60})
    test.firing("CollectorFailing", 150 + 285, 0)
    test.firing("CollectorFailing", 150 + 300, 1)
    test.firing("CollectorFailing", 150 + 300, 1, instance="node-a", collector="gpu")


def test_missed_samples_alert_above_a_twentieth(test: RuleTest) -> None:
    for name, missed, fires in (("some", 1.0, 0), ("many", 3.0, 1), ("none", 0.0, 0)):  # of 30 a scrape
        labels = f'job="stepscope",instance="{name}"'
        test.add({f"stepscope_sampler_ticks_total{{{labels}}}": [(30 - missed) * n for n in range(40)]})
        test.add({f"stepscope_sampler_ticks_missed_total{{{labels}}}": [missed * n for n in range(40)]})
        test.firing("SamplesMissed", 585, fires, instance=name)


def test_missed_samples_alert_above_the_set_share(rendered: Callable[..., Path], tmp_path: Path) -> None:
    test = RuleTest(rendered("SamplesMissed.threshold=25") / "stepscope-meta.yml")
    for name, missed in (("below", 31), ("at", 32), ("above", 33)):
        labels = f'{{job="stepscope",instance="{name}"}}'
        for counter, rate in (("missed_", missed), ("", 128 - missed)):
            series = f"stepscope_sampler_ticks_{counter}total{labels}"
            test.add({series: [float(rate * number) for number in range(60)]})
    test.firing("SamplesMissed", 600, 1)
    test.firing("SamplesMissed", 600, 1, instance="above")
    test.run(tmp_path)


def test_a_rule_that_fails_alerts_and_one_of_others_does_not(test: RuleTest) -> None:
    name = 'prometheus_rule_evaluation_failures_total{instance="localhost:9090",rule_group="/rules/x.yml;%s"}'
    test.add(
        {name % "stepscope-StepOutlier": [0.0] * 20 + [1.0] * 20, name % "others": [0.0] * 20 + [9.0] * 20}
    )
    test.firing("RuleEvaluationFailing", 285, 0)
    test.firing("RuleEvaluationFailing", 300, 1)


def test_parameters_and_words_of_every_rule_are_there_without_any_run(rules: Path, tmp_path: Path) -> None:
    test = RuleTest(rules)
    test.add({"up": [1.0] * 5})
    test.equals('stepscope:rule_parameter{rule="StepOutlier", parameter="stddev"}', 60, 3)
    test.equals('stepscope:rule_info{rule="CPUBottleneck", severity="warning"}', 60, 1)
    test.equals("count(count by (rule) (stepscope:rule_parameter)) - count(stepscope:rule_info)", 60, 0)
    test.run(tmp_path)


def test_many_runs_that_stall_at_once_are_one_alert_for_the_platform(test: RuleTest) -> None:
    for cluster, training, stalled, severity in (
        ("storage-is-down", 19, 5, "critical"),
        ("few", 8, 4, "critical"),
        ("of-many", 40, 10, "critical"),
        ("suspended", 20, 6, "warning"),
    ):
        for run, node in product(range(training + 10), "ab"):
            labels = f'job="stepscope",instance="{node}",cluster="{cluster}",run="{run}"'
            test.add({f"stepscope_samples_total{{{labels}}}": [float(scrape) for scrape in range(60)]})
            if run >= training:
                test.add({f"stepscope_run_end_time_seconds{{{labels}}}": [1.0] * 60})
            elif run < stalled:
                alert = f'rule="TrainingStalled",alertstate="firing",severity="{severity}"'
                test.add({f"ALERTS{{{labels},{alert}}}": [None] * 20 + [1.0] * 20})  # for 5 minutes
        for number in range(10):  # do not count
            labels = f'job="stepscope",instance="c",cluster="{cluster}",run="unnamed-20261120T13270{number}"'
            test.add({f"stepscope_samples_total{{{labels}}}": [float(scrape) for scrape in range(60)]})
    test.firing("RunsStalled", 285, 0)
    test.firing("RunsStalled", 300, 1, cluster="storage-is-down", severity="critical", audience="platform")
    test.firing("RunsStalled", 600 + 19 * 60, 1)  # while what they have caused is still seen
    test.firing("RunsStalled", 600 + 21 * 60, 0)
