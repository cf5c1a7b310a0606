"""Renders an analysis as one HTML file; the live page of `stepscope run` is the same page, refreshed."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from stepscope.common import words
from stepscope.common.words import duration, number, pace
from stepscope.evaluation.analysis import Analysis
from stepscope.report import devices, profile, sentences, shares
from stepscope.report.charts import VIRIDIS, chart_data, marks_on_heatmap
from stepscope.report.details import overview, views, without
from stepscope.report.findings import cut_across
from stepscope.report.held import held
from stepscope.report.hot_lines import parts as hot_parts
from stepscope.report.leads import Leads
from stepscope.report.markdown import render_markdown
from stepscope.report.page import ECHARTS, render_page
from stepscope.report.price_list import Machine
from stepscope.report.right_sizing import predictions
from stepscope.report.rows import boxes, during, gauges, outliers, pairs, places, stalls
from stepscope.report.savings import savings
from stepscope.report.strip import memory_over_time, slow_and_median, strip
from stepscope.report.summary import at_a_glance, facts
from stepscope.report.usage import usage
from stepscope.report.verdict import verdict
from stepscope.rules import all_rules

SECONDS = 60.0  # the last ones
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
    "leads": "What next",
}
LINES = {"code": "Lines of code"}  # after the time, if lines were sampled
WINDOWS = {"profile": "Operators"}  # after them, if there were profile windows
SCRIPTS = (
    ECHARTS,
    "heatmap.js",
    "histogram.js",
    "lines.js",
    "durations.js",
    "flames.js",
    "page.js",
    "copy.js",
)
LIVE_SCRIPT = "live.js"
MOST_CORES = 512  # with a histogram on the page
NO_LEADS = Leads()


def render_html(
    analysis: Analysis,
    refresh_seconds: int | None = None,
    price: float | None = None,
    leads: Leads = NO_LEADS,
    path: Path | None = None,
    total_steps: int | None = None,
    machines: Sequence[Machine] = (),
) -> str:
    """Returns the whole report as one HTML document; with `refresh_seconds` it refreshes itself in place.

    The live page names the `path` at which the report will be, and says when `total_steps` will be made.
    `price`: dollars per hour of one node, for costs in the verdict. `leads`: where it leads. `machines`: the
    price list of right-sizing.
    """
    live = refresh_seconds is not None
    sections = dict(SECTIONS)
    more = {**(LINES if analysis.threads else {}), **(WINDOWS if analysis.windows else {})}
    if more:
        before = list(SECTIONS).index("time") + 1
        items = list(SECTIONS.items())
        sections = dict([*items[:before], *more.items(), *items[before:]])
    shown = views(analysis)
    predicted = predictions(analysis, price, machines)
    busy = usage(analysis)
    lines, charts = hot_parts(analysis), chart_data(analysis)
    said = verdict(analysis, price)
    folded = {
        "summary": sentences.run_summary(analysis)[0],
        "usage": busy[0],
        "code": lines[0].words if lines else "No line of Python was sampled long enough.",
        "profile": next(iter(profile.sentences(analysis)), profile.headline(analysis)),
        "rules": sentences.rules(analysis),
        "details": overview(shown),
        "measured": sentences.measured(analysis)[0],
    }
    if len(analysis.heatmaps) > 1:
        folded["heatmap"] = f"{words.count(len(analysis.heatmaps), 'node')}, each with its GPUs and cores."
    return render_page(
        "report.html",
        scripts=(*SCRIPTS, LIVE_SCRIPT) if live else SCRIPTS,
        data=charts,
        live=live,
        sections=sections,
        folded=folded,
        refresh_seconds=refresh_seconds,
        updated=time.time() if live else None,
        pace=pace_now(analysis, total_steps) if live else "",
        report_path=path,
        analysis=analysis,
        price=price,
        leads=leads,
        markdown=render_markdown(analysis, price, machines),
        say=sentences,
        verdict=said,
        cut_across=cut_across,
        held=partial(held, analysis),
        shares=shares,
        profile=profile,
        devices=devices,
        facts=facts(analysis, price),
        glance=at_a_glance(analysis, price),
        predictions=predicted,
        savings=savings(analysis, said.findings, predicted),
        strip=strip(analysis),
        slow_and_median=slow_and_median,
        memory_over_time=memory_over_time,
        usage_sentences=busy,
        most_cores=MOST_CORES,
        viridis=VIRIDIS,
        heatmap_marks=partial(marks_on_heatmap, analysis),
        views=shown,
        overview=overview,
        without=without,
        boxes=boxes,
        RULES=all_rules(),
        during=during,
        hot_parts=lines,
        charts=charts,
        low_gpu_causes=shares.low_gpu_causes,
        outliers=outliers(analysis),
        pairs=pairs(analysis),
        places=places(analysis),
        stalls=stalls(analysis),
        gauges=gauges(analysis),
    )


def pace_now(analysis: Analysis, total: int | None = None) -> str:
    """Returns "step 1240 of 5000, 12.3 steps/s, ETA 5 min 06 s"; each rank makes `total` steps."""
    marks = [mark for line in analysis.timelines[:1] for mark in line.marks if mark.phase == "train"]
    if not marks:
        return ""
    # A process that starts again counts from 0.
    begins = [place for place, (one, two) in enumerate(pairwise(marks), 1) if two.number <= one.number]
    marks = marks[max(begins, default=0) :]
    last = marks[-1]
    said = [f"step {number(last.number)}" + (f" of {number(total)}" if total else "")]
    before = next((mark for mark in reversed(marks) if mark.start <= last.start - SECONDS), marks[0])
    if last.start > before.start:
        rate = (last.number - before.number) / (last.start - before.start)
        said.append(pace(rate))
        if total and last.number < total:
            said.append(f"ETA {duration((total - last.number) / rate)}")
    return ", ".join(said)
