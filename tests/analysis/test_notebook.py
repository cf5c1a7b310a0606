"""`stepscope report RUN --notebook`: every cell runs, in its folder, and shows the run."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stepscope.analysis import Run
from stepscope.commands.cli import main
from stepscope.evaluation.settings import Settings
from stepscope.report.notebook import render_notebook

from tests.support.analysis import nothing_found
from tests.support.scenarios import WrittenScenarios


def code_of(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(code: str, names: dict[str, Any]) -> Any:
    """Runs a cell as a kernel does, and returns the value of its last line."""
    *before, last = ast.parse(code).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def test_each_cell_of_a_notebook_runs(
    scenarios: WrittenScenarios,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = scenarios.written("few-dataloaders").recording_directory
    flags = ["--price", "14.5", "--set", "CPUBottleneck.gpu_threshold=50"]
    assert main(["report", str(recording), "--notebook", "--out", str(tmp_path / "out"), *flags]) == 0
    assert capsys.readouterr().out.strip().endswith("notebook.ipynb")
    assert (tmp_path / "out" / "report.html").exists()
    notebook = json.loads((tmp_path / "out" / "notebook.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path / "out")  # as a kernel is
    names: dict[str, Any] = {}
    values = [shown(code, names) for code in code_of(notebook)]
    run, *charts = [value for value in values if value is not None]
    assert isinstance(run, Run)
    assert "waited for data" in run._repr_html_()
    assert [chart.to_dict()["$schema"].partition("/schema/")[2][:9] for chart in charts] == ["vega-lite"] * 4
    printed = capsys.readouterr().out
    assert "DataStarved  found" in printed
    assert "train  data_wait" in printed
    rule = next(row for row in run.findings().to_pylist() if row["rule"] == "CPUBottleneck")
    assert rule["violations"] == 889  # with the parameter of the command


def test_a_notebook_is_of_format_4_5_and_has_no_cell_for_what_was_not_recorded() -> None:
    analysis = replace(nothing_found(), name="a*b", heatmaps=[], steps=[], threads=[])
    text = render_notebook(analysis, ["prometheus+http://me:secret@host:9090?run=a"], Path(), Settings())
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    for cell in notebook["cells"]:
        more = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | more
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["source"][0].startswith("# a\\*b")
    assert "secret" not in text
    assert "run.plot" not in text
    assert "slowest" not in text
