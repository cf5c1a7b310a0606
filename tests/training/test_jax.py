"""Unmodified scripts of JAX, also with Optax and Flax. Without these packages the tests are skipped."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, open_ledgers
from stepscope.runs.model import COMPONENTS
from stepscope.training.frameworks import jax_hooks
from stepscope.training.frameworks.computing import Call

from tests.support.framework_scripts import SCRIPTS, run_python

HOOKED = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": str(STARTUP)}
pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def run(folder: Path, *words: str, **variables: str) -> str:
    """Returns what a script prints, whose errors must be none."""
    ended = run_python(folder, *words, JAX_PLATFORMS="cpu", **variables)
    assert ended.stderr == ""
    return ended.stdout


LOOP, FLAX = str(SCRIPTS / "jax_loop.py"), str(SCRIPTS / "flax_loop.py")
# Prints all that a compiled function has.
USES = """
import functools, inspect, pickle, weakref
import jax, jax.numpy as jnp
for each in (jax.jit, jax.pmap, jax.vjp, jax.block_until_ready, jax.distributed.initialize):
    print(pickle.loads(pickle.dumps(each)) is each)
@functools.partial(jax.jit, static_argnames="times")
def train(value, times=2):
    "Says something."
    return value * times
class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, value):
        return train(value) + 1
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return True
outer = jax.jit(lambda value: train(value, times=3) + jax.grad(lambda value: train(value))(value))
print(train(2.0), train(2.0, times=3), Model().step(1.0), outer(2.0), jax.vmap(train)(jnp.ones(3)))
print(train.__name__, train.__doc__, inspect.signature(train), train.__wrapped__(3), train._cache_size())
print(isinstance(train, jax.stages.Wrapped), train.lower(2.0).as_text(), train.eval_shape(2.0))
print(type(train).__name__, weakref.ref(train)() is train, callable(train))
print(jax.jit(train, donate_argnums=0).lower(2.0).as_text())
print(sorted(vars(train)), repr(train)[:20])
print(outer.lower(2.0).as_text(debug_info=True), jax.make_jaxpr(outer)(2.0))
train.clear_cache()
try:
    train("text")
except TypeError as error:
    print(str(error).partition(" at ")[0])
with jax.disable_jit():
    print(train(2.0))
"""
HOW = (
    "donated",
    "ahead",
    "anew",
    "twins",
    "accumulated",
    "calls back",
    "parts",
    "gradients",
    "plain",
    "step",
    "saliency",
    "never",
    "sampling",
    "uses",  # not first: a run begins with the framework that was imported
)
# Runs the script of each word, and prints a line after it. Under the hooks, each is a run of that name.
EACH = f"""
import os, runpy, sys
if "STEPSCOPE_INSTRUMENT" in os.environ: import stepscope
for word in sys.argv[1:]:
    sys.argv = [{FLAX!r} if "nnx" in word else {LOOP!r}, word]
    if "stepscope" in sys.modules: stepscope.start(run=word)
    if word == "uses": exec({USES!r}, {{"__name__": "uses"}})
    else: runpy.run_path(sys.argv[0], run_name="__main__")
    if "stepscope" in sys.modules: stepscope.finish()
    print("--")
"""


def each(folder: Path, *words: str, **variables: str) -> dict[str, str]:
    """Returns what the loop prints in each way: all from one process."""
    printed = run(folder, "-c", EACH, *words, **variables).split("--\n")
    return dict(zip(words, printed[:-1], strict=True))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    words = [*HOW, *(("optax", "optax twins", "optax in it") if find_spec("optax") else ())]
    words += ["nnx, only gradients"] if find_spec("flax") else []
    return each(tmp_path_factory.mktemp("bare"), *words)


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory, bare: dict[str, str]) -> dict[str, LedgerTotals]:
    """What hooks saw of the loop in each way. It must print what it prints without them."""
    folder = tmp_path_factory.mktemp("hooked")
    # What samples has the code of an update: hooks would know it from the loops before.
    printed = {how: text for how, text in bare.items() if how != "sampling"}
    assert each(folder, *printed, **HOOKED) == printed
    return seen(folder)


def seen(folder: Path) -> dict[str, LedgerTotals]:
    found = {}
    for ledger in open_ledgers(folder):
        with LedgerReader(ledger) as reader:
            assert reader.header.framework == "jax"
            reader.new_steps()
            found[reader.header.name] = reader.totals()
    return found


TRIAL = pytest.mark.trial
# The loops have 16 steps, or 8. Where a first step began is not known of an update alone.
WAYS = [
    ("accumulated", 7),
    ("donated", 16),
    ("ahead", 16),
    ("anew", 16),
    ("twins", 16),
    ("parts", 15),
    ("gradients", 15),
    ("plain", 16),  # whose update is known from the loop before
    ("step", 16),
    ("optax", 16),
    ("optax twins", 16),
    ("optax in it", 16),
    ("never", 7),  # nobody sees the update: the tenth call decides that each is one of a step
]


@pytest.mark.parametrize(("how", "steps"), WAYS)
def test_a_loop_of_jax_makes_steps_and_the_parameters_are_as_without_hooks(
    how: str, steps: int, hooked: dict[str, LedgerTotals]
) -> None:
    if "optax" in how and find_spec("optax") is None:
        pytest.skip("Optax is not installed")
    totals = hooked[how]
    assert totals.steps == {"train": steps}
    inside = dict(zip(COMPONENTS, totals.inside["train"], strict=True))
    assert inside["forward"] > 0
    assert inside["compile"] > 0  # of the evaluation, between two steps
    assert (inside["optimizer"] > 0) == (how in ("optax", "optax twins", "gradients", "plain"))


def test_functions_of_python_that_compiled_functions_call_are_timed(
    hooked: dict[str, LedgerTotals],
) -> None:
    totals = hooked["calls back"]
    assert totals.steps == {"train": 16}
    assert totals.gauges["jax_python_seconds"] >= 2 * 0.01 * (16 + 8), "of training and evaluation"


def test_a_loop_that_computes_gradients_for_the_same_parameters_has_no_steps(
    hooked: dict[str, LedgerTotals],
) -> None:
    assert not hooked["saliency"].steps


@TRIAL
def test_a_loop_that_only_samples_begins_no_run(bare: dict[str, str], tmp_path: Path) -> None:
    assert run(tmp_path, LOOP, "sampling", **HOOKED) == bare["sampling"]
    assert not list(open_ledgers(tmp_path))


@pytest.mark.skipif(find_spec("flax") is None, reason="Flax is not installed")
def test_a_loop_of_flax_makes_steps_and_its_evaluation_makes_none(hooked: dict[str, LedgerTotals]) -> None:
    assert hooked["nnx, only gradients"].steps == {"train": 16}


@TRIAL
@pytest.mark.skipif(find_spec("flax") is None, reason="Flax is not installed")
@pytest.mark.parametrize("how", ["linen", "nnx"])
def test_a_compiled_loop_of_flax_makes_steps_and_its_evaluation_makes_none(how: str, tmp_path: Path) -> None:
    assert run(tmp_path, FLAX, how, **HOOKED) == run(tmp_path, FLAX, how)
    (totals,) = seen(tmp_path).values()
    assert totals.steps == {"train": 16}


def test_threads_that_compile_and_call_functions_meanwhile_end_no_hook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax_hooks, "_functions", jax_hooks._Functions())
    made = [jax_hooks._Function() for _ in range(9)]

    def compiles(function: jax_hooks._Function) -> jax_hooks._Function:
        with monkeypatch.context() as tracing:
            tracing.setattr(jax_hooks._running, "calls", [Call(function, 0)])
            jax_hooks._gradient_begins()
        return function

    class Forgotten(dict[int, Any]):
        """What another thread forgets once this one has looked it up, after it compiled a function."""

        def __contains__(self, key: object) -> bool:
            compiles(made.pop())
            return True

        def get(self, key: int, default: Any = None) -> Any:
            compiles(made.pop())
            return default

    kept = [compiles(made.pop()) for _ in range(2)]
    for function in kept:
        function.returned = Forgotten()
    update = jax_hooks._Function()
    update.gets_back = True
    monkeypatch.setattr(jax_hooks, "_arrays", lambda _: [object()])
    jax_hooks._compare(update, None)
    assert (len(made), update.updates) == (5, False)


def test_a_compiled_function_has_all_that_it_has_without_hooks(
    bare: dict[str, str], hooked: dict[str, LedgerTotals]
) -> None:
    assert len(bare["uses"].splitlines()) > 50, "which `hooked` compares"
    assert not hooked["uses"].steps


def test_a_jax_without_the_internals_that_hooks_use_trains_as_ever(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    script = tmp_path / "other_version.py"
    script.write_text(
        f"""
import sys
import jax
hidden = {{}}
for name in ("jax.monitoring", "jax.distributed", "jax._src.array", "jax._src.api"):
    hidden[name] = sys.modules.pop(name)
import stepscope
stepscope.instrument()
sys.modules.update(hidden)
exec(open({LOOP!r}).read())
"""
    )
    exporter = str(STARTUP.parents[2])
    assert run(tmp_path, str(script), "step", PYTHONPATH=exporter) == bare["step"]
    assert not list(open_ledgers(tmp_path))  # without gradients nobody knows what trains
