"""The tutorial: every cell runs as in Jupyter, over runs that it starts itself."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.notebooks import executed, said_by_code, shown, with_parameters

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "examples" / "from_sagemaker.ipynb"
KERAS = ROOT / "examples" / "train_keras_imdb.py"


def of_script(folder: Path, script: Path, **variables: str) -> dict[str, Any]:
    """Returns the tutorial after it ran in `folder` with this script."""
    assert f'SCRIPT = "{KERAS.name}"' in TUTORIAL.read_text(encoding="utf-8").replace("\\", "")
    return executed(with_parameters(TUTORIAL, SCRIPT=str(script)), folder, **variables)


def check(notebook: dict[str, Any]) -> None:
    """The fault is named, the advice is given, and both runs are compared."""
    said = said_by_code(notebook)
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
    notebook = of_script(tmp_path, Path(__file__).with_name("imdb_like.py"))
    check(notebook)
    assert any("times as fast per step" in words for words in shown(notebook))
    assert (tmp_path / "comparison.html").is_file()


@pytest.mark.trial
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_each_cell_of_the_tutorial_runs_over_the_unmodified_keras_script(tmp_path: Path) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    notebook = of_script(tmp_path, KERAS, **quiet)
    check(notebook)
    advice = [words for words in shown(notebook) if ">DataStarved</td>" in words]
    assert "Give `map` num_parallel_calls=tf.data.AUTOTUNE" in advice[0]


def test_the_tutorial_holds_no_outputs_and_reads_well_in_a_diff() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    assert [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")] == []
