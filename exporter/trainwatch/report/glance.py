"""The few numbers on the first screen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainwatch.evaluation.analysis import Analysis
from trainwatch.report import shares
from trainwatch.report.cost import cost_of_run
from trainwatch.words import count, duration, money, number, percent, share, span


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    note: str


def at_a_glance(analysis: Analysis, price: float | None = None) -> list[Figure]:
    """Returns the figures; `price`: dollars per hour of one node."""
    return [
        _duration(analysis),
        *_cost(analysis, price),
        _utilisation(analysis, "GPU"),
        _utilisation(analysis, "CPU"),
        _steps(analysis),
        _waiting(analysis),
    ]


def _duration(analysis: Analysis) -> Figure:
    name = "Duration" if analysis.finished else "Duration so far"
    ranks = count(analysis.ranks, "rank") if analysis.ranks else "no rank seen"
    return Figure(
        name, duration(shares.run_seconds(analysis)), f"{count(len(analysis.nodes), 'node')}, {ranks}"
    )


def _cost(analysis: Analysis, price: float | None) -> list[Figure]:
    bill = cost_of_run(analysis, price)
    if bill is None or price is None:
        return []
    name = "Cost" if analysis.finished else "Cost so far"
    return [Figure(name, money(bill), f"{money(price)} per node and hour")]


def _utilisation(analysis: Analysis, resource: str) -> Figure:
    """Returns the median over samples; for several nodes, the lowest and the highest median."""
    rows = [row for row in analysis.usage if row.resource == resource and math.isfinite(row.p50)]
    name = f"{resource} in use"
    if not rows:
        absent = resource == "GPU" and not any(analysis.gpus.values())
        return Figure(name, "–", "no GPU was seen" if absent else "not read")
    low, high = min(row.p50 for row in rows), max(row.p50 for row in rows)
    top = max(row.p95 for row in rows)
    return Figure(name, span(low, high), f"median; p95 {percent(top)}")


def _steps(analysis: Analysis) -> Figure:
    if not analysis.steps:
        return Figure("Steps", "–", "none recorded")
    train = [row for row in analysis.steps if row.phase == "train"] or analysis.steps
    slowest, fastest = max(train, key=lambda row: row.p50), min(train, key=lambda row: row.p50)
    ranks = "" if len(train) == 1 else f" on rank {slowest.rank}, the slowest"
    if len(train) > 1 and duration(slowest.p50) == duration(fastest.p50):
        ranks = f" on each of {len(train)} ranks"
    note = f"median of {number(slowest.count)}{ranks}"
    return Figure(f"{slowest.phase.capitalize()} step", duration(slowest.p50), note)


def _waiting(analysis: Analysis) -> Figure:
    inside = shares.inside_steps(analysis)
    if not inside.parts:
        return Figure("Waiting for data", "–", "not recorded")
    return Figure("Waiting for data", share(inside.fraction("data_wait"), 1), "of the time in steps")
