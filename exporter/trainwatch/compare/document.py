"""The comparison for machines. docs/compare.md lists the fields; `format` is raised when one changes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from trainwatch.compare import sentences
from trainwatch.compare.compared_run import ComparedRun
from trainwatch.compare.comparison import Comparison
from trainwatch.compare.figures import Figure
from trainwatch.compare.parts import Difference

FORMAT = 1


def as_json(comparison: Comparison) -> str:
    """Base units, ratios 0..1 for changes; a number that is not known is null."""
    return json.dumps(document(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "a": _run(comparison.a),
        "b": _run(comparison.b),
        "verdict": sentences.verdict(comparison),
        "phase": comparison.phase,
        "figures": {key: _figure(one) for key, one in comparison.figures.items()},
        "parts": {"step": _difference(comparison.step), "run": _difference(comparison.run)},
        "rules": [
            {"rule": one.rule, "fate": one.fate, "a": one.a.finding, "b": one.b.finding}
            for one in comparison.rules
        ],
        "settings": [{**asdict(one), "differs": one.differs} for one in comparison.settings],
        "predictions": [
            {
                **asdict(one.prediction),
                "made": one.made,
                "measured_in_b": one.measured,
                "in_range": one.in_range,
                "not_comparable": one.why_not or None,
            }
            for one in comparison.predictions
        ],
        "conditions": [
            {"fail_if": one.condition.text, "state": one.state, "reason": one.reason}
            for one in comparison.outcomes
        ],
    }


def _run(run: ComparedRun) -> dict[str, Any]:
    analysis = run.analysis
    return {
        "run": analysis.run,
        "source": run.place,
        "start": analysis.start,
        "end": analysis.end,
        "finished": analysis.finished,
        "exit_status": analysis.exit_status,
        "price_per_node_hour": run.price,
        "unknowns": analysis.unknowns,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    interval = figure.interval
    return {
        "name": figure.name,
        "unit": figure.unit,
        "a": figure.a,
        "b": figure.b,
        "change": figure.change,
        "interval": None if interval is None else [interval.low, interval.high],
        "difference_seen": None if interval is None else interval.seen,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "a": difference.a,
        "b": difference.b,
        "difference": difference.total,
        "parts": [asdict(part) for part in difference.parts],
    }
