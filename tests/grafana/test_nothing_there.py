"""Dashboards without rules, without the run, without anything, and of a run that failed: never healthy."""

from collections.abc import Iterator

import pytest
from stepscope.commands.dashboards import dashboards

from tests.support.backfill import Backfill, instance_of, run_of, scrapes, seconds_of
from tests.support.demo import START
from tests.support.grafana import Reader, panels
from tests.support.prometheus import Prometheus, needs_prometheus

SCENARIO = "healthy"
DAY = 86_400
# Words that are there without any series; no colour or count.
WORDS = {"Verdict", "What to do", "How it ended"}
PARTLY = {"Utilisation of each node"}  # recorded, but for the samples of GPUs and cores
RECORDED = ("stepscope:rule_status", "stepscope:rule_finding", "run_instance", "instance:", "ALERTS")

pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scraped a run that ended well and one that failed, and has no rules."""
    backfill = Backfill(tmp_path_factory.mktemp("no-rules"))
    ended, failed = scrapes(SCENARIO), backfill.folder / "failed.om"
    text = ended.read_text().replace(run_of(SCENARIO), "crashed").replace(instance_of(SCENARIO), "node-2")
    assert "ended without saying so" in text
    text = text.replace("ended without saying so", "exit status 1")
    line = next(line for line in text.splitlines() if line.startswith("stepscope_run_ended_info{"))
    raised, at = line.replace("ended_info", "exception_info").rsplit(" ", 1)
    for kind, seconds in (("KeyError", START), ("ValueError", at)):  # restarted, it failed again
        of_kind = f'rank="0",type="{kind}",place="train.py:9"'
        text += raised.replace('reason="exit status 1"', of_kind) + f" {seconds}\n"
    failed.write_text(text)
    backfill.store([ended, failed])
    with backfill.serving() as running:
        yield running


def look(server: Prometheus, uid: str, run: str = run_of(SCENARIO), ago: float = 0) -> Reader:
    end = START + seconds_of(SCENARIO) + 60
    return Reader(server, dashboards()[uid], START - 60 - ago, end - ago, {"run": run, "price": "2"})


def verdict(reader: Reader) -> str:
    ((value,),) = (series.values for series in reader.lines("Verdict").values())
    (mapping,) = reader.panel("Verdict")["fieldConfig"]["defaults"]["mappings"]
    return str(mapping["options"][f"{value:g}"]["text"])


def test_without_rules_nothing_is_found_and_nothing_is_healthy(server: Prometheus) -> None:
    run, cluster = look(server, "stepscope-run"), look(server, "stepscope-cluster")
    assert verdict(run) == "? not enough data: the rules are not loaded, or were not while it ran"
    assert verdict(cluster) == "? not enough data: Prometheus has not loaded the rules"
    assert run.lines("Findings") == run.lines("Rules that judge it") == {}
    assert run.table("What is wrong") == []
    assert cluster.lines("Alerts") == cluster.lines("Idle GPUs") == {}


@pytest.mark.parametrize("uid", sorted(dashboards()))
def test_without_rules_what_they_record_is_missing_and_never_0(server: Prometheus, uid: str) -> None:
    reader = look(server, uid)
    for panel in panels(reader.dashboard):
        for target in panel["targets"]:
            if panel["title"] not in WORDS | PARTLY and any(name in target["expr"] for name in RECORDED):
                assert reader.series(target) == [], panel["title"]


@pytest.mark.parametrize("uid", sorted(dashboards()))
def test_before_anything_was_scraped_every_panel_is_empty(server: Prometheus, uid: str) -> None:
    reader = look(server, uid, ago=DAY)
    for panel in panels(reader.dashboard):
        for target in panel["targets"]:
            if panel["title"] not in WORDS:
                assert reader.series(target) == [], panel["title"]
    if uid in {"stepscope-run", "stepscope-cluster"}:
        assert verdict(reader) == "? not enough data: Prometheus scrapes no exporter"


def test_a_run_that_is_not_there_and_one_that_failed_say_so(server: Prometheus) -> None:
    missing = look(server, "stepscope-run", run="no-such-run")
    assert verdict(missing) == "? not enough data: no such run in this time range"
    failed = look(server, "stepscope-run", run="crashed")
    assert verdict(failed) == "✕ failed: see how it ended"
    assert [name.strip() for name in failed.lines("How it ended")] == ["exit status 1 ValueError train.py:9"]
