"""Scenarios of the demo at once, each on a node of its own, with the real servers: a film in quick time.

Everything passes `SPEED` times as fast as in real life: the simulated nodes, Prometheus's scrapes, the rules
(`stepscope rules render --speed`) and what Alertmanager waits for. So the order of things is the real one.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.common.durations import parse_duration
from stepscope.demo.scenarios import all_scenarios
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.expressions import time_span

from tests.support.alertmanager import (
    ALERTMANAGER,
    Alertmanager,
    HttpStub,
    alertmanager,
    configured,
    http_stub,
)
from tests.support.demo import DemoProcess
from tests.support.exporter_process import ExporterProcess
from tests.support.prometheus import Prometheus
from tests.support.servers import Servers
from tests.support.waiting import SECONDS

Labels = Mapping[str, str]

SPEED = 10
GRAFANA_URL, DOCS_URL = "https://grafana.test", "https://docs.test"
TICKS_A_MINUTE = 120
CAUGHT_UP = 1.25  # times as many ticks in a minute: its node was behind by a quarter of one

LONGEST = "slow-start"
BEGUN_AGO = "9m"  # it is shown from its tenth minute on, as it does nothing for 23
SHORTEST = 13  # minutes of a run, in which each rule can decide and be told: some are evaluated seldom
FORGOTTEN = 7  # minutes behind the end of a run after which its exporter tells nothing of it any more

PROMETHEUS = """\
global:
  scrape_interval: {interval}
  evaluation_interval: {interval}
rule_files: ["{folder}/rules/*.yml"]
alerting:
  alertmanagers:
    - static_configs:
        - targets: ["{alertmanager}"]
scrape_configs:
  - job_name: stepscope
    static_configs: {targets}
"""


def faster(duration: str) -> str:
    """15s -> 1s500ms"""
    return time_span(parse_duration(duration) / SPEED)


PACE: Mapping[str, Callable[[re.Match[str]], str]] = {
    r"(group_wait|group_interval|repeat_interval): (\w+)": lambda found: f"{found[1]}: {faster(found[2])}"
}


def run_of(scenario: str) -> str:
    return f"simulated-{scenario}"


def node_of(scenario: str) -> str:
    return f"{scenario}-node"


def minutes_of(scenario: str) -> float:
    """How long its run lasts."""
    return max(all_scenarios()[scenario].minutes, SHORTEST)


def address_of(scenario: str) -> str:
    """A port that is free: on an address of this machine that nobody else has."""
    process, number = os.getpid(), list(all_scenarios()).index(scenario)
    return f"127.{64 + process % 64}.{process // 64 % 256}.{number + 1}:9870"


class Nodes(ExitStack):
    """The simulated nodes that serve."""

    def start(self, scenarios: Sequence[str]) -> None:
        """Starts a node for each; the run that begins in the past first, as that takes some seconds."""
        self._serving = (
            {LONGEST: self._started(LONGEST, f"--begun-ago={BEGUN_AGO}")} if LONGEST in scenarios else {}
        )
        others = [scenario for scenario in scenarios if scenario != LONGEST]
        with ThreadPoolExecutor() as pool:
            self._serving |= dict(zip(others, pool.map(self._started, others), strict=True))

    def leave(self, scenario: str) -> None:
        """Stops a node, where that has not been done."""
        if node := self._serving.pop(scenario, None):
            node.stop()

    def _started(self, scenario: str, *flags: str) -> ExporterProcess:
        duration = f"--duration={minutes_of(scenario):g}m"
        process = DemoProcess(scenario, f"--speed={SPEED}", duration, *flags, listen=address_of(scenario))
        return self.enter_context(process)


@dataclass
class Film:
    """What happened in it."""

    prometheus: Prometheus
    alertmanager: Alertmanager
    rules: Path  # with which Prometheus evaluates
    stub: HttpStub
    nodes: Nodes
    scenarios: Sequence[str]
    webhooks: list[dict[str, Any]] = field(default_factory=list)  # in Alertmanager's JSON, version 4
    slack: list[dict[str, Any]] = field(default_factory=list)  # the attachments
    known: dict[frozenset[tuple[str, str]], Labels] = field(default_factory=dict)  # alerts of Alertmanager

    def watch(self) -> None:
        """Until the last run has ended and everything has been told."""
        deadline = time.monotonic() + SECONDS
        last = max(self.scenarios, key=minutes_of)
        while (
            (untold := self._untold())
            or self._minutes().get(last, 0) < minutes_of(last) + 0.5
            or len(self.slack) != len(self.webhooks)  # each notification goes to both
        ):
            assert time.monotonic() < deadline, f"still to be told: {untold}"
            time.sleep(0.5)

    def _minutes(self) -> dict[str, float]:
        """Of each scenario, how long ago its run began; nodes whose run is over and forgotten leave."""
        minutes = {
            node["metric"]["instance"].removesuffix("-node"): float(node["value"][1]) / TICKS_A_MINUTE
            for node in self.prometheus.query("stepscope_sampler_ticks_total")
        }
        for scenario, passed in minutes.items():
            if passed > minutes_of(scenario) + FORGOTTEN:
                self.nodes.leave(scenario)
        return minutes

    @property
    def disturbed(self) -> bool:
        """Whether the machine was too busy for it: a scrape took longer than there is between two,
        Prometheus left out an evaluation, or a node fell behind and had to catch up."""
        slowest = self._most("max_over_time(scrape_duration_seconds[1h])")
        ticks = self._most(
            f"max_over_time(rate(stepscope_sampler_ticks_total[{faster('1m')}])[1h:{faster('15s')}])"
        )
        return (
            slowest >= parse_duration(faster("15s"))
            or ticks > CAUGHT_UP * SPEED * TICKS_A_MINUTE / 60
            or self.prometheus.own("prometheus_rule_group_iterations_missed_total") > 0
        )

    def _most(self, query: str) -> float:
        (most,) = self.prometheus.query(f"max({query})")
        return float(most["value"][1])

    def told(self) -> dict[frozenset[tuple[str, str]], dict[str, Any]]:
        """The alerts of all notifications, by their labels; of each what was told of it first."""
        found: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
        for notification in self.webhooks:
            for alert in notification["alerts"]:
                if alert["status"] == "firing":
                    found.setdefault(key(alert["labels"]), alert)
        return found

    def silenced(self) -> list[Labels]:
        """The alerts that reached Alertmanager, and nobody else."""
        told = self.told()
        return [labels for its_key, labels in self.known.items() if its_key not in told]

    def times(self, scenario: str) -> str:
        """Returns when what was told of a scenario began and ended, to find the cause of a failure."""
        lines = {
            " ".join(
                (alert["labels"]["rule"], *each, alert["status"], alert["startsAt"], alert["endsAt"])
            ): None
            for notification in self.webhooks
            for alert in notification["alerts"]
            if alert["labels"]["run"] == run_of(scenario)
            for each in [[alert["labels"].get(name, "") for name in ("trouble", "gpu", "rank")]]
        }
        return "\n".join(("told, in this order:", *lines))

    def _untold(self) -> list[Labels]:
        """Alerts that fire now, are not inhibited, and have not been told."""
        alerts = [one for one in self.alertmanager.alerts() if one["labels"]["rule"] != "Watchdog"]
        self.known |= {key(alert["labels"]): alert["labels"] for alert in alerts}
        self._take_notifications()
        told = self.told()
        return [
            alert["labels"]
            for alert in alerts
            if not alert["status"]["inhibitedBy"] and key(alert["labels"]) not in told
        ]

    def _take_notifications(self) -> None:
        while not self.stub.posted.empty():
            posted = self.stub.posted.get()
            if posted.path == "/slack":
                self.slack += posted.content["attachments"]
            else:
                self.webhooks.append(posted.content)


def key(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


@contextmanager
def film(servers: Servers, scenarios: Sequence[str], folder: Path) -> Iterator[Film]:
    """Shows it to its end."""
    with ExitStack() as stack:
        stub = stack.enter_context(http_stub())
        posting = stack.enter_context(alertmanager(_alertmanager_config(folder, stub), servers))
        config = _prometheus_config(folder / "prometheus", posting, scenarios)
        url = stack.enter_context(
            servers.prometheus(
                config,
                config.parent / "data",
                f"--query.lookback-delta={faster('5m')}",
                f"--rules.alert.resend-delay={faster('1m')}",
            )
        )
        nodes = stack.enter_context(Nodes())
        nodes.start(scenarios)
        shown = Film(Prometheus(url), posting, config.parent / "rules" / RULES, stub, nodes, scenarios)
        shown.watch()
        yield shown


def _alertmanager_config(folder: Path, stub: HttpStub) -> Path:
    """alertmanager.yml with one receiver for all, information too, as docs/notifications.md says."""
    committed = (ALERTMANAGER / "alertmanager.yml").read_text()
    slack = re.search(r"(?ms)^    slack_configs:.*?(?=^$)", committed)
    assert slack
    changes = {
        "http://localhost:8080/": f"{stub.url}/webhook",
        r"(?<=  - name: webhook\n)": slack[0],
        r"receiver: information(?=\n *matchers: ..severity=.info)": "receiver: webhook",
    }
    secrets = {"webhook-token": "secret-word", "slack-url": f"{stub.url}/slack"}
    return configured(folder, "webhook", changes, secrets, PACE)


def _prometheus_config(folder: Path, posting: Alertmanager, scenarios: Sequence[str]) -> Path:
    (folder / "rules").mkdir(parents=True)
    for name, text in render(Options(grafana_url=GRAFANA_URL, docs_url=DOCS_URL, speed=SPEED)).items():
        if "/" not in name:  # else it is optional
            (folder / "rules" / name).write_text(text)
    targets = [
        {"targets": [address_of(scenario)], "labels": {"instance": node_of(scenario)}}
        for scenario in scenarios
    ]
    config = folder / "prometheus.yml"
    config.write_text(
        PROMETHEUS.format(
            interval=faster("15s"),
            folder=folder,
            alertmanager=posting.url.removeprefix("http://"),
            targets=json.dumps(targets),  # which is YAML too
        )
    )
    return config
