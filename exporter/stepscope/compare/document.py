"""The comparison as JSON. docs/compare.md lists the fields; `format` increases if a field changes."""

import json
from dataclasses import asdict
from typing import Any

from stepscope.compare import sentences
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import Comparison
from stepscope.compare.figures import Figure
from stepscope.compare.parts import Difference
from stepscope.report.document import attributes
from stepscope.report.verdict import status_of_run

FORMAT = 1


def as_json(comparison: Comparison) -> str:
    """Returns JSON text in base units, with changes as ratios (of shares: in points); unknown is null."""
    return json.dumps(document(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "verdict": sentences.verdict(comparison),
        "phase": comparison.phase,
        "work": attributes(comparison.work, "unit", "a", "b", "same"),
        "figures": {key: _figure(figure) for key, figure in comparison.figures.items()},
        "parts": {"step": _difference(comparison.step), "run": _difference(comparison.run)},
        "rules": [
            {"rule": rule.rule, "fate": rule.fate, "a": rule.a.finding, "b": rule.b.finding}
            for rule in comparison.rules
        ],
        "lines": [asdict(line) for line in comparison.lines],
        "operators": [{**asdict(each), "difference": each.difference} for each in comparison.operators],
        "settings": [{**asdict(setting), "differs": setting.differs} for setting in comparison.settings],
        "predictions": [
            {
                **asdict(checked.prediction),
                "made": checked.made,
                "measured_in_b": checked.measured,
                "in_range": checked.in_range,
                "not_comparable": checked.why_not or None,
            }
            for checked in comparison.predictions
        ],
        "conditions": [
            {"fail_if": outcome.condition.text, "state": outcome.state, "reason": outcome.reason}
            for outcome in comparison.outcomes
        ],
    }


def _run(run: ComparedRun) -> dict[str, Any]:
    analysis = run.analysis
    return {
        "run": analysis.run,
        "source": run.place,
        "status": status_of_run(analysis),
        "start": analysis.date,
        "end": analysis.end_date,
        **attributes(analysis, "finished", "exit_status"),
        "price_per_node_hour": run.price,
        "unknowns": analysis.unknowns,
        "gaps": [asdict(gap) for gap in analysis.gaps],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    interval = figure.interval
    return {
        **attributes(figure, "name", "unit", "a", "b", "change"),
        "interval": None if interval is None else [interval.low, interval.high],
        "difference_seen": None if interval is None else interval.seen,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        **attributes(difference, "a", "b"),
        "difference": difference.total,
        "measured_a": difference.measured_a,
        "parts": [{**asdict(part), "difference": part.difference} for part in difference.parts],
    }
