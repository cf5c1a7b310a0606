"""Line samples at 100 times their rate, on every supported Python that is here: no process may notice."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import IO

from tests.support.environment import unobserved
from tests.support.pythons import pythons
from tests.support.training_script import EXPORTER
from trials import Attempt, trial

ROOT = Path(__file__).parents[1]
EVERYTHING, DISTRIBUTED = "trials.sampled.everything", "trials.sampled.distributed"
SETUP_SECONDS = 240.0  # PyTorch's import and the last step, on a busy machine
LEAST_SAMPLES = 20  # per second there may be 2,000; a busy machine has few


@trial(
    "Line samples at 100 times their rate end or stop no process, and the lines seen are the program's.",
    count=600,
    short=4,
    of="seconds per Python",
)
def line_sampling(attempt: Attempt) -> str:
    scripts = {version: (path, EVERYTHING) for version, path in pythons().items()}
    if find_spec("torch") is not None:
        scripts["DDP with loader workers"] = sys.executable, DISTRIBUTED
    started = {what: _start(attempt, *script) for what, script in scripts.items()}
    seen = []
    try:
        for what, (process, errors) in started.items():
            said, _ = process.communicate(timeout=attempt.count + SETUP_SECONDS)
            errors.seek(0)
            assert process.returncode == 0, f"{what}: status {process.returncode}: {errors.read()[-500:]}"
            seen.append(f"{what}: {_plausible(what, json.loads(said))}")
    finally:
        for process, errors in started.values():
            process.kill()
            process.wait()
            errors.close()
    return (
        "samples by Python: "
        + ", ".join(seen)
        + "; every process ended as it should, and was sampled to its end"
    )


def _start(attempt: Attempt, python: str, script: str) -> tuple[subprocess.Popen[str], IO[str]]:
    errors = (attempt.folder / f"{script}-{len(list(attempt.folder.iterdir()))}").open("w+")
    environment = {
        **unobserved(),
        "PYTHONPATH": f"{EXPORTER}:{ROOT}",
        "PYTHONFAULTHANDLER": "1",
        "STEPSCOPE_LEDGER_DIR": str(attempt.folder / "ledgers"),
        "STEPSCOPE_LAUNCH": "trial",
    }
    command = [python, "-m", script, str(attempt.count), str(attempt.seed)]
    return (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ),
        errors,
    )


def _plausible(what: str, found: dict[str, list[list[str | int]]]) -> str:
    """Returns how many samples there were. Raises AssertionError if a line is outside of its function."""
    samples = found["samples"]
    assert isinstance(samples, int)
    assert samples >= LEAST_SAMPLES, f"{what}: only {samples} samples"
    named = 0
    for place, function, count in found["seen"]:
        assert isinstance(place, str), place
        assert isinstance(function, str), function
        assert isinstance(count, int), count
        name, _, line = place.partition(":")
        if name:
            named += count
            known = _functions(ROOT / name).get(function.rpartition(".")[2], [])
            assert line == "1" or any(int(line) in each for each in known), f"{what}: {place} in {function}"
    assert named > samples / 2, f"{what}: only {named} of {samples} samples have a line"
    return f"{samples:,}"


def _functions(path: Path) -> dict[str, list[range]]:
    """Returns the lines of all functions of a script, by name."""
    found: dict[str, list[range]] = {}
    codes = [compile(path.read_text(), str(path), "exec")]
    for code in codes:
        codes += (inner := [each for each in code.co_consts if isinstance(each, CodeType)])
        lines = [line for each in (code, *inner) for _, _, line in each.co_lines() if line]
        found.setdefault(code.co_name, []).append(range(code.co_firstlineno, max(lines) + 1))
    return found
