"""VictoriaMetrics and vmalert of each installed version decide as Prometheus does, and fail at no rule."""

import json
import math
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from stepscope.prometheus.crosscheck.offline.prometheus import free_address
from stepscope.prometheus.crosscheck.server import Series
from stepscope.prometheus.rules.files import META, RULES, USAGE, render
from stepscope.prometheus.rules.options import Options

from tests.support.backfill import RETENTION_SECONDS, seconds_of
from tests.support.scraped_nodes import stored
from tests.support.scrapes import SCRAPE_SECONDS
from tests.support.waiting import SECONDS
from trials.engines.servers import (
    NEWER,
    PrometheusHere,
    VictoriaMetricsHere,
    installed,
    local_victoriametrics,
)
from trials.shared_cluster.judge import FiringAlert
from trials.shared_cluster.plan import START

SCENARIO = "straggler"  # whose rule builds on the most records
LENGTH = seconds_of(SCENARIO) + RETENTION_SECONDS
INSTALLED = installed("victoria-metrics", VictoriaMetricsHere)
on_each = pytest.mark.parametrize(
    "engine", INSTALLED, ids=lambda engine: "newer" if engine.program.parent == NEWER else "distribution"
)


@pytest.fixture(scope="module")
def series() -> list[Series]:
    return stored(SCENARIO, START)


@pytest.fixture(scope="module")
def by_prometheus(series: list[Series]) -> list[FiringAlert]:
    found = installed("prometheus", PrometheusHere)
    if not found:
        pytest.skip("needs Debian's package prometheus")
    return found[0].decided(series, SCRAPE_SECONDS, LENGTH)


def labels(alerts: Sequence[FiringAlert]) -> dict[str, float]:
    return {json.dumps(alert.labels, sort_keys=True): alert.begin for alert in reversed(alerts)}


@on_each
def test_it_gives_the_alerts_of_prometheus_at_most_one_evaluation_later(
    engine: VictoriaMetricsHere, series: list[Series], by_prometheus: list[FiringAlert]
) -> None:
    ours, theirs = labels(by_prometheus), labels(engine.decided(series, SCRAPE_SECONDS, LENGTH))
    assert ours.keys() == theirs.keys()
    assert any('"Straggler"' in alert for alert in ours)
    later = [theirs[alert] - ours[alert] for alert in ours]
    assert min(later) >= 0
    assert max(later) <= 240


@on_each
def test_it_stores_no_nan_so_that_only_an_infinite_loss_is_found(engine: VictoriaMetricsHere) -> None:
    """A loss that is NaN is not published to it, and so is neither found nor healthy."""
    moments = [round(1000 * START) + 15_000 * number for number in range(80)]
    losses: list[Series] = []
    for run, last in (("nan", math.nan), ("infinite", math.inf)):
        of_run = {"job": "stepscope", "instance": "node", "run": run}
        loss = {"__name__": "stepscope_run_gauge", **of_run, "rank": "0", "name": "loss"}
        losses += [
            (loss, [(moment, 2.0 if number < 10 else last) for number, moment in enumerate(moments)]),
            (
                {"__name__": "stepscope_run_age_seconds", **of_run},
                [(moment, 15.0 * number) for number, moment in enumerate(moments)],
            ),
        ]
    alerts = engine.decided(losses, SCRAPE_SECONDS, 80 * 15)
    found = {alert.labels["run"] for alert in alerts if alert.labels.get("rule") == "LossNotFinite"}
    assert found == {"infinite"}


@on_each
def test_a_running_vmalert_evaluates_every_rule_and_words_every_alert(
    engine: VictoriaMetricsHere, series: list[Series], tmp_path: Path
) -> None:
    with local_victoriametrics(engine.program) as store:
        store.write(list(until_now(series)))
        with vmalert(engine, store.url, tmp_path) as url:
            rules = evaluated(url)
    failed = [(rule["name"], rule["lastError"]) for rule in rules if rule["lastError"]]
    assert failed == []
    alerts = [alert for rule in rules for alert in rule.get("alerts") or ()]
    (ended,) = (
        alert
        for alert in alerts
        if (alert["labels"]["rule"], alert["labels"]["audience"]) == ("RunFailed", "owner")
    )
    assert ended["annotations"]["summary"] == "Run simulated-straggler failed: out of memory"
    assert ended["annotations"]["dashboard_url"].startswith(
        "https://grafana/d/stepscope-run?var-run=simulated"
    )


def until_now(series: Sequence[Series]) -> Iterator[Series]:
    """Moves the run, so that it has trained until now, and says that it ran out of memory."""
    moved = round(1000 * (time.time() - START - 12 * 60))
    for name, points in series:
        yield name, [(moment + moved, value) for moment, value in points]
    name, points = next(
        (name, points) for name, points in series if name["__name__"] == "stepscope_samples_total"
    )
    ended = {**name, "__name__": "stepscope_run_ended_info", "reason": "out of memory"}
    yield ended, [(moment + moved, 1.0) for moment, _ in points]


@contextmanager
def vmalert(engine: VictoriaMetricsHere, url: str, folder: Path) -> Iterator[str]:
    """Runs vmalert with all rules that are loaded by default, and gives its address."""
    texts = render(Options(engine="victoriametrics", docs_url="https://docs", grafana_url="https://grafana"))
    for name in (RULES, META, USAGE):  # evaluated as soon as it has started: it waits for up to an interval
        (folder / name).write_text(re.sub(r"(?m)^    interval: \w+$", "    interval: 1s", texts[name]))
    address = free_address()
    flags = [
        *(f"-rule={folder / name}" for name in (RULES, META, USAGE)),
        *(f"-datasource.url={url}", f"-remoteWrite.url={url}", f"-httpListenAddr={address}"),
        *("-notifier.url=http://127.0.0.1:9", "-loggerLevel=PANIC"),
    ]
    with subprocess.Popen([engine.program.with_name("vmalert"), *flags]) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def evaluated(url: str) -> list[dict[str, Any]]:
    """Waits until every rule has been evaluated, and the alert on the run's end fires."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            groups = requests.get(f"{url}/api/v1/rules", timeout=SECONDS).json()["data"]["groups"]
        except requests.ConnectionError:
            groups = []
        rules = [rule for group in groups for rule in group["rules"]]
        ended = [not rule["lastEvaluation"].startswith("0001") for rule in rules]
        fires = [rule for rule in rules if rule["name"] == "StepscopeRunFailed" and rule.get("alerts")]
        if rules and all(ended) and fires:
            return rules
        time.sleep(0.2)
    raise AssertionError("vmalert did not evaluate all rules in time")
