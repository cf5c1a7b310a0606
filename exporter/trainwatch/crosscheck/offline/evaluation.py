"""Evaluates rules over stored series at moments of the past, as Prometheus does as they come.

Prometheus evaluates its rules at the present only, and `promtool tsdb create-blocks-from rules` knows no
alerts, no order of rules, and no end of a recorded series: what a rule recorded 5 minutes ago still counts.
Here each rule of a group is evaluated by a real Prometheus at each moment, and what it says is stored before
the next rule is: recorded values as they come, the end of a series where it has none any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trainwatch.crosscheck.alerts import alert_states
from trainwatch.crosscheck.offline.prometheus import LocalPrometheus
from trainwatch.crosscheck.offline.remote_write import Series
from trainwatch.crosscheck.offline.rule_files import FileGroup, FileRule
from trainwatch.crosscheck.server import Grid, Milliseconds, Server
from trainwatch.errors import UserError
from trainwatch.measurements.scraped import Labels, Vector, without


def evaluate_groups(
    server: Server,
    store: LocalPrometheus,
    groups: Sequence[FileGroup],
    start: Milliseconds,
    end: Milliseconds,
    progress: Callable[[int], None],
) -> None:
    """Stores what the rules say from `start` to `end`. `progress` is told the number of rules done.

    Raises UserError where Prometheus refuses an expression.
    """
    done = 0
    for group in groups:
        grid = Grid(start, group.interval, 1 + (end - start) // group.interval)
        for rule in group.rules:
            try:
                found = server.instants(rule.expression, grid)
            except UserError as error:
                raise UserError(f"{group.name}, {rule.name}: {error}") from None
            store.write(_alerts(rule, grid, found) if rule.is_alert else _records(rule, grid, found))
            done += 1
            progress(done)


def _records(rule: FileRule, grid: Grid, found: Sequence[Vector]) -> Iterator[Series]:
    labelled = [{_labelled(labels, rule): value for labels, value in vector.items()} for vector in found]
    return _series(rule.name, grid, labelled)


def _alerts(rule: FileRule, grid: Grid, found: Sequence[Vector]) -> Iterator[Series]:
    times = [grid.time(index) for index in range(grid.count)]
    conditions = [frozenset(_labelled(labels, rule) for labels in vector) for vector in found]
    states = alert_states(times, conditions, rule.pending, rule.keep_firing)
    name = ("alertname", rule.name)
    alerting: list[Vector] = [
        {labels | {name, ("alertstate", state)}: 1.0 for labels, state in alerts.items()} for alerts in states
    ]
    return _series("ALERTS", grid, alerting)


def _labelled(labels: Labels, rule: FileRule) -> Labels:
    return without(labels, *rule.labels) | frozenset(rule.labels.items())


def _series(name: str, grid: Grid, found: Sequence[Vector]) -> Iterator[Series]:
    """By series its values, and None where it has none any more."""
    for labels in dict.fromkeys(labels for vector in found for labels in vector):
        points: list[tuple[Milliseconds, float | None]] = []
        for index, vector in enumerate(found):
            value = vector.get(labels)
            if value is not None or (points and points[-1][1] is not None):
                points.append((grid.time(index), value))
        yield {"__name__": name, **dict(labels)}, points
