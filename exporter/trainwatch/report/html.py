"""Renders an analysis as one HTML file that needs nothing else: no network, no other file.

The tables and sentences are plain HTML; scripts (each allowed by its hash, nothing else is) add the
charts. The live page of `trainwatch run` is the same page with a script that fetches it again.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from trainwatch import __version__
from trainwatch.evaluation.analysis import Analysis
from trainwatch.report import sentences, shares, wording
from trainwatch.report.charts import VIRIDIS, chart_data, script_json
from trainwatch.report.facts import facts
from trainwatch.report.glance import at_a_glance
from trainwatch.report.usage import usage

# A section is a template of that name in templates/; its id is what links point to.
SECTIONS = {
    "verdict": "Verdict",
    "summary": "Run summary",
    "usage": "System usage",
    "heatmap": "Heatmap",
    "steps": "Step durations",
    "time": "Where the time went",
    "loading": "Data loading",
    "rules": "Rules",
    "measured": "How this was measured",
}
STYLE = "report.css"
SCRIPTS = ("echarts-6.1.0.min.js", "heatmap.js", "histogram.js", "page.js")
LIVE_SCRIPT = "live.js"
# The spaces within an amount: "71 %", "12.3 ms", "1 h 05 min".
AMOUNT = re.compile(
    r"(?<=\d) (?=%|(?:[mµ]?s|min|h|d)\b|[kMGT]?B/s)|(?<=\d (?:h|d)) (?=\d)|(?<=\d min) (?=\d)"
)


def render_html(analysis: Analysis, refresh_seconds: int | None = None) -> str:
    """The whole report as one HTML document; with `refresh_seconds` it refreshes itself in place."""
    live = refresh_seconds is not None
    scripts = [_asset(name) for name in (*SCRIPTS, *((LIVE_SCRIPT,) if live else ()))]
    style = _asset(STYLE)
    template = _environment().get_template("report.html")
    return template.render(
        analysis=analysis,
        sections=SECTIONS,
        say=sentences,
        shares=shares,
        words=wording,
        facts=facts(analysis),
        glance=at_a_glance(analysis),
        usage_sentences=usage(analysis),
        viridis=VIRIDIS,
        version=__version__,
        refresh_seconds=refresh_seconds,
        updated=time.time() if live else None,
        policy=_content_security_policy(style, scripts, live),
        style=style.text,
        scripts=[script.text for script in scripts],
        data=Markup(script_json(chart_data(analysis))),
    )


@dataclass(frozen=True)
class _Asset:
    text: Markup
    hash: str  # as a Content-Security-Policy writes it


@cache
def _asset(name: str) -> _Asset:
    text = (files("trainwatch.report") / "assets" / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return _Asset(Markup(text), f"'sha256-{digest}'")


def _content_security_policy(style: _Asset, scripts: list[_Asset], live: bool) -> str:
    """Nothing may be loaded or run but what this file holds; the live page may also ask for itself."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(script.hash for script in scripts)}",
            f"style-src {style.hash}",
            "img-src data:",
            f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainwatch.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    environment.filters["grouped"] = _grouped
    return environment


def _grouped(rows: Sequence[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    """Rows of the same attribute together, in the order in which they come (Jinja's groupby sorts)."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, attribute), []).append(row)
    return list(groups.items())


def _with_code(sentence: str) -> Markup:
    """Turns `words` into <code>words</code>, everything escaped; an amount stays on one line."""
    sentence = AMOUNT.sub("\u00a0", sentence)
    pieces = sentence.split("`")
    if len(pieces) % 2 == 0:  # an odd backtick is just a character
        return escape(sentence)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    )
