"""`promtool test rules` for tests: series in, values and alerts out, many cases in one call."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from stepscope.prometheus.rules.options import ALERT_PREFIX

Values = Sequence[float | None]  # a value a scrape, None where there was none, NaN for a stale marker

JUST_EQUAL = 1e-9


class RuleTest:
    """One storage, filled with series, in which the rules of some files are evaluated from 0 s on."""

    def __init__(self, *rule_files: Path, interval: float = 15) -> None:
        self.rule_files, self.interval = rule_files, interval
        self._series: dict[str, str] = {}
        self._expressions: list[dict[str, Any]] = []
        self._alerts: list[dict[str, Any]] = []
        self._described: list[dict[str, Any]] = []  # the rule files whose descriptions are expected

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

    def firing(self, rule: str, at: float, expected: int, **labels: str) -> None:
        """So many alerts of the rule fire."""
        selector = _selector(alertname=f"{ALERT_PREFIX}{rule}", rule=rule, alertstate="firing", **labels)
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
        if not self._described:
            self._described = [yaml.safe_load(file.read_text()) for file in self.rule_files]
        every = [entry for file in self._described for group in file["groups"] for entry in group["rules"]]
        own = [entry["labels"] for entry in every if entry.get("alert") == f"{ALERT_PREFIX}{rule}"]
        (labels,) = (found for found in own if {**found, **where}.items() >= found.items())
        annotations = {"description": description}
        self.alerts(rule, at, {"labels": {**labels, **where}, "annotations": annotations})

    def _files(self, folder: Path) -> list[Path]:
        """Returns the rule files, with no annotations but descriptions if these are expected."""
        if not self._described:
            return list(self.rule_files)
        for number, file in enumerate(self._described):
            for entry in (entry for group in file["groups"] for entry in group["rules"]):
                if "annotations" in entry:
                    entry["annotations"] = {"description": entry["annotations"]["description"]}
            (folder / f"described-{number}.json").write_text(json.dumps(file))
        return [folder / f"described-{number}.json" for number in range(len(self._described))]

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
            "rule_files": [str(path) for path in self._files(folder)],
            "evaluation_interval": f"{self.interval:g}s",
            "tests": [test],
        }
        path = folder / "test.yml"
        path.write_text(json.dumps(content))  # which is YAML too
        done = subprocess.run(
            ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _expect(self, expression: str, at: float, samples: Sequence[tuple[str, float]]) -> None:
        self._expressions.append(
            {
                "expr": expression,
                "eval_time": f"{at:g}s",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
        )


def _written(value: float | None) -> str:
    if value is None:
        return "_"
    return repr(value) if value == value else "stale"


def _selector(**labels: str) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
