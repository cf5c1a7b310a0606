"""Compares the alerts on hardware with what their rendered expressions give at the same times.

These rules only alert: no code of ours judges their counters again. So the server evaluates the rendered
expressions, which shows rules that were changed, that are not loaded, or that wait for another time.
"""

from collections.abc import Iterator, Mapping

from stepscope.measurements.scraped import Labels, Vector, without
from stepscope.prometheus.crosscheck.compare import Disagreement, Outcome, of_pace
from stepscope.prometheus.crosscheck.expected import alert_states
from stepscope.prometheus.crosscheck.rule_files import FileGroup, FileRule, pace
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Pace, Server
from stepscope.rules.parts.promql import OWNER

NODES = "all nodes"  # in the column of runs
# Evaluations in a row at which an alert must differ: one may have missed a scrape, or a restart.
IN_A_ROW = 3
States = Mapping[Milliseconds, Mapping[Labels, str]]  # "pending" or "firing", at each evaluation


def check_hardware(
    server: Server,
    intended: FileGroup,
    loaded: Mapping[str, Pace],
    start: Milliseconds,
    end: Milliseconds,
) -> list[Outcome]:
    """Returns an outcome per rule, without evaluations if the group is not loaded. Raises UserError."""
    names = sorted({rule.labels["rule"] for rule in intended.rules})
    outcomes = {name: Outcome(name, NODES) for name in names}
    if not names or (found := loaded.get(intended.name)) is None:
        return list(outcomes.values())
    for rule in intended.rules:
        outcome, name = outcomes[rule.labels["rule"]], rule.labels["rule"]
        recorded = _recorded(server, rule, start, end)
        expected = _expected(server, rule, found.interval, min(recorded, default=start), start, end)
        outcome.evaluations = max(outcome.evaluations, len(expected))
        outcome.values += sum(len({*expected[time], *recorded.get(time, {})}) for time in expected)
        outcome.firing += sum("firing" in states.values() for states in recorded.values())
        outcome.disagreements += _differences(name, expected, recorded)
    outcomes[names[0]].disagreements += of_pace(intended.name, end, pace(intended), found)
    return list(outcomes.values())


def _recorded(
    server: Server, rule: FileRule, start: Milliseconds, end: Milliseconds
) -> dict[Milliseconds, dict[Labels, str]]:
    chosen = ",".join(f'{label}="{value}"' for label, value in rule.labels.items())
    samples = server.samples(f'ALERTS{{alertname="{rule.name}",{chosen}}}', start, end)
    return {time: _states(vector) for time, vector in samples.items()}


def _states(alerts: Vector) -> dict[Labels, str]:
    return {
        without(labels, "alertname", "alertstate", *OWNER): dict(labels)["alertstate"] for labels in alerts
    }


def _expected(
    server: Server,
    rule: FileRule,
    interval: Milliseconds,
    evaluated: Milliseconds,
    start: Milliseconds,
    end: Milliseconds,
) -> States:
    """Returns the states at the evaluations from `start`, of which `evaluated` is one if it is known."""
    memory = round(1000 * (rule.pending + rule.keep_firing)) + interval
    first = evaluated - (evaluated - start + memory) // interval * interval
    grid = Grid(first, interval, 1 + (end - first) // interval)
    own = without(frozenset(rule.labels.items()), *OWNER)
    conditions = [
        frozenset(without(labels, *OWNER, *rule.labels) | own for labels in vector)
        for vector in server.instants(rule.expression, grid)
    ]
    times = [grid.time(index) for index in range(grid.count)]
    states = alert_states(times, conditions, rule.pending, rule.keep_firing)
    return {time: state for time, state in zip(times, states, strict=True) if time >= start}


def _differences(rule: str, expected: States, recorded: States) -> Iterator[Disagreement]:
    """Yields what differs at `IN_A_ROW` evaluations, once for as long as it lasts."""
    lasting: dict[tuple[Labels, str | None, str | None], int] = {}
    for time in sorted(expected):
        ours, theirs = expected[time], recorded.get(time, {})
        differs = {
            (labels, ours.get(labels), theirs.get(labels))
            for labels in {*ours, *theirs}
            if ours.get(labels) != theirs.get(labels)
        }
        lasting = {each: lasting.get(each, 0) + 1 for each in differs}
        for (labels, state, other), count in lasting.items():
            if count == IN_A_ROW:
                yield Disagreement(rule, time, "ALERTS", labels, state, other)
