"""The comparison as one HTML page that needs nothing else, in the shell of the report."""

from typing import Any

import numpy as np

from stepscope.common.words import NO_NUMBER, amount, duration, signed_duration
from stepscope.compare import sentences, tables
from stepscope.compare.compared_run import mean_over_ranks
from stepscope.compare.comparison import Comparison
from stepscope.compare.figures import RESOURCES, Figure, change_in_percent
from stepscope.compare.parts import Difference
from stepscope.compare.text import as_markdown
from stepscope.compare.work import WHOLE_RUN
from stepscope.measurements.usage import UsageRow
from stepscope.report import sentences as report_sentences
from stepscope.report import summary
from stepscope.report.ended import failed
from stepscope.report.page import ECHARTS, render_page
from stepscope.report.verdict import status_of_run
from stepscope.runs.model import Times

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
SCRIPTS = (ECHARTS, "waterfall.js", "histogram.js", "page.js", "copy.js")
SMALLEST_BAR = 0.002  # of the larger total; smaller parts share a bar
BINS = 60


def render_comparison(comparison: Comparison) -> str:
    """Returns the whole page as one HTML document."""
    return render_page(
        "compare.html",
        package="stepscope.compare",
        scripts=SCRIPTS,
        data=_chart_data(comparison),
        sections=SECTIONS
        | ({"code": "Lines of code"} if comparison.lines else {})
        | ({"operators": "Operators"} if comparison.operators else {})
        | ({"conditions": "Conditions"} if comparison.outcomes else {})
        | ({"unknowns": "What could not be read"} if sentences.unknowns(comparison) else {})
        | {"share": "Share"},
        status_of_run=status_of_run,
        markdown=as_markdown(comparison),
        comparison=comparison,
        analyses={"A": comparison.a, "B": comparison.b},
        say=sentences,
        report=report_sentences,
        tables=tables,
        glance=_at_a_glance(comparison),
        usage=_usage(comparison),
        mood=_mood(comparison),
    )


def _at_a_glance(comparison: Comparison) -> list[summary.Figure]:
    """Returns tiles per step or item; those of the whole run only if both did the same work."""
    unit, work = comparison.work.unit, comparison.work
    per_unit = (f"{unit}_mean", f"{unit}s_per_second", f"cost_per_1000_{unit}s")
    keys = (*per_unit, "duration", "cost", "data_wait", "gpu_p50", f"energy_per_{unit}")
    known = [key for key in keys if key in comparison.figures]
    shown = [key for key in known if work.same is not False or key not in WHOLE_RUN]
    return [_glance(comparison, comparison.figures[key]) for key in shown[:6]]


def _glance(comparison: Comparison, figure: Figure) -> summary.Figure:
    """Returns B's amount, with A's and the change as a note."""
    change = NO_NUMBER if figure.change is None else change_in_percent(figure)
    if figure.interval is not None and not figure.interval.seen:
        change = sentences.NO_DIFFERENCE
    note = f"A: {amount(figure.a, figure.unit)}; {change}"
    value = f"B: {amount(figure.b, figure.unit)}"
    return summary.Figure(figure.name, value, note, _mood_of(comparison, figure))


def _mood_of(comparison: Comparison, figure: Figure) -> str:
    """Returns "good" or "bad" if a figure became better or worse for sure: not by noise or other work."""
    change, less = figure.seen_change, figure.less_is_better
    if change is None or less is None or abs(change) < (0.5 if figure.is_share else 0.005):
        return ""
    if sentences.too_few_steps(comparison) or sentences.within_noise(comparison, figure):
        return ""
    if comparison.work.obstacle(figure.key):
        return ""
    return "good" if (change < 0) == less else "bad"


def _mood(comparison: Comparison) -> str:
    """Returns the mood of the verdict: good, bad, or open if it is neither. A failed run never looks good."""
    if failed(comparison.b.analysis):
        return "bad"
    unit = comparison.work.unit
    cost = f"cost_per_1000_{unit}s" if comparison.work.same is False else "cost"
    deciding = (
        sentences.pace(comparison) or comparison.figures.get("duration"),
        comparison.figures.get(cost),
    )
    moods = {_mood_of(comparison, figure) for figure in deciding if figure} - {""}
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
    bars = [_total(tables.name_of_a(difference), difference.a)]
    level = difference.a
    drawn = [(part.name, part.difference) for part in shown]
    if abs(rest) > least / 100:
        drawn.append(("All else", rest))
    for name, change in drawn:
        kind = "less" if change < 0 else "more"
        label = signed_duration(change)
        bars.append({"name": name, "from": level, "to": level + change, "kind": kind, "label": label})
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
        "along": "duration of a step",
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
