"""Which ranks the alert Straggler names, when Prometheus scrapes a run that was recorded."""

from dataclasses import replace
from pathlib import Path

from stepscope.prometheus.crosscheck.offline.check import evaluate
from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.prometheus.crosscheck.rule_files import metrics, read_groups
from stepscope.prometheus.crosscheck.server import Grid, Server
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

SCRAPE_SECONDS = 5.0  # and rules are evaluated as often: a run lasts for less than a minute
FIRING = 'ALERTS{alertname="StepscopeStraggler", alertstate="firing"}'


def alerting_ranks(recording: Path) -> set[int]:
    """Returns the ranks for which the alert fired at any time. Needs `prometheus` on the PATH."""
    text = render(Options(scraping=Scraping(interval=SCRAPE_SECONDS)))[RULES]
    interval = round(1000 * SCRAPE_SECONDS)
    groups = [
        replace(group, interval=interval)
        for group in read_groups(text, RULES)
        if group.name == "stepscope-Straggler"
    ]
    run = RecordedRun(recording)
    begin, end = round(1000 * run.start), round(1000 * run.end)
    moments = range(begin, end + 1, interval)
    with local_prometheus() as store, Server(store.url) as server:
        store.write(run.scraped(moments, metrics(groups), _nothing))
        evaluate(server, store, groups, begin, moments[-1], _nothing)
        found = server.instants(FIRING, Grid(begin, interval, len(moments)))
        return {int(dict(labels)["rank"]) for vector in found for labels in vector}


def _nothing(done: int) -> None:
    """Shows no progress."""
