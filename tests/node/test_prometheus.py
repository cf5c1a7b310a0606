"""Debian's Prometheus scrapes the real exporter of a real run."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.exporter_process import SECONDS, ExporterProcess
from tests.support.training_process import TrainingProcess

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus package"),
]

# The scrape of docs/exporter.md, with a shorter interval: `instance` is the host without its port.
CONFIG = """\
global:
  scrape_interval: 200ms
scrape_configs:
  - job_name: trainwatch
    static_configs:
      - targets: ["{target}"]
    relabel_configs:
      - source_labels: [__address__]
        regex: "(.*):\\\\d+"
        target_label: instance
"""


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=SECONDS).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + SECONDS
        while not (result := self.query(expression)):
            assert time.monotonic() < deadline, f"{expression} stays empty: {self.get('targets')}"
            time.sleep(0.1)
        return result


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the target, at a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address={address}", "--enable-feature=exemplar-storage", "--log.level=error"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + SECONDS
        while not is_ready(f"http://{address}/-/ready"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        try:
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=SECONDS).status_code == 200
    except requests.ConnectionError:
        return False


def test_prometheus_scrapes_a_run_with_its_histograms_counters_and_exemplars(tmp_path: Path) -> None:
    ledgers = tmp_path / "ledgers"
    with (
        ExporterProcess("--ledger-dir", ledgers, "--sample-interval=100ms") as node,
        TrainingProcess(ledgers) as trainer,
    ):
        trainer.do(
            "import time\n"
            "trainwatch.start(framework='pytorch', framework_version='2.13.0')\n"
            "for _ in range(20):\n"
            "    with trainwatch.step('train'):\n"
            "        time.sleep(0.002)\n"
        )
        with scraping(node.url.removeprefix("http://"), tmp_path) as prometheus:
            (count,) = prometheus.wait_for("trainwatch_step_duration_seconds_count == 20")
            assert count["metric"]["instance"] == "127.0.0.1"
            assert count["metric"]["run"] == "resnet"
            assert {sample["value"][1] for sample in prometheus.query("up")} == {"1"}
            (quantile,) = prometheus.query("histogram_quantile(0.5, trainwatch_step_duration_seconds_bucket)")
            assert 0.001 < float(quantile["value"][1]) < 1
            # Every series that PromQL is to join on a bound exists under the same `le`.
            joined = (
                "trainwatch_step_duration_seconds_bucket"
                " * on (instance, le) group_left trainwatch_step_duration_bound_seconds"
            )
            (buckets,) = prometheus.query(f"count({joined})")
            (bounds,) = prometheus.query("count(trainwatch_step_duration_bound_seconds)")
            assert buckets["value"][1] == bounds["value"][1]
            prometheus.wait_for("trainwatch_samples_total > 3")
            prometheus.wait_for('trainwatch_cpu_utilization_samples_bucket{le="0.9"}')
            (info,) = prometheus.query("trainwatch_run_info")
            assert info["metric"]["framework_version"] == "2.13.0"
            series = prometheus.get(
                "query_exemplars",
                query="trainwatch_step_duration_seconds_bucket",
                start=str(time.time() - 600),
                end=str(time.time() + 600),
            )
            steps = {int(exemplar["labels"]["step"]) for each in series for exemplar in each["exemplars"]}
            assert steps
            assert steps <= set(range(20))
            (target,) = prometheus.get("targets")["activeTargets"]
            assert target["lastError"] == ""
