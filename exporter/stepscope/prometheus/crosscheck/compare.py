"""Compares what a rule recorded and alerted on with what it must have, at each of its evaluations."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

from stepscope.measurements.scraped import Labels, without
from stepscope.prometheus.crosscheck.expected import Expected, alert_states, expected
from stepscope.prometheus.crosscheck.readings import Readings
from stepscope.prometheus.crosscheck.rule_files import FileGroup, pace
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Pace, Server
from stepscope.prometheus.crosscheck.stored import Stored, Window
from stepscope.prometheus.rules.groups import STATUS
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules
from stepscope.report.terminal import shown
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.promql import OWNER, Scraping

TOLERANCE = 1e-9
ALERTS = "ALERTS"
Values: TypeAlias = Mapping[Labels, float | str]


@dataclass(frozen=True)
class Disagreement:
    """A series at one moment; None means no value."""

    rule: str
    time: Milliseconds
    series: str
    labels: Labels
    expected: float | str | None
    recorded: float | str | None


@dataclass
class Outcome:
    """The result of checking one rule for one run.

    `evaluations` counts those that judged the run. At `firing` of them, Prometheus had a firing alert of the
    rule. `by_last_scrape` counts those `values` that agree only if the last scrapes were not stored yet.
    """

    rule: str
    run: str
    evaluations: int = 0
    firing: int = 0
    values: int = 0
    by_last_scrape: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)


def check_rules(
    server: Server,
    options: Options,
    intended: Sequence[FileGroup],
    loaded: Mapping[str, Pace],
    windows: Sequence[Window],
) -> list[Outcome]:
    """Checks every rule for every run. Raises UserError if Prometheus fails.

    `intended`: the groups that the options give; `loaded`: how the server evaluates groups, by their names.
    """
    meant = {group.name: pace(group) for group in intended}
    rules = alerting_rules(options)
    outcomes: list[Outcome] = []
    with shown("rules checked", len(rules) * len(windows)) as progress:
        for rule in rules:
            group = f"stepscope-{rule.name}"
            for window in windows:
                if group in loaded:
                    interval = loaded[group].interval
                    stored = Stored(server, rule, options.scraping, interval, window, options.labels())
                    outcome = _Check(server, rule, options.scraping, stored).outcome()
                    outcome.disagreements += of_pace(rule.name, window.end, meant[group], loaded[group])
                else:
                    missing = Disagreement(
                        rule.name, window.end, f"group {group}", frozenset(), "a group", None
                    )
                    outcome = Outcome(rule.name, window.run, disagreements=[missing])
                outcomes.append(outcome)
                progress(len(outcomes))
    return outcomes


def of_pace(rule: str, time: Milliseconds, meant: Pace, loaded: Pace) -> Iterator[Disagreement]:
    """Yields what is not evaluated as it was rendered: its interval, or how long an alert waits or stays."""
    none: Labels = frozenset()
    if meant.interval != loaded.interval:
        yield Disagreement(rule, time, "interval", none, meant.interval / 1000, loaded.interval / 1000)
    if len(meant.alerts) != len(loaded.alerts):
        yield Disagreement(rule, time, "alerts", none, len(meant.alerts), len(loaded.alerts))
    for own, found in zip(meant.alerts, loaded.alerts, strict=False):
        for name, ours, theirs in zip(("for", "keep_firing_for"), own, found, strict=True):
            if ours != theirs and not math.isnan(theirs):
                yield Disagreement(rule, time, name, none, ours, theirs)


class _Check:
    """The check of what was stored of one rule. Raises UserError if Prometheus fails."""

    def __init__(self, server: Server, rule: Rule[Any, Any], scraping: Scraping, stored: Stored) -> None:
        self.server, self.stored = server, stored
        self.rule, self.scraping = rule, scraping
        self.window, self.times, self.grid = stored.window, stored.times, stored.grid
        self.result = Outcome(rule.name, self.window.run)
        self.delays = 0, *self.window.scrapes.delays  # first of an evaluation that missed no scrape
        self._found: list[dict[Milliseconds, Expected]] = []

    def outcome(self) -> Outcome:
        if not self.times:
            self._expect_nothing()
        expected = {series: cache(partial(self._values, series)) for series in self.stored.records}
        for time in self.times:
            if time >= self.window.start:
                before = self.result.values
                for series, samples in self.stored.records.items():
                    self._compare(time, series, samples.get(time, {}), expected[series])
                self.result.evaluations += self.result.values > before
        known = [self.stored.own_labels(alert) for alert in self.stored.rules.alerts]
        for position, own in enumerate(known):
            states = cache(partial(self._states, position))
            for time, alerting in self.stored.alerting:
                self._compare(
                    time, ALERTS, {each: alerting[each] for each in alerting if own <= each}, states
                )
        self.result.firing = sum("firing" in alerting.values() for _, alerting in self.stored.alerting)
        self.result.disagreements += [
            Disagreement(self.rule.name, time, ALERTS, labels, None, state)
            for time, alerting in self.stored.alerting
            for labels, state in alerting.items()
            if not any(own <= labels for own in known)
        ]
        self.result.disagreements.sort(key=lambda found: (found.time, found.series, sorted(found.labels)))
        return self.result

    def _expect_nothing(self) -> None:
        """Reports a rule that recorded nothing although it had something to judge."""
        step = self.grid.step
        grid = Grid(self.window.start, step, 1 + (self.window.end - self.window.start) // step)
        readings = Readings(self.server, self.window.run, grid, speed=self.window.speed)
        judged = [
            (grid.time(index), found.targets)
            for index in range(grid.count)
            if grid.time(index) >= (self.window.restarted or 0)
            and (found := expected(self.rule, readings.at(index), self.scraping)).targets
        ]
        # Two intervals contain at least one evaluation.
        if judged and judged[-1][0] - judged[0][0] >= 2 * step:
            time, targets = judged[-1]
            status = self.rule.name, time, STATUS
            self.result.disagreements += [
                Disagreement(*status, labels, "a status", None) for labels in targets
            ]

    def _expected(self, number: int) -> dict[Milliseconds, Expected]:
        """Returns what is expected at each evaluation if it missed the scrapes of the delay `number`."""
        if number == len(self._found):
            delay = self.delays[number]
            readings = Readings(self.server, self.window.run, self.grid, delay, self.window.speed)
            found = {}
            for time in self.times:
                index = self.grid.index(time)
                assert index is not None
                found[time] = expected(self.rule, readings.at(index), self.scraping)
            self._found.append(found)
        return self._found[number]

    def _values(self, series: str, number: int) -> dict[Milliseconds, Values]:
        return {time: found.values_of(series) for time, found in self._expected(number).items()}

    def _states(self, position: int, number: int) -> dict[Milliseconds, Values]:
        """Returns the states of an alert of the rule, with its own labels."""
        alert, expected = self.stored.rules.alerts[position], self._expected(number)
        own = self.stored.own_labels(alert)
        conditions = [
            frozenset(without(labels, *OWNER) for labels in expected[time].conditions[position])
            for time in self.times
        ]
        found = alert_states(self.times, conditions, alert.pending, alert.keep_firing)
        return {
            time: {labels | own: state for labels, state in states.items()}
            for time, states in zip(self.times, found, strict=True)
        }

    def _compare(
        self,
        time: Milliseconds,
        series: str,
        recorded: Values,
        expected: Callable[[int], Mapping[Milliseconds, Values]],
    ) -> None:
        """Compares what one evaluation recorded; `expected` takes the number of a delay."""
        meant = expected(0)[time]
        for labels in {**meant, **recorded}:
            self.result.values += 1
            ours, theirs = meant.get(labels), recorded.get(labels)
            if same(ours, theirs) or (series == ALERTS and theirs is None and time in self.stored.restoring):
                continue
            late = range(1, len(self.delays))
            if any(same(expected(number)[time].get(labels), theirs) for number in late):
                self.result.by_last_scrape += 1
            else:
                self.result.disagreements.append(
                    Disagreement(self.rule.name, time, series, labels, ours, theirs)
                )


def same(ours: float | str | None, theirs: float | str | None) -> bool:
    """Returns whether values are equal to 1e-9, relative above 1; None and NaN equal only themselves."""
    if not isinstance(ours, float) or not isinstance(theirs, float):
        return ours == theirs
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
