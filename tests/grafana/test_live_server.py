"""What only a server that runs can show: exemplars, and what Prometheus tells of itself."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from stepscope.commands.dashboards import dashboards

from tests.support.backfill import RULES
from tests.support.demo import DemoProcess
from tests.support.grafana import Reader
from tests.support.panel_shapes import complaints
from tests.support.prometheus import Prometheus, needs_prometheus, serving
from tests.support.waiting import SECONDS

pytestmark = needs_prometheus

CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: stepscope
    static_configs:
      - targets: ["{target}"]
        labels: {{instance: simulated-node}}
  - job_name: prometheus
    static_configs:
      - targets: ["{itself}"]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a simulated node and itself, and evaluates the rules."""
    folder = tmp_path_factory.mktemp("live")
    rules = ", ".join(str(_each_second(path, folder)) for path in RULES)
    config = folder / "prometheus.yml"
    with DemoProcess("step-outliers", "--begun-ago=2m") as node:
        config.write_text("{}")
        flags = ("--enable-feature=exemplar-storage", "--web.enable-lifecycle")
        with serving(config, folder / "data", *flags) as server:
            itself = server.url.removeprefix("http://")
            target = node.url.removeprefix("http://")
            config.write_text(CONFIG.format(rules=rules, target=target, itself=itself))
            requests.post(f"{server.url}/-/reload", timeout=SECONDS).raise_for_status()
            server.wait_for("prometheus_rule_group_last_duration_seconds offset 8s > 0")
            yield server


def _each_second(rules: Path, folder: Path) -> Path:
    """The same groups, evaluated each second."""
    text = "\n".join(
        "    interval: 1s" if line.startswith("    interval: ") else line
        for line in rules.read_text().splitlines()
    )
    (folder / rules.name).write_text(text)
    return folder / rules.name


def reader(server: Prometheus, uid: str) -> Reader:
    now = time.time()
    return Reader(server, dashboards()[uid], now - 60, now, scrape_seconds=1)


def test_exemplars_lead_from_the_steps_to_their_numbers(running: Prometheus) -> None:
    its = reader(running, "stepscope-steps")
    targets: list[dict[str, Any]] = [
        target
        for title in ("Duration of training steps", "Step time")
        for target in its.panel(title)["targets"]
        if target["exemplar"]
    ]
    assert len(targets) == 2
    for target in targets:
        found = running.get(
            "query_exemplars", query=its.fill(target["expr"]), start=str(its.start), end=str(its.end)
        )
        exemplars = [one for series in found for one in series["exemplars"]]
        assert exemplars
        for one in exemplars:
            assert int(one["labels"]["step"]) >= 0
            assert 0.3 < float(one["value"]) < 2  # seconds, as the steps of that scenario take


def test_what_prometheus_tells_of_its_rules_is_shown(running: Prometheus) -> None:
    its = reader(running, "stepscope-exporter")
    for title in ("Rule evaluation time", "Failed rule evaluations"):
        assert complaints(its, its.panel(title)) == {}
