"""Compares what a rule recorded and alerted on with what it must have, at each of its evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainwatch.crosscheck.alerts import alert_states
from trainwatch.crosscheck.readings import Readings, matcher
from trainwatch.crosscheck.recompute import CHECKED
from trainwatch.crosscheck.recompute.expected import Expected
from trainwatch.crosscheck.server import Grid, Labels, Milliseconds, Server, Vector
from trainwatch.errors import UserError
from trainwatch.heuristics.base import Heuristic
from trainwatch.heuristics.promql import Alert, PrometheusRules, Scraping
from trainwatch.rules.groups import STATUS

TOLERANCE = 1e-9
# Prometheus stores no ALERTS at the first two evaluations after its start: it restores their states first
# (rules/manager.go, Group.run; rules/alerting.go, AlertingRule.Eval).
RESTORING = 2


@dataclass(frozen=True)
class Window:
    """What of a run is checked.

    `unseen`: so long may a scrape have taken to be stored. `restarted`: when the server's process began,
    None where it evaluated from the start.
    """

    run: str
    start: Milliseconds
    end: Milliseconds
    unseen: Milliseconds
    restarted: Milliseconds | None


@dataclass(frozen=True)
class Disagreement:
    """A series at one moment; None where there must be, or is, no value."""

    rule: str
    time: Milliseconds
    series: str
    labels: Labels
    expected: float | str | None
    recorded: float | str | None


@dataclass
class Outcome:
    """What the check of one rule, for one run, came to.

    `firing` are the `evaluations` at which Prometheus had an alert of the rule firing; `by_last_scrape` are
    among the `values`.
    """

    rule: str
    run: str
    evaluations: int = 0
    firing: int = 0
    values: int = 0
    by_last_scrape: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)


def check_rule(
    server: Server,
    heuristic: Heuristic[Any, Any],
    scraping: Scraping,
    interval: Milliseconds,
    window: Window,
) -> Outcome:
    """Checks one rule that is evaluated each `interval`. Raises UserError where the server fails."""
    rules = heuristic.rules(scraping)
    assert rules is not None
    return _Check(server, heuristic, rules, scraping, interval, window).outcome()


class _Check:
    def __init__(
        self,
        server: Server,
        heuristic: Heuristic[Any, Any],
        rules: PrometheusRules,
        scraping: Scraping,
        interval: Milliseconds,
        window: Window,
    ) -> None:
        self.server = server
        self.heuristic, self.rules, self.scraping = heuristic, rules, scraping
        self.window = window
        self.result = Outcome(heuristic.name, window.run)
        # Alerts remember: what is pending or kept firing at the window's start began before it.
        memory = max(alert.pending + alert.keep_firing for alert in rules.alerts)
        since = window.start - round(1000 * memory) - interval
        rule, run = f'rule="{heuristic.name}"', matcher("run", window.run)

        def stored(name: str, *matchers: str) -> dict[Milliseconds, Vector]:
            return server.samples(f"{name}{{{','.join((run, *matchers))}}}", since, window.end)

        self.recorded = {record.name: stored(record.name) for record in rules.records}
        self.recorded[STATUS] = stored(STATUS, rule)
        self.alerting = stored("ALERTS", f'alertname="{heuristic.name}"')
        times = sorted({*self.alerting, *(time for kept in self.recorded.values() for time in kept)})
        self.grid = _grid(heuristic.name, times, interval)
        self.times = times
        self.now = Readings(server, window.run, self.grid)
        self.before = Readings(server, window.run, self.grid, window.unseen)

    def outcome(self) -> Outcome:
        if not self.times:
            self._expect_nothing()
        for time in self.times:
            if time >= self.window.start:
                self.result.evaluations += 1
                self._compare_records(time)
        for position, alert in enumerate(self.rules.alerts):
            self._compare_alert(position, alert)
        self.result.firing = sum("firing" in alerting.values() for _, alerting in self.alerting_by_time)
        self._find_foreign_alerts()
        self.result.disagreements.sort(key=lambda one: (one.time, one.series, sorted(one.labels)))
        return self.result

    def _expect_nothing(self) -> None:
        """A rule that never said anything may have had nothing to judge; else it is broken."""
        step = self.grid.step
        grid = Grid(self.window.start, step, 1 + (self.window.end - self.window.start) // step)
        readings = Readings(self.server, self.window.run, grid)
        recompute, its = CHECKED[self.heuristic.name], self.heuristic.parameters
        judged = [
            (grid.time(index), expected.targets)
            for index in range(grid.count)
            if grid.time(index) >= (self.window.restarted or 0)
            and (expected := recompute(readings.at(index), its, self.scraping)).targets
        ]
        # There is at least one evaluation in two intervals.
        if judged and judged[-1][0] - judged[0][0] >= 2 * step:
            time, targets = judged[-1]
            status = self.heuristic.name, time, STATUS
            self.result.disagreements += [
                Disagreement(*status, labels, "a status", None) for labels in targets
            ]

    @cached_property
    def expected(self) -> dict[Milliseconds, Expected]:
        return self._recomputed(self.now)

    @cached_property
    def expected_by_last_scrape(self) -> dict[Milliseconds, Expected]:
        """The same, had each evaluation missed a scrape that was not stored yet."""
        return self._recomputed(self.before)

    def _recomputed(self, readings: Readings) -> dict[Milliseconds, Expected]:
        recompute = CHECKED[self.heuristic.name]
        found = {}
        for time in self.times:
            index = self.grid.index(time)
            assert index is not None
            found[time] = recompute(readings.at(index), self.heuristic.parameters, self.scraping)
        return found

    def _compare_records(self, time: Milliseconds) -> None:
        for series, samples in self.recorded.items():
            recorded = samples.get(time, {})
            if series == STATUS:
                recorded = {
                    labels - {("rule", self.heuristic.name)}: value for labels, value in recorded.items()
                }
            expected = _values_of(self.expected[time], series)
            for labels in {**expected, **recorded}:
                self.result.values += 1
                ours, theirs = expected.get(labels), recorded.get(labels)
                if same(ours, theirs):
                    continue
                by_last = _values_of(self.expected_by_last_scrape[time], series).get(labels)
                self._differs(same(by_last, theirs), time, series, labels, ours, theirs)

    def _compare_alert(self, position: int, alert: Alert) -> None:
        states = self._states(alert, position, self.expected)
        late: Mapping[Milliseconds, dict[Labels, str]] | None = None
        for time, alerting in self.alerting_by_time:
            expected = {labels | self._own_labels(alert): state for labels, state in states[time].items()}
            recorded = {
                labels: state for labels, state in alerting.items() if self._own_labels(alert) <= labels
            }
            for labels in {**expected, **recorded}:
                self.result.values += 1
                ours, theirs = expected.get(labels), recorded.get(labels)
                if ours != theirs and not (theirs is None and time in self.restoring):
                    late = late or self._states(alert, position, self.expected_by_last_scrape)
                    by_last = late[time].get(labels - self._own_labels(alert))
                    self._differs(by_last == theirs, time, "ALERTS", labels, ours, theirs)

    def _find_foreign_alerts(self) -> None:
        """Alerts of the rule's name whose labels are those of none of its alerts."""
        known = [self._own_labels(alert) for alert in self.rules.alerts]
        for time, alerting in self.alerting_by_time:
            for labels, state in alerting.items():
                if not any(own <= labels for own in known):
                    self._differs(False, time, "ALERTS", labels, None, state)

    @cached_property
    def alerting_by_time(self) -> list[tuple[Milliseconds, dict[Labels, str]]]:
        """At each evaluation, the states of the alerts by all their other labels."""
        name = ("alertname", self.heuristic.name)
        found = []
        for time in self.times:
            if time >= self.window.start:
                states = {}
                for labels in self.alerting.get(time, {}):
                    state = dict(labels)["alertstate"]
                    states[labels - {name, ("alertstate", state)}] = state
                found.append((time, states))
        return found

    @cached_property
    def restoring(self) -> list[Milliseconds]:
        """The evaluations at which ALERTS may be missing."""
        if self.window.restarted is None:
            return []
        return [time for time in self.times if time >= self.window.restarted][:RESTORING]

    def _own_labels(self, alert: Alert) -> Labels:
        """What tells an alert of the rule from its others."""
        return frozenset({"rule": self.heuristic.name, "severity": alert.severity, **alert.labels}.items())

    def _states(
        self, alert: Alert, position: int, expected: Mapping[Milliseconds, Expected]
    ) -> dict[Milliseconds, dict[Labels, str]]:
        conditions = [expected[time].conditions[position] for time in self.times]
        found = alert_states(self.times, conditions, alert.pending, alert.keep_firing)
        return dict(zip(self.times, found, strict=True))

    def _differs(
        self,
        agrees_by_last_scrape: bool,
        time: Milliseconds,
        series: str,
        labels: Labels,
        expected: float | str | None,
        recorded: float | str | None,
    ) -> None:
        if agrees_by_last_scrape:
            self.result.by_last_scrape += 1
        else:
            self.result.disagreements.append(
                Disagreement(self.heuristic.name, time, series, labels, expected, recorded)
            )


def same(one: float | None, other: float | None) -> bool:
    """Equal to 1e-9 (of numbers above 1, relatively); None and NaN equal only themselves."""
    if one is None or other is None:
        return one is other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _values_of(expected: Expected, series: str) -> Mapping[Labels, float]:
    return expected.status() if series == STATUS else expected.records[series]


def _grid(rule: str, times: Sequence[Milliseconds], interval: Milliseconds) -> Grid:
    """All evaluations, also missed ones. Raises UserError where they are no whole intervals apart."""
    if not times:
        return Grid(0, interval, 0)
    if any((time - times[0]) % interval for time in times):
        raise UserError(
            f"{rule} was evaluated at other intervals before Prometheus was reconfigured; "
            "give a --start behind that"
        )
    return Grid(times[0], interval, 1 + (times[-1] - times[0]) // interval)
