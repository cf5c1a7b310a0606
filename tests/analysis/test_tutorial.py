"""The tutorial: every cell runs as in Jupyter, over runs that it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import unobserved

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "examples" / "from_sagemaker.ipynb"
EXECUTE = "from nbclient.cli import main; main()"  # what `jupyter execute` is
KERAS = ROOT / "examples" / "train_keras_imdb.py"


def executed(folder: Path, script: Path, **variables: str) -> dict[str, Any]:
    """Returns the notebook after it ran in a kernel in `folder`, with this script. No cell may fail."""
    notebook = json.loads(TUTORIAL.read_text(encoding="utf-8"))
    parameters = next(cell for cell in notebook["cells"] if cell["metadata"].get("tags") == ["parameters"])
    assert f'SCRIPT = "{KERAS.name}"' in "".join(parameters["source"])
    parameters["source"].append(f"\nSCRIPT = {str(script)!r}")
    (folder / "tutorial.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    own = {
        f"{name}_DIR": str(folder / name) for name in ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME")
    }
    environment = {**unobserved(), **own, "IPYTHONDIR": str(folder / "ipython"), **variables}
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from nbclient.cli import main; main()",
            "--inplace",
            "--timeout=300",
            "tutorial.ipynb",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads((folder / "tutorial.ipynb").read_text(encoding="utf-8"))
    return found


def shown(notebook: dict[str, Any]) -> list[str]:
    """Returns what the cells of code printed and displayed: text, HTML, or Vega-Lite."""
    found = []
    for cell in notebook["cells"]:
        parts = []
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("text", "")))
            parts += ["".join(text) for kind, text in output.get("data", {}).items() if kind == "text/html"]
        found.append("".join(parts))
    return found


def check(notebook: dict[str, Any]) -> None:
    """The fault is named, the advice is given, and both runs are compared."""
    cells = list(zip(notebook["cells"], shown(notebook), strict=True))
    said = {"".join(cell["source"]): words for cell, words in cells if cell["cell_type"] == "code"}
    silent = [code for code, words in said.items() if not words and not code.startswith("SCRIPT")]
    assert [code for code in silent if not code.endswith("before.source")] == []  # which is plain text
    assert "waiting for data" in said["before"]
    assert 'report.html">The report</a>' in said["before"]
    assert ">DataStarved</td>" in next(words for code, words in said.items() if "found.select" in code)
    assert "%" in next(words for code, words in said.items() if code.startswith("cost")).split("after")[1]
    assert "comparison.html" in next(words for code, words in said.items() if "compare imdb" in code)
    charts = [words for code, words in said.items() if ".plot." in code]
    assert len(charts) == 5
    assert all("vega" in words for words in charts)


def test_each_cell_of_the_tutorial_runs_over_a_script_that_takes_seconds(tmp_path: Path) -> None:
    notebook = executed(tmp_path, Path(__file__).with_name("imdb_like.py"))
    check(notebook)
    assert any("times as fast per step" in words for words in shown(notebook))
    assert (tmp_path / "comparison.html").is_file()


@pytest.mark.trial
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_each_cell_of_the_tutorial_runs_over_the_unmodified_keras_script(tmp_path: Path) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    notebook = executed(tmp_path, KERAS, **quiet)
    check(notebook)
    advice = [words for words in shown(notebook) if ">DataStarved</td>" in words]
    assert "Give `map` num_parallel_calls=tf.data.AUTOTUNE" in advice[0]


def test_the_tutorial_holds_no_outputs_and_reads_well_in_a_diff() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    assert [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")] == []
