"""Writes the report of a run: a page for people, and JSON files for programs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.common.whole_file import write_whole
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.as_json import rule_json
from stepscope.report.document import render_json
from stepscope.report.html import render_html
from stepscope.report.index_page import is_runs_folder, refresh_index
from stepscope.report.leads import Leads, leads_of
from stepscope.report.markdown import render_markdown
from stepscope.report.price_list import Machine

DOCUMENT = "report.json"


def write_report(
    analysis: Analysis,
    directory: Path,
    price: float | None = None,
    form: str = "html",
    typed: Sequence[str] = (),
    docs_url: str = "",
    machines: Sequence[Machine] = (),
) -> Path:
    """Writes the report in a format (a key of FORMS), and returns its main file.

    `typed`: the words of the command, for the reader. `docs_url`: of a copy of docs/, that rules link to.

    Creates the directory if needed; each file appears whole. Raises OSError. Everything is rendered before
    the first file is written. The main file is written last: once it exists, the JSON files are of the same
    run.
    """
    page, render = FORMS[form]
    leads = leads_of(analysis, directory, is_runs_folder(directory.absolute().parent), typed, docs_url)
    texts = {DOCUMENT: render_json(analysis, price, machines)}
    texts |= render(analysis, price, leads, machines)
    texts[page] = texts.pop(page)
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(directory / name, text)
    refresh_index(directory)
    return directory / page


def _html(
    analysis: Analysis, price: float | None, leads: Leads, machines: Sequence[Machine]
) -> dict[str, str]:
    page = render_html(analysis, price=price, leads=leads, machines=machines)
    return {**_rules(analysis), "report.html": page}


def _markdown(
    analysis: Analysis, price: float | None, _: Leads, machines: Sequence[Machine]
) -> dict[str, str]:
    return {"report.md": render_markdown(analysis, price, machines)}


def _rules(analysis: Analysis, *_: Any) -> dict[str, str]:
    return {
        f"profiler-reports/{result.rule}.json": json.dumps(
            rule_json(result), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
        for result in analysis.rules
    }


# The main file, and the files in addition to report.json, which every format has.
FORMS: dict[str, tuple[str, Callable[..., dict[str, str]]]] = {
    "html": ("report.html", _html),
    "json": (DOCUMENT, _rules),
    "markdown": ("report.md", _markdown),
}
