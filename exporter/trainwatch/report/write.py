"""Writes the report of a run: report.html for people, profiler-reports/<Rule>.json for programs."""

from __future__ import annotations

import json
from pathlib import Path

from trainwatch.evaluation.analysis import Analysis
from trainwatch.evaluation.debugger_json import rule_json
from trainwatch.recording.whole_file import write_whole
from trainwatch.report.html import render_html


def write_report(analysis: Analysis, directory: Path) -> None:
    """Makes the directory where there is none; each file appears whole. Raises OSError.

    Everything is rendered before the first file is touched. The page comes last: where it stands, the
    JSON files beside it are of the same run.
    """
    page = render_html(analysis)
    rules = {
        result.rule: json.dumps(rule_json(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for result in analysis.rules
    }
    results = directory / "profiler-reports"
    results.mkdir(parents=True, exist_ok=True)
    for rule, text in rules.items():
        write_whole(results / f"{rule}.json", text)
    write_whole(directory / "report.html", page)
