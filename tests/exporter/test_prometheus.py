"""Debian's Prometheus scrapes the real exporter of a real run."""

import time
from pathlib import Path

import pytest

from tests.support.exporter_process import ExporterProcess
from tests.support.prometheus import needs_prometheus, scraping
from tests.support.training_process import RESNET, TrainingProcess

pytestmark = needs_prometheus


def test_prometheus_scrapes_a_run_with_its_histograms_counters_and_exemplars(tmp_path: Path) -> None:
    ledgers = tmp_path / "ledgers"
    with (
        ExporterProcess("--ledger-dir", ledgers, "--sample-interval=100ms") as node,
        TrainingProcess(ledgers) as trainer,
    ):
        trainer.do(
            "import time\n"
            "stepscope.start(framework='pytorch', framework_version='2.13.0')\n"
            "for _ in range(20):\n"
            "    with stepscope.step('train'):\n"
            "        time.sleep(0.002)\n"
        )
        with scraping(node.url.removeprefix("http://"), tmp_path) as prometheus:
            (count,) = prometheus.wait_for("stepscope_step_duration_seconds_count == 20")
            assert count["metric"]["instance"] == "127.0.0.1"
            assert count["metric"]["run"] == RESNET
            # A scrape that a busy machine delays fails, and its series are gone until the next one.
            (quantile,) = prometheus.wait_for(
                "histogram_quantile(0.5, stepscope_step_duration_seconds_bucket)"
            )
            assert 0.001 < float(quantile["value"][1]) < 1
            # Every series that PromQL is to join on a bound exists under the same `le`.
            joined = (
                "stepscope_step_duration_seconds_bucket"
                " * on (instance, le) group_left stepscope_step_duration_bound_seconds"
            )
            bounds = 'count(stepscope_step_duration_seconds_bucket{le!="+Inf"})'
            prometheus.wait_for(f"count({joined}) == {bounds}")
            prometheus.wait_for("stepscope_samples_total > 3")
            prometheus.wait_for('stepscope_cpu_utilization_samples_bucket{le="0.9"}')
            (info,) = prometheus.wait_for("stepscope_run_info")
            assert info["metric"]["framework_version"] == "2.13.0"
            series = prometheus.get(
                "query_exemplars",
                query="stepscope_step_duration_seconds_bucket",
                start=str(time.time() - 600),
                end=str(time.time() + 600),
            )
            steps = {int(exemplar["labels"]["step"]) for each in series for exemplar in each["exemplars"]}
            assert steps
            assert steps <= set(range(20))
            prometheus.wait_for("up == 1")


def test_the_parts_of_the_time_sum_to_the_life_of_a_process_and_never_fall(tmp_path: Path) -> None:
    ledgers, account = tmp_path / "ledgers", "stepscope_account_seconds_total"
    with (
        ExporterProcess("--ledger-dir", ledgers, "--sample-interval=100ms") as node,
        TrainingProcess(ledgers) as trainer,
        scraping(node.url.removeprefix("http://"), tmp_path) as prometheus,
    ):
        trainer.do(
            "import time\n"
            "stepscope.start()\n"
            "def steps(phase, count):\n"
            "    for _ in range(count):\n"
            "        with stepscope.step(phase), stepscope.component('forward'):\n"
            "            time.sleep(0.05)\n"
            "steps('train', 10); steps('eval', 5)\n"
            "with stepscope.component('checkpoint'): time.sleep(0.5)\n"
            "steps('train', 10); time.sleep(0.5)\n"
            "stepscope.begin_step('train'); stepscope.begin_component('communication'); time.sleep(1)\n"
        )
        prometheus.wait_for(f'{account}{{part="train/communication"}} > 1')
        # It stands still, and both sides are of the same scrape.
        whole = f"sum by (run) ({account}) / on (run) stepscope_run_age_seconds"
        ((_, share),) = (found["value"] for found in prometheus.wait_for(whole))
        assert float(share) == pytest.approx(1, rel=0.01)
        assert prometheus.query(f"resets({account}[10m]) > 0") == []
        parts = {found["metric"]["part"]: float(found["value"][1]) for found in prometheus.wait_for(account)}
        trainer.kill()
        ended = prometheus.wait_for("stepscope_run_end_time_seconds")
        assert ended[0]["metric"]["run"] == RESNET
        assert prometheus.query(f"resets({account}[10m]) > 0") == []
    assert parts["train/forward"] >= 1.0
    assert parts["eval/forward"] >= 0.25
    assert parts["train/checkpoint"] >= 0.5
    assert parts["between_steps"] >= 0.5
