"""Evaluates the rules over the scraped series, and compares the alerts with what was planted.

An alert is false if nothing planted explains it. A planted fault explains alerts of its rule with its
cluster, node, run, and GPU or rank, and the consequences that it lists on the same run. They must begin
between its begin and one window after its end. All else is false: a near miss that fires, a neighbour that
is accused, the right rule with a wrong GPU, an alert about a run that has ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from stepscope.prometheus.crosscheck.offline.check import evaluate
from stepscope.prometheus.crosscheck.offline.prometheus import LocalPrometheus
from stepscope.prometheus.crosscheck.rule_files import FileGroup, metrics, read_groups
from stepscope.prometheus.crosscheck.server import Server
from stepscope.prometheus.rules.files import META, RULES, render
from stepscope.prometheus.rules.options import PROMETHEUS, Options
from stepscope.report.terminal import shown
from stepscope.rules.parts.promql import Scraping

from trials.shared_cluster.faults import MINUTE
from trials.shared_cluster.plan import START, Plan, Planted

WINDOW = 15 * MINUTE  # of live rules
PLACES = ("cluster", "instance", "gpu", "rank")


@dataclass(frozen=True)
class FiringAlert:
    """An alert while it fired, in seconds since the start of the simulation."""

    rule: str
    labels: Mapping[str, str]
    begin: float
    end: float


@dataclass
class Score:
    """The outcome for a rule; delays and clearings are in seconds."""

    planted: int = 0
    near: int = 0
    found: int = 0
    misses: int = 0  # near misses,
    silent: int = 0  # and those that stayed silent
    false: int = 0
    delays: list[float] = field(default_factory=list)
    clearings: list[float] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Returns whether everything was found in time, nothing else was accused, and all alerts cleared."""
        cleared = all(seconds <= WINDOW for seconds in self.clearings)
        return self.found == self.planted and self.silent == self.misses and not self.false and cleared


def rule_groups(scrape_interval: float, engine: str = PROMETHEUS) -> list[FileGroup]:
    """Returns the groups with alerts of the rule files that an engine loads."""
    texts = render(Options(scraping=Scraping(scrape_interval), engine=engine))
    groups = [group for place in (RULES, META) for group in read_groups(texts[place], place)]
    return [group for group in groups if any(rule.is_alert for rule in group.rules)]


def needed(groups: Sequence[FileGroup]) -> set[str]:
    """Returns the names of scraped series that the rules read."""
    return metrics(groups) | {"up"}


def firing(store: LocalPrometheus, groups: Sequence[FileGroup], seconds: float) -> list[FiringAlert]:
    """Evaluates the groups over the stored series, and returns the alerts that fired."""
    start, end = 1000 * START, round(1000 * (START + seconds))
    with (
        Server(store.url) as server,
        shown("rules evaluated", sum(len(group.rules) for group in groups)) as progress,
    ):
        evaluate(server, store, groups, start, end, progress)
        return fired(server, groups, start, end)


def intervals(groups: Sequence[FileGroup]) -> dict[str, int]:
    """Returns the milliseconds between two evaluations of each alert: the longest, of alerts of one name."""
    by_interval = sorted(groups, key=lambda group: group.interval)
    return {rule.name: group.interval for group in by_interval for rule in group.rules if rule.is_alert}


def fired(server: Server, groups: Sequence[FileGroup], start: int, end: int) -> list[FiringAlert]:
    """Returns the alerts that fired, as the server has recorded them; times are milliseconds."""
    series = server.points('ALERTS{alertstate="firing", severity!="none"}', start, end)
    apart = intervals(groups)
    found: list[FiringAlert] = []
    for frozen, (times, _) in series.items():
        labels = dict(frozen)
        every = apart[labels["alertname"]]
        begin = before = None
        for time in times.tolist():
            if before is None or time - before > every:
                if begin is not None and before is not None:
                    found.append(_alert(labels, begin, before))
                begin = time
            before = time
        if begin is not None and before is not None:
            found.append(_alert(labels, begin, before))
    return found


def _alert(labels: Mapping[str, str], begin: int, end: int) -> FiringAlert:
    return FiringAlert(
        labels.get("rule", labels["alertname"].removeprefix("Stepscope")),
        labels,
        begin / 1000 - START,
        end / 1000 - START,
    )


def judge(
    plan: Plan, alerts: Sequence[FiringAlert]
) -> tuple[dict[str, Score], list[FiringAlert], list[Planted]]:
    """Returns the score of each rule, the false alerts, and the faults that were missed."""
    scores: dict[str, Score] = {}
    missed: list[Planted] = []
    for planted in plan.planted:
        score = scores.setdefault(planted.rule, Score())
        own = [alert for alert in alerts if _names(plan, planted, alert)]
        if planted.strength == "miss":
            score.misses += 1
            score.silent += not own
            continue
        score.planted += 1
        score.near += planted.strength == "near"
        begin = min((alert.begin for alert in own), default=inf)
        if begin - planted.begin <= 2 * WINDOW:
            score.found += 1
            score.delays.append(begin - planted.begin)
            score.clearings.append(max(alert.end for alert in own) - planted.end)
        else:
            missed.append(planted)
    false = [alert for alert in alerts if not any(_explains(plan, each, alert) for each in plan.planted)]
    for alert in false:
        scores.setdefault(alert.rule, Score()).false += 1
    return scores, false, missed


def _names(plan: Plan, planted: Planted, alert: FiringAlert) -> bool:
    """Returns whether the alert names this fault, at its time."""
    return (
        alert.rule == planted.rule
        and _same_run(plan, planted, alert)
        and all(alert.labels.get(label, value) == value for label, value in planted.labels.items())
        and planted.begin <= alert.begin <= planted.end + WINDOW
    )


def _explains(plan: Plan, planted: Planted, alert: FiringAlert) -> bool:
    if planted.strength != "miss" and _names(plan, planted, alert):
        return True
    return (
        alert.rule in planted.may
        and _same_run(plan, planted, alert)
        and planted.begin <= alert.begin <= planted.end + WINDOW
    )


def _same_run(plan: Plan, planted: Planted, alert: FiringAlert) -> bool:
    if planted.run is None:
        return True
    run = plan.runs[planted.run]
    return alert.labels.get("cluster", planted.labels["cluster"]) == planted.labels["cluster"] and (
        alert.labels.get("run", run.label) == run.label  # a GPU without answer is nobody's
    )


def merged(scores: Iterable[Mapping[str, Score]]) -> dict[str, Score]:
    """Returns the scores of several seeds as one."""
    total: dict[str, Score] = {}
    for rules in scores:
        for rule, score in rules.items():
            into = total.setdefault(rule, Score())
            for name, value in vars(score).items():
                setattr(into, name, getattr(into, name) + value)
    return total
