"""Cross-checks without a server: replays a recording into a temporary Prometheus.

Prometheus evaluates its rules only for the present. `promtool tsdb create-blocks-from rules` evaluates no
alerts, keeps no order of rules, and never ends a recorded series. Here a real Prometheus evaluates each rule
of a group at each moment, and the result is stored before the next rule: recorded values, and the end of
series that have no value any more.
"""

from collections.abc import Callable, Iterator, Sequence

from stepscope.common.errors import UserError
from stepscope.measurements.scraped import Labels, Vector, without
from stepscope.prometheus.crosscheck.compare import Outcome, check_rules
from stepscope.prometheus.crosscheck.expected import alert_states
from stepscope.prometheus.crosscheck.offline.prometheus import LocalPrometheus, local_prometheus
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.prometheus.crosscheck.rule_files import (
    FileGroup,
    FileRule,
    Rendered,
    metrics,
    pace,
    read_groups,
    rules_of,
)
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Series, Server
from stepscope.prometheus.crosscheck.stored import ScrapeTimes, Window
from stepscope.report.terminal import shown
from stepscope.rules import all_rules

LOOKBACK = 300_000  # milliseconds: VictoriaMetrics looks back for a value as far as a query's step


def check_recording(
    run: RecordedRun, rules: Rendered, start: Milliseconds | None, end: Milliseconds | None
) -> list[Outcome]:
    """Checks a recording, scraped at the interval that the rules are rendered for.

    Each evaluation is at the time of a scrape. Raises UserError if Prometheus is not installed, or a rule
    file cannot be evaluated.
    """
    groups = [group for place, text in rules.texts.items() for group in read_groups(text, place)]
    checked = [group for group in groups if group.name.removeprefix("stepscope-") in all_rules()]
    intended = rules_of(rules.options)
    interval = round(1000 * rules.options.scraping.interval)
    begin = round(1000 * run.start)
    moments = range(begin, round(1000 * run.end) + 1, interval)
    with local_prometheus() as store, Server(store.url) as server:
        with shown("scrapes replayed", len(moments) * len(run.nodes)) as progress:
            store.write(run.scraped(moments, metrics([*checked, *intended]), progress))
        with shown("rules evaluated", sum(len(group.rules) for group in checked)) as progress:
            evaluate(server, store, checked, begin, moments[-1], progress)
        window = Window(
            run.name,
            max(begin, start) if start is not None else begin,
            min(moments[-1], end) if end is not None else moments[-1],
            ScrapeTimes(interval, unseen=0),
            restarted=None,
        )
        paces = {group.name: pace(group) for group in checked}
        return check_rules(server, rules.options, intended, paces, [window])


def evaluate(
    server: Server,
    store: LocalPrometheus,
    groups: Sequence[FileGroup],
    start: Milliseconds,
    end: Milliseconds,
    progress: Callable[[int], None],
) -> None:
    """Evaluates and stores the rules from `start` to `end`; calls `progress` with the number of rules done.

    Raises UserError if Prometheus refuses an expression.
    """
    done = 0
    for group in groups:
        grid = Grid(start, group.interval, 1 + (end - start) // group.interval)
        for rule in group.rules:
            try:
                if not rule.is_alert and rule.name in rule.expression:
                    evaluate_in_turn(server, store, rule, grid)
                else:
                    found = server.instants(rule.expression, grid)
                    store.write(_alerts(rule, grid, found) if rule.is_alert else _records(rule, grid, found))
            except UserError as error:
                raise UserError(f"{group.name}, {rule.name}: {error}") from None
            done += 1
            progress(done)


def evaluate_in_turn(server: Server, store: LocalPrometheus, rule: FileRule, grid: Grid) -> None:
    """Evaluates a record that reads its own past: each moment is stored before the next one."""
    before: frozenset[Labels] = frozenset()
    for index in range(grid.count):
        moment = Grid(grid.time(index), LOOKBACK, 1)
        (found,) = server.instants(rule.expression, moment)
        vector = {_labelled(labels, rule): value for labels, value in found.items()}
        ended = dict.fromkeys(before - vector.keys(), None)
        store.write(
            ({"__name__": rule.name, **dict(labels)}, [(moment.start, value)])
            for labels, value in (*vector.items(), *ended.items())
        )
        before = frozenset(vector)


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
    """Yields the values of each series, and None where the series ends."""
    for labels in dict.fromkeys(labels for vector in found for labels in vector):
        points: list[tuple[Milliseconds, float | None]] = []
        for index, vector in enumerate(found):
            value = vector.get(labels)
            if value is not None or (points and points[-1][1] is not None):
                points.append((grid.time(index), value))
        yield {"__name__": name, **dict(labels)}, points
