"""Converts results to JSON: each rule's as SageMaker Debugger writes it, so that notebooks keep working."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepscope.evaluation.analysis import RuleResult


def rule_json(result: RuleResult) -> dict[str, Any]:
    """Returns the content of `profiler-reports/<Rule>.json`. Unknown numbers are null: JSON has no NaN.

    Debugger has `RuleTriggered`, `Violations`, `Datapoints`, `RuleParameters` and `Details`; the fields in
    lower case are our own.
    """
    return {
        "RuleTriggered": result.triggered if result.debugger_triggered is None else result.debugger_triggered,
        "Violations": result.violations,
        "Datapoints": result.datapoints,
        "RuleParameters": _parameters(result),
        "Details": json_value(result.details),
        "rule": result.rule,
        "status": result.status,
        "finding": result.finding,
        "recommendation": result.recommendation,
        "seconds_lost": json_value(result.seconds_lost or None),  # null: no estimate
        "bands": json_value([asdict(band) for band in result.bands]),
    }


def _parameters(result: RuleResult) -> str:
    """Returns lines such as "threshold:50", one per parameter, whole numbers without a point."""
    lines = result.debugger_parameters or result.parameters
    # Debugger has no live windows: the counts in this file are those of the whole run.
    whole = {name: value for name, value in lines.items() if not name.startswith("live_")}
    return "\n".join(f"{name}:{_written(value)}" for name, value in whole.items())


def _written(value: float | int | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def json_value(value: Any) -> Any:
    """Returns the value with null instead of NaN and infinity, which mean that a number is unknown."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
