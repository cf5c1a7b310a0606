"""Reads what Prometheus stored of a rule: its records, status, alerts and evaluation times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.common.errors import UserError
from stepscope.measurements.scraped import Labels, Points, Vector, without
from stepscope.prometheus.crosscheck.readings import matcher
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Server
from stepscope.prometheus.rules.groups import FINDING, INFO, STATUS
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.promql import OWNER, Alert, Scraping

SAMPLES = "stepscope_samples_total"
WHOLE = 100  # milliseconds: scrape intervals are multiples of it
# Storing a scrape takes up to STORED milliseconds, and on a busy machine up to BUSY times the scrape itself.
STORED = 500
BUSY = 3
# Prometheus stores no ALERTS at the first two evaluations after a start: it restores their states first
# (rules/manager.go, Group.run; rules/alerting.go, AlertingRule.Eval).
RESTORING = 2
# What other exporters' readings decide is not checked.
OURS = 'resolution=""'


@dataclass(frozen=True)
class Window:
    """The checked time of a run.

    `restarted` is the start of the server's process, None if it ran all the time. `speed` is that of a
    simulated node, for which the rules were rendered.
    """

    run: str
    start: Milliseconds
    end: Milliseconds
    scrapes: "ScrapeTimes"
    restarted: Milliseconds | None
    speed: float = 1.0


class Stored:
    """The records and alerts of one rule for one run. Raises UserError if the server fails.

    `times` are those of the rule's evaluations. They start before the window, because alerts have a memory.
    """

    def __init__(
        self,
        server: Server,
        rule: Rule[Any, Any],
        scraping: Scraping,
        interval: Milliseconds,
        window: Window,
        added: Mapping[str, str],
    ) -> None:
        """Reads the series. `added` are labels that all alerts got when they were rendered."""
        rules = rule.prometheus_rules(scraping)
        assert rules is not None
        self._rule, self.name, self.window = rule, rule.name, window
        speed = window.speed
        alerts = [
            replace(alert, pending=alert.pending / speed, keep_firing=alert.keep_firing / speed)
            for alert in rules.alerts
        ]
        self.rules = replace(rules, alerts=alerts)
        # An alert that is pending or kept firing at the window's start began before it.
        memory = max(alert.pending + alert.keep_firing for alert in self.rules.alerts)
        since = window.start - round(1000 * memory) - interval
        of_rule, of_run = matcher("rule", rule.name), matcher("run", window.run)

        def samples(name: str, *matchers: str) -> dict[Milliseconds, Vector]:
            return server.samples(f"{name}{{{','.join((of_run, OURS, *matchers))}}}", since, window.end)

        self.records = {record.name: samples(record.name) for record in self.rules.records}
        for series in (FINDING, STATUS):
            self.records[series] = {
                time: {labels - {("rule", rule.name)}: value for labels, value in vector.items()}
                for time, vector in samples(series, of_rule).items()
            }
        self._alerting = samples("ALERTS", of_rule)
        self._added = frozenset(added.items())
        own = {*self._alerting, *(time for samples in self.records.values() for time in samples)}
        words = server.points(f"{INFO}{{{of_rule}}}", since, window.end)
        self.times = sorted(own | self._evaluations(words, min(own, default=None), interval))
        self.grid = _grid(rule.name, self.times, interval)

    def _evaluations(
        self, words: Mapping[Labels, Points], one: Milliseconds | None, interval: Milliseconds
    ) -> set[Milliseconds]:
        """Returns when the rule's group recorded its words: each evaluation does, also if nothing is judged.

        Another cluster's words, with other external labels or at moments unlike `one`, are left out.
        """
        target = dict(next((labels for vector in self.records[STATUS].values() for labels in vector), ()))
        of_cluster = [
            times.tolist()
            for labels, (times, _) in words.items()
            if all(target.get(name, value) == value for name, value in labels)
        ]
        found = {time for times in of_cluster for time in times}
        phase = min(found, default=0) if one is None else one
        return {time for time in found if (time - phase) % interval == 0}

    @cached_property
    def alerting(self) -> list[tuple[Milliseconds, dict[Labels, str]]]:
        """Returns the states by the labels of targets and rules, at each evaluation of the window."""
        found = []
        for time in self.times:
            if time >= self.window.start:
                states = {}
                for labels in self._alerting.get(time, {}):
                    own = without(labels - self._added, "alertname", "alertstate", *OWNER)
                    states[own] = dict(labels)["alertstate"]
                found.append((time, states))
        return found

    @cached_property
    def restoring(self) -> list[Milliseconds]:
        """Returns the evaluations at which ALERTS may be missing."""
        if self.window.restarted is None:
            return []
        return [time for time in self.times if time >= self.window.restarted][:RESTORING]

    def own_labels(self, alert: Alert) -> Labels:
        """Returns the labels that distinguish an alert of the rule from its others."""
        return frozenset(self._rule.alert_labels(alert).items())


def _grid(rule: str, times: Sequence[Milliseconds], interval: Milliseconds) -> Grid:
    """Returns all evaluations, also missed ones. Raises UserError if the interval changed."""
    if not times:
        return Grid(0, interval, 0)
    if any((time - times[0]) % interval for time in times):
        raise UserError(
            f"the evaluation interval of {rule} was changed; give a --start after Prometheus was reconfigured"
        )
    return Grid(times[0], interval, 1 + (times[-1] - times[0]) // interval)


@dataclass(frozen=True)
class ScrapeTimes:
    """The usual time between scrapes; `unseen`: the longest time until one was stored."""

    mostly: Milliseconds
    unseen: Milliseconds

    @property
    def delays(self) -> tuple[Milliseconds, ...]:
        """Returns the delays to try: close enough that none skips a scrape."""
        times = range(self.mostly // 2, self.unseen, self.mostly // 2)
        return (*times, self.unseen) if self.unseen else ()


def scrape_times(server: Server, run: str, start: Milliseconds, end: Milliseconds) -> ScrapeTimes:
    """Returns the scrape times of the run's nodes. Raises UserError if Prometheus fails."""
    unseen = round(1000 * BUSY * server.longest_scrape(start, end)) + STORED
    points = server.points(f"{SAMPLES}{{{matcher('run', run)}}}", start, end)
    gaps = [np.diff(times) for times, _ in points.values()]
    every = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(every):  # scraped once
        return ScrapeTimes(2 * unseen, unseen)
    mostly = max(WHOLE, WHOLE * round(float(np.median(every)) / WHOLE))
    return ScrapeTimes(mostly, unseen)
