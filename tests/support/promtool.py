"""`promtool test rules` for tests: series in, values and alerts out, many cases in one call."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from stepscope.prometheus.rules.options import ALERT_PREFIX

from tests.support.processes import ran

Values = Sequence[float | None]  # a value a scrape, None where there was none, NaN for a stale marker

JUST_EQUAL = 1e-9


class RuleTest:
    """One storage, filled with series, in which the rules of some files are evaluated from 0 s on.

    Only those rules are evaluated that what is expected reads, and those that these read: at each scrape, or
    every `every` seconds.
    """

    def __init__(self, *rule_files: Path, interval: float = 15, every: float = 0) -> None:
        self.rule_files, self.interval, self.every = rule_files, interval, every or interval
        self._groups: list[Any] = [group for file in rule_files for group in _groups(file)]
        self._series: dict[str, str] = {}
        self._expressions: list[dict[str, Any]] = []
        self._alerts: list[dict[str, Any]] = []
        self._describes = False

    def add(self, series: Mapping[str, Values]) -> None:
        """Series by name and labels."""
        self._series |= {name: " ".join(map(_written, values)) for name, values in series.items()}

    def equals(self, expression: str, at: float, expected: float, tolerance: float = JUST_EQUAL) -> None:
        """The expression gives values that sum up to `expected`, at `at` seconds."""
        self._expect(f"abs(sum({expression}) - {float(expected)!r}) <= bool {tolerance!r}", at, [("{}", 1.0)])

    def gives_nothing(self, expression: str, at: float) -> None:
        self._expect(expression, at, [])

    def status(self, rule: str, at: float, expected: int, **labels: str) -> None:
        """`expected` of the rule's targets have the status 1; there must be some target."""
        self.equals(f"stepscope:rule_status{_selector(rule=rule, **labels)}", at, expected)

    def firing(self, rule: str, at: float, expected: int, state: str = "firing", **labels: str) -> None:
        """So many alerts of the rule fire, or are `pending`."""
        selector = _selector(alertname=f"{ALERT_PREFIX}{rule}", rule=rule, alertstate=state, **labels)
        self.equals(f"count(ALERTS{selector}) or vector(0)", at, expected)

    def alerts(self, rule: str, at: float, *expected: Mapping[str, Mapping[str, str]]) -> None:
        """Exactly these alerts fire: each with `labels` and `annotations`."""
        found = [
            {"exp_labels": dict(one["labels"]), "exp_annotations": dict(one["annotations"])}
            for one in expected
        ]
        self._alerts.append(
            {"eval_time": f"{at:g}s", "alertname": f"{ALERT_PREFIX}{rule}", "exp_alerts": found}
        )

    def describes(self, rule: str, at: float, where: Mapping[str, str], description: str) -> None:
        """The rule's alerts have this description for the target `where`, and no others fire.

        Other annotations are left out of the rule files, so no `alerts` may be expected at the same time.
        """
        self._describes = True
        every = [entry for group in self._groups for entry in group["rules"]]
        own = [entry["labels"] for entry in every if entry.get("alert") == f"{ALERT_PREFIX}{rule}"]
        (labels,) = (found for found in own if {**found, **where}.items() >= found.items())
        labels = {name: value for name, value in labels.items() if "{{" not in value}  # of the run's owner
        annotations = {"description": description}
        self.alerts(rule, at, {"labels": {**labels, **where}, "annotations": annotations})

    def _read_groups(self) -> list[Any]:
        """Returns the rules that what is expected reads, with those that these read, in their groups."""
        rest = {id(rule): rule for group in self._groups for rule in group["rules"]}
        read = [each["expr"] for each in self._expressions]
        read += [f'ALERTS{{alertname="{each["alertname"]}"}}' for each in self._alerts]
        chosen: set[int] = set()
        while more := [rule for rule in rest.values() if any(_reads(text, rule) for text in read)]:
            for rule in more:
                chosen.add(id(rule))
                del rest[id(rule)]
            read = [text for rule in more for text in (rule["expr"], *rule.get("annotations", {}).values())]
        groups = [
            {**group, "rules": [rule for rule in group["rules"] if id(rule) in chosen]}
            for group in self._groups
        ]
        return [group for group in groups if group["rules"]]

    def _file(self, folder: Path) -> Path:
        """Writes the groups that are read, with no annotations but descriptions if these are expected."""
        groups = self._read_groups()
        if self._describes:
            groups = [{**group, "rules": [_described(rule) for rule in group["rules"]]} for group in groups]
        path = folder / "rules.json"
        path.write_text(json.dumps({"groups": groups}))
        return path

    def run(self, folder: Path) -> None:
        """Raises AssertionError with promtool's words where an expectation was not met."""
        assert self._expressions or self._alerts, "nothing is expected"
        test = {
            "interval": f"{self.interval:g}s",
            "input_series": [{"series": name, "values": values} for name, values in self._series.items()],
            "promql_expr_test": self._expressions,
            "alert_rule_test": self._alerts,
        }
        content = {
            "rule_files": [str(self._file(folder))] if self.rule_files else [],
            "evaluation_interval": f"{self.every:g}s",
            "tests": [test],
        }
        path = folder / "test.yml"
        path.write_text(json.dumps(content))  # which is YAML too
        done = ran(["promtool", "test", "rules", path])
        assert done.returncode == 0, done.stdout + done.stderr

    def _expect(self, expression: str, at: float, samples: Sequence[tuple[str, float]]) -> None:
        self._expressions.append(
            {
                "expr": expression,
                "eval_time": f"{at:g}s",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
        )


@cache
def _groups(file: Path) -> list[Any]:
    """Returns the groups of a file that no test changes. Do not change them."""
    return list(yaml.load(file.read_text(), yaml.CSafeLoader)["groups"])


def _described(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    if "annotations" not in rule:
        return rule
    return {**rule, "annotations": {"description": rule["annotations"]["description"]}}


def _reads(text: str, rule: Mapping[str, Any]) -> bool:
    """Returns whether an expression may select what the rule records or fires."""
    name = rule.get("record", "ALERTS")
    if name not in text:
        return False
    labels = {name: text for name, text in rule.get("labels", {}).items() if "$" not in text}
    labels |= {"alertname": rule["alert"]} if "alert" in rule else {}
    for match in re.finditer(rf"(?<![\w:]){name}(?![\w:])(\{{[^}}]*)?", text):
        asked = re.findall(r"""(\w+)=(~?)\\?["']([^"'\\]*)\\?["']""", match[1] or "")
        known = [(how, value, labels[label]) for label, how, value in asked if label in labels]
        if all(re.fullmatch(value, its) if how else value == its for how, value, its in known):
            return True
    return False


def _written(value: float | None) -> str:
    if value is None:
        return "_"
    return repr(value) if value == value else "stale"


def _selector(**labels: str) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
