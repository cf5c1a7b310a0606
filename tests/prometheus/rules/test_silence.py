"""Alerts on what is not measured, and on runs that failed: just before, and once they must fire."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.prometheus.rules.files import META, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

from tests.prometheus.rules.conftest import ran
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

MINUTE, HOUR = 60, 240  # seconds; scrapes
SCRAPE = 15  # seconds, also between evaluations: an alert is silent that much before its time
GONE = float("nan")  # Prometheus's mark of the end of a series


@pytest.fixture
def test(meta: Path, tmp_path: Path) -> Iterator[RuleTest]:
    yield from ran(RuleTest(meta), tmp_path)


def target(node: str, job: str = "stepscope") -> str:
    return f'job="{job}",instance="{node}"'


def exporter(node: str, up: Values | None = None) -> dict[str, Values]:
    """An exporter without a run; where it is down, only `up` remains."""
    up = [1.0] * HOUR if up is None else up
    build: list[float | None] = [1.0 if value else None for value in up]
    if 0.0 in up and up[0]:
        build[list(up).index(0.0)] = GONE
    return {
        f"up{{{target(node)}}}": up,
        f'stepscope_exporter_build_info{{{target(node)},version="1"}}': build,
    }


def test_an_idle_exporter_that_is_down_alerts_after_15_minutes_until_it_is_up(test: RuleTest) -> None:
    test.add(exporter("idle", [1.0] * 40 + [0.0] * 100 + [1.0] * 100))
    test.add(exporter("well") | {f"up{{{target('other', 'node')}}}": [0.0] * HOUR})
    test.firing("ExporterDown", 25 * MINUTE - SCRAPE, 0)
    test.firing("ExporterDown", 25 * MINUTE, 1, instance="idle", severity="info")
    test.firing("ExporterDown", 34 * MINUTE, 1)  # longer than any look back
    test.firing("ExporterDown", 36 * MINUTE, 0)


def test_an_hour_without_scrapes_in_which_exporters_were_upgraded_alerts_nobody(test: RuleTest) -> None:
    there, back = 80, 320  # scrapes, before an hour without any
    away: Values = [None] * (back - there)

    def kept(values: list[float]) -> Values:
        return [*values[:there], *away, *values[back:]]

    count = [float(number) for number in range(back + 80)]
    always, restarted = kept([1.0] * len(count)), [*count[:there], *away, *count[:80]]
    for node in ("node-a", "node-b"):
        of_node = target(node)
        test.add(
            {
                f"up{{{of_node}}}": always,
                f'stepscope_collector_success{{{of_node},collector="gpu"}}': always,
                f'stepscope_gpu_up{{{of_node},gpu="0"}}': always,
                f'stepscope_exporter_build_info{{{of_node},version="1"}}': [
                    *[1.0] * there,
                    *away,
                    *[None] * 80,
                ],
                f'stepscope_exporter_build_info{{{of_node},version="2"}}': [*[None] * back, *[1.0] * 80],
                f"process_start_time_seconds{{{of_node}}}": [*[1e9] * there, *away, *[1e9 + 3600] * 80],
                f"stepscope_sampler_ticks_total{{{of_node}}}": restarted,
                f"stepscope_sampler_ticks_missed_total{{{of_node}}}": kept([0.0] * len(count)),
                f'stepscope_samples_total{{{of_node},run="run"}}': kept(count),
                f'stepscope_run_start_time_seconds{{{of_node},run="run"}}': kept([0.0] * len(count)),
            }
        )
    for scrape in (there - 1, back, back + 8, back + 20, back + 40, back + 79):
        test.gives_nothing('ALERTS{severity!="none"}', scrape * SCRAPE)
    test.firing("Watchdog", (back + 8) * SCRAPE, 1)


def test_a_node_with_gpus_that_others_know_has_an_exporter_or_is_missing_one(test: RuleTest) -> None:
    on: Values = [1.0] * HOUR
    pod = 'job="kube-state-metrics",namespace="ml",pod="p",container="c"'
    test.add(exporter("gpu-1") | exporter("10.0.0.1:9870"))
    for node in ("gpu-1.example", "gpu-2.example"):
        test.add(
            {f'DCGM_FI_DEV_GPU_UTIL{{job="dcgm",instance="10.0.0.9:9400",gpu="0",Hostname="{node}"}}': on}
        )
    test.add(
        {'DCGM_FI_DEV_FB_USED_BYTES{job="dcgm",gpu="0",GPU_I_ID="1",hostname="gpu-6"}': on}
    )  # of a MIG device
    for node, number in (("gpu-1", 8.0), ("10.0.0.1", 8.0), ("gpu-3", 8.0), ("cpu-1", 0.0)):
        requests = f'kube_pod_container_resource_requests{{{pod},node="{node}",resource="nvidia_com_gpu"}}'
        test.add({requests: [number] * HOUR})
    for node, vendor in (("gpu-4", "0x10de"), ("cpu-2", "0x8086")):
        known = target(f"{node}.example:9100", "node")
        test.add({f'node_uname_info{{{known},nodename="{node}"}}': on})
        test.add({f'node_pci_device_info{{{known},bus="01",vendor_id="{vendor}"}}': on})
    test.add({f"up{{{target('gpu-5')}}}": [0.0] * HOUR})  # scraped, but never up
    test.firing("ExporterMissing", 15 * MINUTE - SCRAPE, 0)
    test.firing("ExporterMissing", 15 * MINUTE, 5, severity="info")
    for node in ("gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6"):
        test.firing("ExporterMissing", 15 * MINUTE, 1, instance=node)


def test_a_cluster_without_stepscope_misses_no_exporter(test: RuleTest) -> None:
    dcgm = 'DCGM_FI_DEV_GPU_UTIL{cluster="%s",job="dcgm",gpu="0",Hostname="gpu-1"}'
    test.add({dcgm % "serving": [1.0] * HOUR, dcgm % "training": [1.0] * HOUR})
    known = 'DCGM_FI_DEV_GPU_UTIL{cluster="training",job="dcgm",gpu="0",hostname="gpu-9.example"}'
    pod = 'DCGM_FI_DEV_GPU_UTIL{cluster="training",job="dcgm-k8s",gpu="0",Hostname="dcgm-exporter-cmhft"}'
    test.add({known: [1.0] * HOUR, pod: [1.0] * HOUR})  # names of pods are never those of nodes
    build = 'stepscope_exporter_build_info{cluster="training",job="stepscope",instance="gpu-9",version="1"}'
    test.add({build: [1.0] * HOUR})
    test.firing("ExporterMissing", 20 * MINUTE, 1)
    test.firing("ExporterMissing", 20 * MINUTE, 1, cluster="training", instance="gpu-1")


def test_a_gpu_that_does_not_answer_or_disappears_is_lost(test: RuleTest) -> None:
    up = 'stepscope_gpu_up{%s,gpu="%s"}'
    for node in ("silent", "gone", "young", "down"):
        alive = 80 if node == "down" else HOUR
        build = f'stepscope_exporter_build_info{{{target(node)},version="1"}}'
        test.add({build: [1.0] * alive + [GONE] * (alive < HOUR)})
        test.add({f'stepscope_collector_success{{{target(node)},collector="gpu"}}': [1.0] * HOUR})
        test.add({up % (target(node), 0): [1.0] * HOUR})
    test.add({up % (target("silent"), 1): [1.0] * 80 + [0.0] * 160})
    test.add({up % (target("gone"), 1): [1.0] * 80 + [GONE] + [None] * 159})
    test.add({up % (target("young"), 1): [None] * 40 + [1.0] * 40 + [GONE] + [None] * 159})
    test.add({up % (target("down"), 0): [1.0] * 80 + [GONE] + [None] * 159})
    collector = f'stepscope_collector_success{{{target("down")},collector="gpu"}}'
    test.add({collector: [1.0] * 80 + [GONE] + [None] * 159})
    test.firing("GPULost", 20 * MINUTE - SCRAPE, 0)
    test.firing("GPULost", 20 * MINUTE, 1, instance="gone", gpu="1", trouble="gone")
    test.firing("GPULost", 22 * MINUTE - SCRAPE, 0, instance="silent")
    test.firing("GPULost", 22 * MINUTE, 1, instance="silent", gpu="1", trouble="silent")
    test.firing("GPULost", 22 * MINUTE, 0, instance="down")
    test.firing("GPULost", 25 * MINUTE - SCRAPE, 0, instance="young")  # it was not there 15 minutes ago
    test.firing("GPULost", 25 * MINUTE, 1, instance="young", gpu="1", trouble="gone")
    test.firing("GPULost", 35 * MINUTE - SCRAPE, 1, instance="gone")
    test.firing("GPULost", 35 * MINUTE, 0, instance="gone")  # it is not expected any more


def test_what_a_limit_leaves_out_for_5_minutes_alerts(test: RuleTest) -> None:
    left = 'stepscope_exporter_left_out{%s,limit="series",run="run",collector=""}'
    test.add({left % target("full"): [0.0] * 40 + [7.0] * 60, left % target("well"): [0.0] * 100})
    test.firing("LimitReached", 15 * MINUTE - SCRAPE, 0)
    test.firing("LimitReached", 15 * MINUTE, 1, instance="full", limit="series")


@pytest.mark.parametrize(
    ("expected", "scraped", "fires"),
    [
        *((15, 15, 0), (15, 21, 0), (15, 24, 1), (15, 11, 0), (15, 9, 1)),
        *((20, 30, 0), (20, 32, 1), (20, 14, 0), (20, 13, 1)),  # 1.5 times as seldom, or as often
        *((60, 60, 0), (60, 84, 0), (60, 110, 1), (60, 45, 0), (60, 35, 1)),
    ],
)
def test_a_target_that_is_scraped_at_another_interval_alerts_after_10_minutes(
    expected: int, scraped: int, fires: int, tmp_path: Path
) -> None:
    rules = tmp_path / META
    rules.write_text(render(Options(scraping=Scraping(expected)))[META])
    on: Values = [1.0] * (2400 // scraped)
    test = RuleTest(rules, interval=scraped)
    test.add({f"up{{{target('node')}}}": on, f"up{{{target('other', 'node')}}}": on})
    test.add({f'stepscope_exporter_build_info{{{target("node")},version="1"}}': on})
    known = scraped * math.ceil(10 * MINUTE / scraped)  # the first evaluation with ten minutes of scrapes
    test.firing("ScrapeIntervalDiffers", known - scraped, 0)
    test.firing("ScrapeIntervalDiffers", known, fires)
    test.firing("ScrapeIntervalDiffers", 36 * MINUTE, fires, **({"instance": "node"} if fires else {}))
    test.run(tmp_path)


def test_two_exporters_behind_one_target_are_told_from_one_that_restarts(test: RuleTest) -> None:
    turns: Values = [100.0 if scrape % 8 < 4 else 200.0 for scrape in range(100)]
    restarts: Values = [100.0 + scrape // 4 for scrape in range(100)]
    for node, starts in (("turns", turns), ("restarts", restarts), ("steady", [100.0] * 100)):
        test.add(exporter(node) | {f"process_start_time_seconds{{{target(node)}}}": starts})
    test.firing("TargetShared", 4 * MINUTE - SCRAPE, 0)  # one went back once
    test.firing("TargetShared", 4 * MINUTE, 1, instance="turns", trouble="several exporters")
    test.firing("TargetShared", 10 * MINUTE, 0, instance="restarts")


def test_two_targets_of_one_name_are_told_after_10_minutes(test: RuleTest) -> None:
    for job in ("a", "b"):
        test.add({f'stepscope_exporter_build_info{{{target("twice", job)},version="1"}}': [1.0] * 60})
    test.add(exporter("once"))
    test.firing("TargetShared", 10 * MINUTE - SCRAPE, 0)
    test.firing("TargetShared", 10 * MINUTE, 1, instance="twice", severity="info", trouble="several targets")


def test_a_run_that_failed_is_told_for_an_hour_and_one_that_was_stopped_is_not(test: RuleTest) -> None:
    failed = ("exit status 1", "signal SIGKILL", "signal SIGSEGV", "out of memory")
    for reason in (*failed, "finished", "signal SIGTERM", "signal SIGINT", "ended without saying so"):
        labels = f'{target("node")},run="{reason}",reason="{reason}"'
        seen: Values = [*[None] * 20, 1.0, GONE, *[None] * 278]  # scraped once
        test.add({f"stepscope_run_ended_info{{{labels}}}": seen})
    test.firing("RunFailed", 5 * MINUTE - SCRAPE, 0)
    test.firing("RunFailed", 5 * MINUTE, len(failed))
    test.firing("RunFailed", 5 * MINUTE, len(failed), severity="info", audience="owner")
    for reason in failed:  # for an hour after the last five minutes in which it was scraped
        test.firing("RunFailed", 70 * MINUTE - 2 * SCRAPE, 1, run=reason)
    test.firing("RunFailed", 70 * MINUTE + SCRAPE, 0)


def test_the_alert_on_a_run_that_failed_says_by_which_exception(test: RuleTest) -> None:
    for run in ("a", "b"):
        labels = f'{target("node")},run="{run}"'
        test.add({f'stepscope_run_ended_info{{{labels},reason="exit status 1"}}': [1.0] * 60})
    raised = f'{target("node")},run="a",rank="0",type="KeyError",place="crash.py:18"'
    test.add({f"stepscope_run_exception_info{{{raised}}}": [1.0] * 60})
    test.firing("RunFailed", 5 * MINUTE, 2)
    test.firing("RunFailed", 5 * MINUTE, 1, run="a", type="KeyError", place="crash.py:18")


def test_a_run_that_fails_again_within_minutes_has_the_newer_exception(test: RuleTest) -> None:
    test.add({f'stepscope_run_ended_info{{{target("node")},run="run",reason="exit status 1"}}': [1.0] * 60})
    for rank, kind, seen in (
        (0, "KeyError", [*[1.0] * 10, GONE, *[None] * 49]),
        (1, "ValueError", [*[None] * 14, *[1.0] * 46]),
    ):
        raised = f'{target("node")},run="run",rank="{rank}",type="{kind}",place="crash.py:18"'
        test.add({f"stepscope_run_exception_info{{{raised}}}": seen})
    test.firing("RunFailed", 2 * MINUTE, 1, type="KeyError")
    test.firing("RunFailed", 5 * MINUTE, 1, type="ValueError")


def test_a_lean_exporter_under_the_default_rules_alerts_after_10_minutes(test: RuleTest) -> None:
    for node, profile in (("lean", "lean"), ("other", "default")):
        series = f'stepscope_exporter_build_info{{{target(node)},version="1",profile="{profile}"}}'
        test.add({f"up{{{target(node)}}}": [1.0] * HOUR, series: [1.0] * HOUR})
    test.firing("ProfileDiffers", 10 * MINUTE - SCRAPE, 0)
    test.firing("ProfileDiffers", 12 * MINUTE, 1, instance="lean", severity="info")


def test_a_run_that_its_node_failed_is_a_warning_for_the_platform_too(test: RuleTest) -> None:
    for node in ("own", "lost", "memory", "limit"):
        reason = "exit status 1" if node in ("own", "lost") else "out of memory"
        labels = f'{target(node)},run="run"'
        test.add({f'stepscope_run_ended_info{{{labels},reason="{reason}"}}': [1.0] * 60})
        test.add({f"stepscope_memory_total_bytes{{{target(node)}}}": [8e9] * 60})
        capacity = 4e9 if node == "limit" else 8e9
        test.add({f"stepscope_run_memory_capacity_bytes{{{labels}}}": [capacity] * 60})
        test.add({f'stepscope_gpu_up{{{target(node)},gpu="3"}}': [float(node != "lost")] * 60})
        test.add({f'stepscope_gpu_utilization_samples_count{{{labels},gpu="3"}}': [1.0] * 60})
    test.firing("RunFailed", 5 * MINUTE, 4, audience="owner", severity="info")
    test.firing("RunFailed", 5 * MINUTE, 2, audience="platform", severity="warning")
    test.firing("RunFailed", 5 * MINUTE, 1, audience="platform", instance="lost", fault="GPU")
    test.firing("RunFailed", 5 * MINUTE, 1, audience="platform", instance="memory", fault="memory")


def test_a_run_that_failed_blames_errors_of_its_own_gpus_only(test: RuleTest) -> None:
    """The run ends after 15 min, 15 s after the error. The counter of an XID begins with its first error."""
    first, again, old = [*[None] * 59, *[1.0] * 41], [*[1.0] * 59, *[2.0] * 41], [1.0] * 100
    for node, gpu, xid, errors in (
        ("first", "3", "79", first),
        ("again", "3", "79", again),
        ("old", "3", "79", old),
        ("not-scraped-before", "3", "79", [*[None] * 50, *old[50:]]),
        ("program", "3", "31", first),
        ("mig", "3:1", "79", first),
        ("other-run", "4", "79", first),
        ("no-gpu", "", "79", first),
    ):
        labels = f'{target(node)},run="run"'
        scraped = errors if node == "not-scraped-before" else old
        test.add({f'stepscope_exporter_build_info{{{target(node)},version="1"}}': scraped})
        test.add({f'stepscope_gpu_xid_errors_total{{{target(node)},gpu="3",xid="{xid}"}}': errors})
        test.add(
            {f'stepscope_run_ended_info{{{labels},reason="exit status 1"}}': [*[None] * 60, *[1.0] * 40]}
        )
        if gpu:
            used: Values = [*map(float, range(60)), GONE, *[None] * 39]
            test.add({f'stepscope_gpu_utilization_samples_count{{{labels},gpu="{gpu}"}}': used})
    told = {"audience": "platform", "fault": "GPU"}
    test.firing("RunFailed", 20 * MINUTE, 3, **told)
    for node in ("first", "again", "mig"):
        test.firing("RunFailed", 20 * MINUTE, 1, instance=node, **told)


def test_an_alert_says_whose_the_run_is_also_over_a_gap_in_scraping(test: RuleTest) -> None:
    labels = f'{target("node")},run="run"'
    test.add({f'stepscope_run_ended_info{{{labels},reason="exit status 1"}}': [1.0] * 60})
    owner = 'user="ada",namespace="vision",pod="train-0",scheduler_job="4711"'
    gone: Values = [1.0] * 21 + [GONE] + [None] * 38
    for attempt in "01":  # a restart has two of them for a while
        test.add({f'stepscope_run_info{{{labels},name="run",attempt="{attempt}",{owner}}}': gone})
    told = {"user": "ada", "namespace": "vision", "pod": "train-0", "scheduler_job": "4711"}
    for minute in (5, 9):
        test.firing("RunFailed", minute * MINUTE, 1)
        test.firing("RunFailed", minute * MINUTE, 1, **told)
