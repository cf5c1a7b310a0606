"""Writes the report of a run: a page for people, and JSON files for programs."""

import json
from collections.abc import Sequence
from pathlib import Path

from stepscope.common.whole_file import write_whole
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.as_json import rule_json
from stepscope.report.document import render_json
from stepscope.report.html import render_html
from stepscope.report.index_page import is_runs_folder, refresh_index
from stepscope.report.leads import leads_of
from stepscope.report.markdown import render_markdown
from stepscope.report.price_list import Machine

DOCUMENT = "report.json"
FORMS = {"html": "report.html", "json": DOCUMENT, "markdown": "report.md"}  # the main file of each


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
    page = FORMS[form]
    texts = {DOCUMENT: render_json(analysis, price, machines)}
    if form != "markdown":
        for rule in analysis.rules:
            content = json.dumps(rule_json(rule), indent=2, ensure_ascii=False, allow_nan=False)
            texts[f"profiler-reports/{rule.rule}.json"] = f"{content}\n"
    if form == "html":
        leads = leads_of(analysis, directory, is_runs_folder(directory.absolute().parent), typed, docs_url)
        texts[page] = render_html(analysis, price=price, leads=leads, machines=machines)
    if form == "markdown":
        texts[page] = render_markdown(analysis, price, machines)
    texts[page] = texts.pop(page)
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(directory / name, text)
    refresh_index(directory)
    return directory / page
