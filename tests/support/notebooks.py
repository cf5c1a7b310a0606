"""Notebooks: executed as Jupyter does, in a kernel of their own."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.environment import unobserved
from tests.support.processes import ran

EXECUTE = "from nbclient.cli import main; main()"  # what `jupyter execute` is


def with_parameters(notebook: Path, **values: str) -> dict[str, Any]:
    """The notebook with other values after its cell of parameters, which must have all of these names."""
    document: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    parameters = next(cell for cell in document["cells"] if cell["metadata"].get("tags") == ["parameters"])
    for name, value in values.items():
        assert f"{name} = " in "".join(parameters["source"])
        parameters["source"].append(f"\n{name} = {value!r}")
    return document


def executed(notebook: dict[str, Any], folder: Path, **variables: str) -> dict[str, Any]:
    """Returns the notebook after it ran in a kernel in `folder`. No cell may fail."""
    path = folder / "executed.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    own = {
        f"{name}_DIR": str(folder / name) for name in ("JUPYTER_CONFIG", "JUPYTER_DATA", "JUPYTER_RUNTIME")
    }
    ended = ran(
        [sys.executable, "-c", EXECUTE, "--inplace", "--timeout=300", path.name],
        cwd=folder,
        env={**unobserved(), **own, "IPYTHONDIR": str(folder / "ipython"), **variables},
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def shown(notebook: dict[str, Any]) -> list[str]:
    """Returns what each cell printed and displayed: text, HTML, or Vega-Lite."""
    found = []
    for cell in notebook["cells"]:
        parts = []
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("text", "")))
            parts += ["".join(text) for kind, text in output.get("data", {}).items() if kind == "text/html"]
        found.append("".join(parts))
    return found


def said_by_code(notebook: dict[str, Any]) -> dict[str, str]:
    """Returns what each cell of code has shown, by its code."""
    cells = zip(notebook["cells"], shown(notebook), strict=True)
    return {"".join(cell["source"]): words for cell, words in cells if cell["cell_type"] == "code"}
