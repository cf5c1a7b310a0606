"""Profile windows of unmodified scripts of JAX. Without it the tests are skipped."""

import gzip
import json
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.runs.model import Steps
from stepscope.runs.traces.source import KinetoTraces

from tests.support.framework_scripts import run_python

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
# What is trained in one process, part by part: each is a run with windows of its own.
PART = """
import jax, jax.numpy as jnp, os, stepscope
os.environ["STEPSCOPE_PROFILE"], os.environ["STEPSCOPE_PROFILE_DIR"] = {plan!r}, {folder!r}
stepscope.start(run={name!r})
print("--")

@jax.jit
def train(weights, batch):
    return weights - 0.01 * jax.grad(lambda weights: jnp.mean(jnp.tanh(batch @ weights) ** 2))(weights)

weights, batch = jnp.full((300, 300), 0.01), jnp.ones((300, 300))
for number in range(16):
    weights = train(weights, batch)
{rest}
stepscope.finish()
"""


def profiled(folder: Path, plan: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with windows, which are in `folder / "profiles"`."""
    hooks = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": str(STARTUP), "STEPSCOPE_PROFILE": plan}
    places = {"STEPSCOPE_PROFILE_DIR": str(folder / "profiles"), "TMPDIR": str(folder)}
    return run_python(folder, *words, **QUIET, **hooks, **places, **variables)


def windows(folder: Path) -> list[tuple[int, int, str, str]]:
    (path,) = folder.glob("profiles/*.windows.json")
    listed: list[dict[str, Any]] = json.loads(path.read_text())["windows"]
    return [(each["first"], each["last"], each["state"], each["reason"]) for each in listed]


def read(folder: Path) -> tuple[KinetoTraces, Steps]:
    (trace,) = folder.glob("profiles/*.gz")
    source = KinetoTraces(trace)
    (steps,) = source.read()
    assert isinstance(steps, Steps)
    return source, steps


RESULT = "print(weights.tobytes().hex())"
OWN = """
    if number == 5: jax.profiler.start_trace({folder!r})
    if number == 9: jax.profiler.stop_trace()
try:
    jax.profiler.stop_trace()
except RuntimeError as error:
    print(error, len(list(__import__("pathlib").Path({folder!r}).rglob("*.xplane.pb"))))
"""
LEAVES = """
    if number == 6:
        child = os.fork()
        if not child:
            os._exit(7)  # as multiprocessing does; JAX crashes if its functions of atexit run here
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
raise SystemExit
"""


class Parts(NamedTuple):
    folder: Path
    printed: dict[str, str]

    def windows(self, name: str) -> list[tuple[int, int, str, str]]:
        return windows(self.folder / name)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Trains all parts, of which the last one ends the process."""
    folder = tmp_path_factory.mktemp("parts")
    plans = {
        "none": ("", RESULT),
        "operators": ("3:6", RESULT),
        "own": ("1:6 8:9 12:20", OWN.format(folder=str(folder / "own" / "traces"))),
        "refused": ("2:4,memory 6:8,shapes", ""),
        "leaves": ("2:90", LEAVES),
    }
    scripts = [
        PART.format(name=name, plan=plan, folder=str(folder / name / "profiles"), rest=rest)
        for name, (plan, rest) in plans.items()
    ]
    (folder / "train.py").write_text("".join(scripts))
    _, *printed = profiled(folder, "", str(folder / "train.py")).stdout.split("--\n")
    return Parts(folder, dict(zip(plans, printed, strict=True)))


def test_a_window_of_jax_has_the_operators_of_its_steps_and_changes_no_result(parts: Parts) -> None:
    assert parts.printed["operators"] == parts.printed["none"] != ""
    assert parts.windows("operators") == [(3, 6, "written", "")]
    assert not list(parts.folder.glob("stepscope-*"))  # the folders in which JAX wrote
    source, steps = read(parts.folder / "operators")
    assert list(steps.numbers) == [3, 4, 5, 6]
    ((trace, _),) = source.trace_files()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    of_xla = [each for each in events if "hlo_op" in each.get("args", {})]
    calls = Counter(each["name"] for each in of_xla)
    assert set(calls.values()) == {4}  # the work of the steps, all of it and no other
    seconds = {name: sum(each["dur"] for each in of_xla if each["name"] == name) / 1e6 for name in calls}
    found = {each.operator: each for each in source.facts.operators}
    assert {name: found[name].calls for name in calls} == calls
    assert {name: found[name].seconds for name in calls} == pytest.approx(seconds)
    began = min(each["ts"] for each in of_xla) / 1e6
    assert steps.starts[0] - source.facts.start < began + 1  # XLA's clock is that of the steps
    inside = sum(seconds.values())
    assert 0 < inside <= steps.durations.sum()


def test_the_scripts_own_profiler_of_jax_goes_first(parts: Parts) -> None:
    assert parts.printed["own"] == "No profile started 1\n"
    assert [each[2:] for each in parts.windows("own")] == [
        ("written", "the script started its own profiler"),
        ("skipped", "the script's own profiler of JAX is active"),
        ("written", "the script started its own profiler"),
    ]


def test_a_fork_leaves_the_window_to_the_parent_and_the_end_of_the_script_ends_it(parts: Parts) -> None:
    assert parts.printed["leaves"] == "7\n"
    assert [each[2:] for each in parts.windows("leaves")] == [("written", "the run ended")]


def test_a_window_of_memory_or_shapes_is_refused_with_the_reason(parts: Parts) -> None:
    refused = ("what operators allocate", "the shapes of their inputs")
    reasons = [("failed", f"JAX's profiler does not say {what}") for what in refused]
    assert [each[2:] for each in parts.windows("refused")] == reasons
