"""Writes the result of a rule as SageMaker Debugger does, so that notebooks for it keep working."""

from __future__ import annotations

from typing import Any

from trainwatch.evaluation.analysis import RuleResult
from trainwatch.evaluation.json_values import json_value


def rule_json(result: RuleResult) -> dict[str, Any]:
    """Returns the content of `profiler-reports/<Rule>.json`. Unknown numbers are null: JSON has no NaN.

    Debugger has `RuleTriggered`, `Violations`, `Datapoints`, `RuleParameters` and `Details`; the fields in
    lower case are our own.
    """
    return {
        "RuleTriggered": result.triggered,
        "Violations": result.violations,
        "Datapoints": result.datapoints,
        "RuleParameters": _parameters(result),
        "Details": json_value(result.details),
        "rule": result.rule,
        "status": result.status,
        "finding": result.finding,
        "recommendation": result.recommendation,
        "seconds_lost": json_value(result.seconds_lost),
    }


def _parameters(result: RuleResult) -> str:
    """Returns lines such as "threshold:50", one per parameter, whole numbers without a point."""
    lines = result.debugger_parameters or result.parameters
    return "\n".join(f"{name}:{_written(value)}" for name, value in lines.items())


def _written(value: float | int | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
