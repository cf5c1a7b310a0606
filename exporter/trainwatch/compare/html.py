"""The comparison as one HTML page that needs nothing else, in the shell of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwatch.compare import sentences, tables
from trainwatch.compare.comparison import Comparison
from trainwatch.compare.figures import RESOURCES, Figure, change_in_percent
from trainwatch.compare.parts import COUNT, Difference
from trainwatch.compare.step_series import mean_over_ranks
from trainwatch.compare.tables import signed_duration
from trainwatch.measurements.usage import UsageRow
from trainwatch.report import sentences as report_sentences
from trainwatch.report.page import ECHARTS, render_page
from trainwatch.runs.model import Times
from trainwatch.words import NO_NUMBER, amount, duration

# A section is a template of that name in templates/ of this package.
SECTIONS = {
    "compared": "Verdict",
    "figures": "Side by side",
    "difference": "What makes the difference",
    "steps": "Step times",
    "utilisation": "Utilisation",
    "changed_rules": "Rules",
    "configuration": "Configuration",
    "predicted": "Predicted and measured",
}
CONDITIONS = {"conditions": "Conditions"}
UNKNOWNS = {"unknowns": "What could not be read"}
SCRIPTS = (ECHARTS, "waterfall.js", "histogram.js", "page.js")
SMALLEST_BAR = 0.002  # of the larger total; smaller parts share a bar
BINS = 60


def render_comparison(comparison: Comparison) -> str:
    """Returns the whole page as one HTML document."""
    return render_page(
        "compare.html",
        package="trainwatch.compare",
        scripts=SCRIPTS,
        data=_chart_data(comparison),
        sections=SECTIONS
        | (CONDITIONS if comparison.outcomes else {})
        | (UNKNOWNS if sentences.unknowns(comparison) else {}),
        comparison=comparison,
        analyses={"A": comparison.a, "B": comparison.b},
        say=sentences,
        report=report_sentences,
        tables=tables,
        glance=_at_a_glance(comparison),
        usage=_usage(comparison),
        mood=_mood(comparison),
    )


@dataclass(frozen=True)
class Glance:
    """One figure on the first screen."""

    name: str
    value: str
    note: str
    mood: str  # good, bad, or nothing


def _at_a_glance(comparison: Comparison) -> list[Glance]:
    keys = ["step_mean", "item_mean", "steps_per_second", "duration", "cost", "data_wait", "gpu_p50"]
    return [_glance(comparison.figures[key]) for key in keys if key in comparison.figures][:6]


def _glance(figure: Figure) -> Glance:
    """Returns B's amount, with A's and the change as a note."""
    change = NO_NUMBER if figure.change is None else change_in_percent(figure)
    if figure.interval is not None and not figure.interval.seen:
        change = sentences.NO_DIFFERENCE
    note = f"A: {amount(figure.a, figure.unit)}; {change}"
    return Glance(figure.name, amount(figure.b, figure.unit), note, _mood_of(figure))


def _mood_of(figure: Figure) -> str:
    """Returns "good" or "bad" if a figure became better or worse by more than noise."""
    change, less = figure.seen_change, figure.less_is_better
    if change is None or less is None or abs(change) < 0.005:
        return ""
    return "good" if (change < 0) == less else "bad"


def _mood(comparison: Comparison) -> str:
    """Returns the mood of the verdict: good, bad, or open if it is neither."""
    deciding = sentences.pace(comparison) or comparison.figures.get("duration")
    moods = {_mood_of(figure) for figure in (deciding, comparison.figures.get("cost")) if figure} - {""}
    return moods.pop() if len(moods) == 1 else "open"


def _usage(comparison: Comparison) -> list[tuple[str, list[tuple[str, UsageRow]]]]:
    """Returns A's row and B's by resource."""
    runs = (("A", comparison.a), ("B", comparison.b))
    found = []
    for name in RESOURCES.values():
        rows = [(letter, row) for letter, run in runs for row in run.usage if row.resource == name]
        if rows:
            found.append((name, rows))
    return found


def _chart_data(comparison: Comparison) -> dict[str, Any]:
    charts: dict[str, Any] = {}
    for name, difference in (("of-a-step", comparison.step), ("of-the-run", comparison.run)):
        if difference is not None and (difference.a or difference.b):
            charts[name] = _waterfall(difference)
    if comparison.phase is not None:
        durations = [mean_over_ranks(run.steps[comparison.phase]) for run in (comparison.a, comparison.b)]
        charts["steps"] = _histogram(*durations)
    return charts


def _waterfall(difference: Difference) -> dict[str, Any]:
    """Bars from A's total to B's, each starting at the end of the previous one; tiny parts share a bar."""
    least = SMALLEST_BAR * max(difference.a, difference.b)
    shown = [part for part in difference.parts if abs(part.difference) >= least]
    rest = difference.total - sum(part.difference for part in shown)
    bars = [_total("A", difference.a)]
    level = difference.a
    drawn = [(part.name, part.difference, part.key == COUNT) for part in shown]
    if abs(rest) > least / 100:
        drawn.append(("All else", rest, False))
    for name, change, _ in drawn:
        kind = "less" if change < 0 else "more"
        bars.append(
            {
                "name": name,
                "from": level,
                "to": level + change,
                "kind": kind,
                "label": signed_duration(change),
            }
        )
        level += change
    return {"kind": "waterfall", "bars": [*bars, _total("B", difference.b)]}


def _total(name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "from": 0.0, "to": seconds, "kind": "total", "label": duration(seconds)}


def _histogram(a: Times, b: Times) -> dict[str, Any]:
    """Returns the histograms of both runs over the same bins, up to the larger 99th percentile."""
    high = max(float(np.percentile(durations, 99)) for durations in (a, b))
    low = min(float(durations.min()) for durations in (a, b))
    edges = np.linspace(low, high if high > low else low + 1e-3, BINS + 1)
    return {
        "kind": "histogram",
        "along": "a step",
        "of": "steps",
        "series": [
            {
                "name": name,
                "edges": edges.tolist(),
                "counts": np.histogram(durations, edges)[0].tolist(),
                "middle": float(np.median(durations)),
                "marks": {},
            }
            for name, durations in (("A", a), ("B", b))
        ],
    }
