"""The report as one JSON document for programs: report.json. docs/report.schema.json describes it.

`profiler-reports/<Rule>.json` next to it holds the details of each rule, which have no fixed form.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from trainwatch.evaluation.analysis import Analysis, RuleResult, StepDistribution
from trainwatch.evaluation.json_values import json_value
from trainwatch.report import sentences, shares
from trainwatch.report.cost import cost_of_finding, cost_of_run
from trainwatch.report.figures import main_steps
from trainwatch.report.problems import problems
from trainwatch.report.right_sizing import predictions
from trainwatch.words import JOULES_PER_KWH

# Increases if a field disappears or changes its meaning, not for a new field.
SCHEMA_VERSION = 2


def document(analysis: Analysis, price: float | None = None) -> dict[str, Any]:
    """Returns the whole report without charts, as JSON values; None for unknown numbers.

    `price`: dollars per hour of one node.
    """
    content = {
        "schema_version": SCHEMA_VERSION,
        "run": _run(analysis),
        "verdict": _verdict(analysis, price),
        "usage": [asdict(row) for row in analysis.usage],
        "gpus": [asdict(use) for use in analysis.gpu_use],
        "low_gpu_snapshots": [asdict(row) for row in analysis.low_gpu_snapshots],
        "parts": _parts(shares.parts_of_the_run(analysis)),
        "phases": _parts(shares.phases(analysis)),
        "components": _parts(shares.inside_steps(analysis)),
        "steps": [_steps(row) for row in analysis.steps],
        "loaders": analysis.loaders,
        "rules": [_rule(rule) for rule in analysis.rules],
        "energy": _energy(analysis),
        "cost": _cost(analysis, price),
        "predictions": [asdict(row) for row in predictions(analysis, price)],
        "measurement": {
            "interval": analysis.interval,
            "samples_taken": analysis.samples_taken,
            "samples_missed": analysis.samples_missed,
            "unknowns": analysis.unknowns,
            "versions": analysis.versions,
        },
    }
    known: dict[str, Any] = json_value(content)
    return known


def render_json(analysis: Analysis, price: float | None = None) -> str:
    """Returns the document as text with a newline at the end."""
    return json.dumps(document(analysis, price), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _run(analysis: Analysis) -> dict[str, Any]:
    return {
        "name": analysis.run,
        "command": analysis.command,
        "exit_status": analysis.exit_status,
        "finished": analysis.finished,
        "start": analysis.start,
        "first_step_start": analysis.first_step_start,
        "last_step_end": analysis.last_step_end,
        "end": analysis.end,
        "seconds": shares.run_seconds(analysis),
        "framework": analysis.framework,
        "world_size": analysis.world_size,
        "ranks": analysis.ranks,
        "nodes": [
            {"name": name, "cores": analysis.cores.get(name, 0), "gpus": analysis.gpus.get(name, [])}
            for name in analysis.nodes
        ],
    }


def _verdict(analysis: Analysis, price: float | None) -> dict[str, Any]:
    return {
        "status": sentences.status_of_run(analysis),
        "sentences": sentences.verdict(analysis, price),
        "findings": [
            {
                "title": problem.title,
                "rule": problem.rule.rule,
                "also": [rule.rule for rule in problem.also],
                "finding": problem.rule.finding,
                "recommendation": problem.rule.recommendation,
                "seconds_lost": problem.seconds_lost,
                "share_of_run": _share_of_run(analysis, problem.rule),
                "cost": cost_of_finding(analysis, problem.rule, price),
            }
            for problem in problems(analysis)
        ],
    }


def _share_of_run(analysis: Analysis, rule: RuleResult) -> float | None:
    whole = shares.run_seconds(analysis)
    return rule.seconds_lost / whole if whole and 0 < rule.seconds_lost <= whole else None


def _parts(whole: shares.Whole) -> dict[str, Any]:
    return {
        "seconds": whole.seconds,
        "parts": [
            {"name": part.key, "seconds": part.seconds, "share": part.fraction} for part in whole.parts
        ],
    }


def _steps(row: StepDistribution) -> dict[str, Any]:
    content = asdict(row)
    histogram = {name: content.pop(name) for name in ("edges", "counts")}
    return {**content, "histogram": histogram}


def _rule(rule: RuleResult) -> dict[str, Any]:
    content = asdict(rule)
    del content["details"], content["about"], content["debugger_parameters"]
    return content


def _energy(analysis: Analysis) -> dict[str, Any] | None:
    energy = analysis.energy
    if energy is None:
        return None
    steps = max((row.count for row in main_steps(analysis)), default=0)
    return {
        "joules": energy.joules,
        "kilowatt_hours": energy.joules / JOULES_PER_KWH,
        "joules_per_step": energy.joules / steps if steps else None,
        "gpus": [asdict(gpu) for gpu in energy.gpus],
        "gpus_without": energy.gpus_without,
    }


def _cost(analysis: Analysis, price: float | None) -> dict[str, Any] | None:
    amount = cost_of_run(analysis, price)
    if amount is None:
        return None
    return {
        "currency": "USD",
        "price_per_node_hour": price,
        "nodes": len(analysis.nodes),
        "seconds": shares.run_seconds(analysis),
        "amount": amount,
    }
