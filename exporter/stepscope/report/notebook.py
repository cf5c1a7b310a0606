"""Writes a run's report as a Jupyter notebook (nbformat 4.5) whose cells open the run and draw it."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.settings import Settings
from stepscope.report.markdown_text import plain, sentence
from stepscope.report.verdict import verdict
from stepscope.runs.prometheus.address import without_secrets

NOTEBOOK = "notebook.ipynb"
MOST_ROWS = 10  # that a cell prints

PRINT_ROWS = f"""\
def show(table, *names, rows={MOST_ROWS}):
    for row in table.slice(0, rows).to_pylist():
        values = (row[name] for name in names)
        print("  ".join(f"{{value:.4g}}" if isinstance(value, float) else str(value) for value in values))
"""
SLOWEST_STEP = """\
slowest = run.steps().sort_by([("duration_seconds", "descending")]).slice(0, 1).to_pylist()[0]
begin = slowest["elapsed_seconds"]
there = run.between((begin, begin + slowest["duration_seconds"]))
print(there)
show(there.steps(), "rank", "phase", "number", "duration_seconds", "data_wait_seconds")
show(there.joined(), "elapsed_seconds", "cpu_utilization_ratio", "gpu_utilization_ratio", "rank", "step")"""
STATISTICS = (
    'show(run.step_statistics(), "rank", "phase", "steps", "mean_seconds", "p50_seconds", "p99_seconds")'
)
BY_PHASE = """\
show(run.utilization_by_phase(), "node", "phase", "cpu_utilization_ratio", "gpu_utilization_ratio")"""


def render_notebook(
    analysis: Analysis,
    sources: Sequence[str],
    directory: Path,
    settings: Settings,
    price: float | None = None,
) -> str:
    """Returns the notebook, whose place is in `directory`: local `sources` are opened relative to it."""
    cells: list[dict[str, Any]] = []
    for kind, text in _cells(analysis, sources, directory, settings, price):
        source = text.splitlines(keepends=True)
        cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source})
        if kind == "code":
            cells[-1] |= {"execution_count": None, "outputs": []}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cells(
    analysis: Analysis, sources: Sequence[str], directory: Path, settings: Settings, price: float | None
) -> Iterator[tuple[str, str]]:
    said = verdict(analysis, price)
    evidence = [f"- {sentence(line)}" for line in said.evidence]
    sentences = [sentence(line) for line in said.sentences]
    yield "markdown", "\n\n".join([f"# {plain(analysis.name)}", *sentences, "\n".join(evidence)]).rstrip()
    yield "code", f"import stepscope.analysis\n\nrun = {_opened(sources, directory, settings, price)}\nrun"
    yield "markdown", "## What did the rules find, and where did the time go?"
    yield "code", f'{PRINT_ROWS}\n\nshow(run.findings(), "rule", "status", "finding")'
    yield "code", 'show(run.account(), "part", "component", "seconds", "run_ratio", rows=50)'
    if analysis.heatmaps:
        yield "markdown", "## What did the machine do?\n\nClick on the lines to see what ran at that time."
        yield "code", "run.plot.utilization()"
        yield "code", 'run.plot.heatmap(["gpu", "cpu", "io_wait"])'
    if analysis.steps:
        yield "markdown", "## How long did steps take?"
        yield "code", STATISTICS
        phase = analysis.account.main_phase if analysis.account else analysis.steps[0].phase
        yield "code", f"run.plot.step_histogram({phase!r})"
        yield "code", "run.plot.step_timeline()"
    if analysis.steps and analysis.heatmaps:
        yield "markdown", "## What happened in the slowest step, and in each phase?"
        yield "code", SLOWEST_STEP
        yield "code", BY_PHASE
    if analysis.threads:
        yield "markdown", "## Which lines of Python took the time?"
        yield (
            "code",
            'show(run.lines(), "seconds", "role", "phase", "component", "function", "place", "library")',
        )
    yield "markdown", "## Did a change help?\n\nOpen the run after it, then: `run.compare(after)`."


def _opened(sources: Sequence[str], directory: Path, settings: Settings, price: float | None) -> str:
    """Returns the call that opens the run with the same parameters; the address is without its password."""
    places = [
        os.path.join(".", os.path.relpath(source, directory))
        if Path(source).exists()
        else without_secrets(source)
        for source in sources
    ]
    given: Mapping[str, Any] = {
        f"{rule}.{name}": value for rule, values in settings.values.items() for name, value in values.items()
    }
    words = [json.dumps(places if len(places) > 1 else places[0], ensure_ascii=False)]
    words += [f"parameters={given!r}"] if given else []
    words += [f"price={price!r}"] if price is not None else []
    return f"stepscope.analysis.open({', '.join(words)})"
