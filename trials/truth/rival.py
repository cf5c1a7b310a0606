"""Tries the same faults with traceml-ai, which needs a wrapper around each step of the script."""

import json
import subprocess
import sys
from pathlib import Path

from trials.truth.observed import SCRIPT, Seen
from trials.truth.plan import RANKS, Case

PACKAGE = "traceml-ai==0.5.0"
# What it names instead of our components; its words are coarser, and count as right.
CAUSES = {
    "input": {"data_wait"},
    "compute": {"forward", "backward", "optimizer"},
    "residual": {"host", "gc", "checkpoint"},
}


class Rival:
    """A temporary environment with the rival, on top of the PyTorch that is installed here."""

    def __init__(self, folder: Path) -> None:
        python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = next((folder / "lib").glob("python*")) / "site-packages"
        (packages / "installed_here.pth").write_text(
            "\n".join(path for path in sys.path if "site-packages" in path)
        )
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
        subprocess.run(pip, check=True)
        self._program = folder / "bin" / "traceml"

    def words(self, case: Case, folder: Path) -> list[str]:
        """Returns the command, and writes the script with the wrapper."""
        (folder / "train.py").write_text(wrapped(SCRIPT.read_text()))
        launcher = [str(self._program), "run", "train.py", "--nproc-per-node", str(RANKS[case.script])]
        return [*launcher, "--run-name", "run", "--logs-dir", str(folder), "--args", *case.words]

    def read(self, case: Case, folder: Path, terminal: str, status: int, seconds: float) -> Seen:
        """Reads its summary."""
        try:
            steps = json.loads((folder / "run" / "final_summary.json").read_text())["step_time"]
        except (OSError, ValueError, KeyError) as error:
            return Seen(case.name, None, "failed", str(error), False, terminal, 0, seconds)
        diagnosis = steps["diagnosis"]
        evidence = diagnosis.get("evidence") or {}
        accused = None
        if "STRAGGLER" in diagnosis["kind"]:
            cause = str(diagnosis.get("phase") or evidence.get("component"))
            same = case.expected is not None and case.expected[1] in CAUSES.get(cause, {cause})
            accused = (int(evidence["culprit_rank"]), case.expected[1] if same and case.expected else cause)
        found = "found" if accused else "healthy"
        return Seen(case.name, accused, found, diagnosis["summary"], False, terminal, 1, seconds)


def wrapped(script: str) -> str:
    """Returns the script with the rival's wrapper around each training step."""
    start, end = (
        "        for index, (x, y) in enumerate(epoch(loader, number), 1):\n",
        "        model.eval()\n",
    )
    before, _, rest = script.partition(start)
    body, _, after = rest.partition(end)
    before = before.replace("import torch\n", "import torch\nimport traceml_ai\n", 1)
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    wrapper = "            with traceml_ai.trace_step(model):\n"
    begin = '    traceml_ai.init(mode="auto")\n'
    head, _, tail = before.partition("    rank, ranks = ")
    return f"{head}{begin}    rank, ranks = {tail}{start}{wrapper}{inner}{end}{after}"
