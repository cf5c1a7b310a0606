"""Renders an analysis as one HTML file; the live page of `trainwatch run` is the same page, refreshed."""

from __future__ import annotations

import time
from functools import partial

from trainwatch.evaluation.analysis import Analysis
from trainwatch.report import sentences, shares
from trainwatch.report.charts import VIRIDIS, chart_data, marks_on_heatmap
from trainwatch.report.details import overview, views
from trainwatch.report.facts import facts
from trainwatch.report.glance import at_a_glance
from trainwatch.report.page import ECHARTS, render_page
from trainwatch.report.problems import problems
from trainwatch.report.right_sizing import predictions
from trainwatch.report.rows import boxes, details_of, during, outliers, pairs, stalls
from trainwatch.report.usage import usage

# A section is a template of that name in templates/; its id is what links point to.
SECTIONS = {
    "verdict": "Verdict",
    "summary": "Run summary",
    "usage": "System usage",
    "heatmap": "Heatmap",
    "time": "Time breakdown",
    "rules": "Rules",
    "details": "Details",
    "measured": "How this was measured",
}
SCRIPTS = (ECHARTS, "heatmap.js", "histogram.js", "lines.js", "durations.js", "page.js")
LIVE_SCRIPT = "live.js"


def render_html(analysis: Analysis, refresh_seconds: int | None = None, price: float | None = None) -> str:
    """Returns the whole report as one HTML document; with `refresh_seconds` it refreshes itself in place.

    `price`: dollars per hour of one node, for costs in the verdict.
    """
    live = refresh_seconds is not None
    shown = views(analysis)
    return render_page(
        "report.html",
        scripts=(*SCRIPTS, LIVE_SCRIPT) if live else SCRIPTS,
        data=chart_data(analysis),
        live=live,
        sections=SECTIONS,
        refresh_seconds=refresh_seconds,
        updated=time.time() if live else None,
        analysis=analysis,
        price=price,
        say=sentences,
        shares=shares,
        facts=facts(analysis, price),
        glance=at_a_glance(analysis, price),
        problems=problems(analysis),
        predictions=predictions(analysis, price),
        usage_sentences=usage(analysis),
        viridis=VIRIDIS,
        heatmap_marks=partial(marks_on_heatmap, analysis),
        views=shown,
        overview=overview,
        boxes=boxes,
        details_of=details_of,
        during=during,
        low_gpu_causes=shares.low_gpu_causes,
        outliers=outliers(analysis),
        pairs=pairs(analysis),
        stalls=stalls(analysis),
    )
