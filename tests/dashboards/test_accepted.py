"""Accepted findings on Run and Cluster: listed with end and reason, and in no verdict or count."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from trainwatch.dashboards.command import dashboards

from tests.dashboards.conftest import RULES
from tests.support.backfill import Backfill, instance_of, run_of, seconds_of, write_scrapes
from tests.support.demo import START
from tests.support.grafana import Reader, Row
from tests.support.prometheus import Prometheus, needs_prometheus

SCENARIO = "io-bottleneck"
REASON, UNTIL = "The new storage comes in January", "2026-12-31"
WORDS = f"{UNTIL}: {REASON}"
# Which rules of a run are accepted: of the finding that reports its problem, of all that fire, of another.
CAUSE = ("DataStarved",)
ALL = ("DataStarved", "IOBottleneck", "LowGPUUtilization", "BatchSize", "IdleGPU")
ACCEPTED = {"open": (), "cause": CAUSE, "all": ALL, "other": ("ThermalThrottling",), "withdrawn": ALL}
WITHDRAWN_AFTER = 240  # seconds
# Of each node, once per scrape.
LINE = re.compile(r'trainwatch_samples_total\{(job="[^"]*",instance="[^"]*"),.*\} \S+ (\S+)')

pytestmark = [pytest.mark.servers, needs_prometheus, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scraped one run per entry of ACCEPTED, with the same bottleneck."""
    backfill = Backfill(tmp_path_factory.mktemp("accepted"))
    scraped = backfill.folder / "scraped.om"
    write_scrapes(SCENARIO, scraped)
    text = scraped.read_text()
    files = [backfill.folder / f"{run}.om" for run in ACCEPTED]
    for file, (run, rules) in zip(files, ACCEPTED.items(), strict=True):
        renamed = text.replace(run_of(SCENARIO), run).replace(instance_of(SCENARIO), f"node-{run}")
        file.write_text("".join(with_accepted(renamed, run, rules)))
    scraped.unlink()
    backfill.store(files)
    backfill.evaluate(RULES, seconds_of(SCENARIO))
    with backfill.serving() as running:
        yield running


def with_accepted(text: str, run: str, rules: tuple[str, ...]) -> Iterator[str]:
    """Adds what an exporter publishes of accepted findings."""
    end = START + WITHDRAWN_AFTER if run == "withdrawn" else float("inf")
    for line in text.splitlines(keepends=True):
        yield line
        if (match := LINE.match(line)) and float(match[2]) < end:
            for rule in rules:
                words = f'run="{run}",rule="{rule}",reason="{REASON}",until="{UNTIL}",by="alice"'
                yield f"trainwatch_finding_accepted_info{{{match[1]},{words}}} 1 {match[2]}\n"


def look(server: Prometheus, uid: str, run: str, later: float = 0) -> Reader:
    """Opens a dashboard while the run trains, or `later` seconds after that."""
    end = START + seconds_of(SCENARIO) - 120 + later
    return Reader(server, dashboards()[uid], START - 60, end, {"run": run, "runs": run, "price": "2"})


def verdict(reader: Reader) -> str:
    ((value,),) = (series.values for series in reader.lines("Verdict").values())
    (mapping,) = reader.panel("Verdict")["fieldConfig"]["defaults"]["mappings"]
    return str(mapping["options"][f"{value:g}"]["text"])


def count(reader: Reader, title: str) -> float:
    (series,) = reader.lines(title).values()
    return series.values[-1]


def wrong(reader: Reader) -> dict[str, Row]:
    return {row["Rule"]: row for row in reader.table("What is wrong")}


def states(reader: Reader) -> dict[str, tuple[float, str | None]]:
    return {rule: (row["State"], row.get("Accepted")) for rule, row in wrong(reader).items()}


FOUND, BEFORE, IS_ACCEPTED = 2, 1, 0  # as the column State maps them to words


def test_a_run_with_only_accepted_findings_is_healthy_and_lists_them(server: Prometheus) -> None:
    run = look(server, "trainwatch-run", "all")
    found = {rule for rule in ALL if rule in wrong(run)}
    assert "DataStarved" in found
    assert verdict(run) == "✓ healthy: nothing found but accepted findings"
    assert states(run) == dict.fromkeys(found, (IS_ACCEPTED, WORDS))
    assert (count(run, "Findings"), count(run, "Accepted")) == (0, len(found))
    assert list(run.lines("What to do")) == ["No advice: the verdict says whether the run is healthy"]


def test_only_the_accepted_rule_stops_counting(server: Prometheus) -> None:
    run, usual = look(server, "trainwatch-run", "cause"), look(server, "trainwatch-run", "open")
    assert states(usual) == {"DataStarved": (FOUND, None)}
    assert (count(usual, "Findings"), count(usual, "Accepted")) == (1, 0)
    accepted, *others = sorted(states(run).items(), key=lambda row: row[1][0])
    assert accepted == ("DataStarved", (IS_ACCEPTED, WORDS))
    assert others
    assert all(state == (FOUND, None) for _, state in others)
    assert (count(run, "Findings"), count(run, "Accepted")) == (len(others), 1)
    assert verdict(run) == verdict(usual) == "▲ found: see below"
    assert wrong(run)["DataStarved"]["Lost"] == wrong(usual)["DataStarved"]["Lost"]
    assert not any(advice.startswith("DataStarved") for advice in run.lines("What to do"))


def test_a_rule_that_is_accepted_and_not_found_changes_nothing(server: Prometheus) -> None:
    run = look(server, "trainwatch-run", "other")
    assert states(run) == {"DataStarved": (FOUND, None)}
    assert count(run, "Accepted") == 0
    assert look(server, "trainwatch-cluster", "other").table("Alerts by run and rule") == [
        row | {"Run": "other"}
        for row in look(server, "trainwatch-cluster", "open").table("Alerts by run and rule")
    ]


@pytest.mark.parametrize("later", [0, 3600])
def test_a_finding_that_is_no_longer_accepted_counts_again(server: Prometheus, later: float) -> None:
    run = look(server, "trainwatch-run", "withdrawn", later)
    assert verdict(run) == "▲ found: see below"
    assert count(run, "Accepted") == 0
    still = look(server, "trainwatch-run", "all", later)
    assert verdict(still) == "✓ healthy: nothing found but accepted findings"


def test_cluster_lists_accepted_findings_and_counts_only_others(server: Prometheus) -> None:
    every, cause, usual = (look(server, "trainwatch-cluster", run) for run in ("all", "cause", "open"))
    rows = every.table("Alerts by run and rule")
    assert {row["Accepted"] for row in rows} == {WORDS}
    assert not any("Times" in row for row in rows)
    assert every.lines("What to do") == {}
    assert count(every, "Alerts") == 0
    (row,) = usual.table("Alerts by run and rule")
    assert (row["Rule"], row["Times"], "Accepted" in row) == ("DataStarved", 8, False)
    assert [name.split(":")[0] for name in usual.lines("What to do")] == ["open, DataStarved"]
    rows = cause.table("Alerts by run and rule")
    assert {row["Rule"]: row.get("Accepted") for row in rows}.pop("DataStarved") == WORDS
    assert 0 < count(cause, "Alerts") < count(usual, "Alerts")
    assert [row for row in rows if "Times" in row]
    assert not any(name.startswith("cause, DataStarved") for name in cause.lines("What to do"))


def test_the_verdict_of_a_cluster_counts_no_accepted_finding(server: Prometheus) -> None:
    reader = look(server, "trainwatch-cluster", "all")
    assert verdict(reader) == "▲ found: see the alerts below"  # of other runs
    (panel,) = (each for each in reader.dashboard["panels"] if each["title"] == "Verdict")
    panel["targets"][0]["expr"] = panel["targets"][0]["expr"].replace('kind!=""', 'kind!="", run="all"')
    assert verdict(reader) == "✓ healthy: no alert fires but those of accepted findings"
