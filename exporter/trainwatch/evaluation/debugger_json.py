"""The result of a rule as SageMaker Debugger writes it, so that notebooks written for it keep working."""

from __future__ import annotations

import math
from typing import Any

from trainwatch.evaluation.analysis import RuleResult

# Where Debugger's RuleParameters differ from a rule's own: its name of each line, and the parameter shown.
_LINES = {
    "StepOutlier": (
        ("threshold", "stddev"),
        ("mode", "mode"),
        ("n_outliers", "n_outliers"),
        ("stddev", "stddev"),
    ),
}


def rule_json(result: RuleResult) -> dict[str, Any]:
    """The content of `profiler-reports/<Rule>.json`. A number that is not known is null: JSON has no NaN.

    Debugger has `RuleTriggered`, `Violations`, `Datapoints`, `RuleParameters` and `Details`; the fields in
    lower case are our own.
    """
    return {
        "RuleTriggered": result.triggered,
        "Violations": result.violations,
        "Datapoints": result.datapoints,
        "RuleParameters": _parameters(result),
        "Details": _json(result.details),
        "rule": result.rule,
        "status": result.status,
        "finding": result.finding,
        "recommendation": result.recommendation,
        "seconds_lost": _json(result.seconds_lost),
    }


def _parameters(result: RuleResult) -> str:
    """ "threshold:50" and so on, a line a parameter, whole numbers without a point."""
    lines = _LINES.get(result.rule, tuple((name, name) for name in result.parameters))
    return "\n".join(f"{line}:{_written(result.parameters[name])}" for line, name in lines)


def _written(value: float | int | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
