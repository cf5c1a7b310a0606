"""Computes what a rule must record: its judgement of the scraped counters, and the alerts that follow."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stepscope.exporter.sampling.active_runs import UNNAMED
from stepscope.measurements.scraped import Labels, Moment, Vector
from stepscope.prometheus.crosscheck.server import Milliseconds
from stepscope.prometheus.rules.groups import FINDING, STATUS
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import Expression
from stepscope.rules.parts.promql import PrometheusRules, Scraping


@dataclass(frozen=True)
class Expected:
    """The values that a rule must record at one moment, and each alert's value where its condition holds."""

    records: Mapping[str, Vector]
    targets: Collection[Labels]
    findings: tuple[Vector, ...]
    alert_labels: tuple[Labels, ...] = ()  # what distinguishes each alert of the rule from its others

    @property
    def conditions(self) -> tuple[frozenset[Labels], ...]:
        """Returns where each alert's condition holds."""
        return tuple(map(frozenset, self.findings))

    def status(self) -> Vector:
        """Returns 1 where the condition of some alert holds, otherwise 0."""
        holds = frozenset().union(*self.conditions)
        return {labels: float(labels in holds) for labels in (*self.targets, *holds)}

    def values_of(self, series: str) -> Mapping[Labels, float]:
        """Returns the status, the findings with the labels of their alerts, or one of the records."""
        if series == FINDING:
            alerts = zip(self.findings, self.alert_labels, strict=True)
            return {labels | own: value for found, own in alerts for labels, value in found.items()}
        return self.status() if series == STATUS else self.records[series]


def expected(rule: Rule[Any, Any], now: Moment, scraping: Scraping) -> Expected:
    """Judges what was scraped with the code that judges recordings."""
    rules = _rules(rule, scraping)
    scraped = rule.scraped(now, scraping)
    expressions = {record.name: record.expression for record in rules.records}
    records = {
        **{name: each.value(now) for name, each in expressions.items() if isinstance(each, Expression)},
        **scraped.records,
    }
    judgement = rule.judge_live(scraped.view, scraping.sample_interval)
    findings = tuple(
        {
            labels: value
            for labels, value, holds in zip(
                scraped.labels, condition.value.tolist(), condition.holds.tolist(), strict=True
            )
            if holds and (rule.any_process or not _is_unnamed(labels))
        }
        for condition in judgement.conditions
    )
    of_record = expressions.get(f"{rules.targets}")
    targets = of_record if isinstance(of_record, Expression) else rules.targets
    assert isinstance(targets, Expression)
    alert_labels = tuple(frozenset(alert.labels.items()) for alert in rules.alerts)
    judged = [each for each in targets.value(now) if rule.any_process or not _is_unnamed(each)]
    return Expected(records, judged, findings, alert_labels)


def _is_unnamed(labels: Labels) -> bool:
    return any(name == "run" and re.fullmatch(UNNAMED, value) for name, value in labels)


@lru_cache(maxsize=256)
def _rules(rule: Rule[Any, Any], scraping: Scraping) -> PrometheusRules:
    rules = rule.prometheus_rules(scraping)
    assert rules is not None
    return rules


def alert_states(
    times: Sequence[Milliseconds],
    conditions: Iterable[frozenset[Labels]],
    pending: float = 0.0,
    keep_firing: float = 0.0,
) -> list[dict[Labels, str]]:
    """Returns "pending" or "firing" by labels, per evaluation; `pending` and `keep_firing` are seconds."""
    began: dict[Labels, Milliseconds] = {}
    ceased: dict[Labels, Milliseconds] = {}
    firing: set[Labels] = set()
    found = []
    for time, holds in zip(times, conditions, strict=True):
        for labels in holds:
            began.setdefault(labels, time)
            ceased.pop(labels, None)
        for labels in began.keys() - holds:
            since = ceased.setdefault(labels, time)
            if labels not in firing or time - since >= 1000 * keep_firing:
                del began[labels], ceased[labels]
                firing.discard(labels)
        firing |= {labels for labels in holds if time - began[labels] >= 1000 * pending}
        found.append({labels: "firing" if labels in firing else "pending" for labels in began})
    return found
