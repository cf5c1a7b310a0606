"""Unmodified scripts of Keras and TensorFlow. Without these packages the tests are skipped."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, open_ledgers
from stepscope.runs.model import COMPONENTS
from stepscope.training.automatic import AutomaticSteps
from stepscope.training.frameworks import keras_hooks, tensorflow_hooks
from stepscope.training.frameworks.computing import Computing, computing
from stepscope.training.frameworks.keras_hooks import batches_at_once, fetching_first

from tests.support.framework_scripts import SCRIPTS, run_python, run_script
from tests.support.smallest import smallest
from tests.support.training_script import EXPORTER
from tests.training.test_xla_profilers import profiled, read, windows

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_keras_imdb.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
HOOKED = f"{STARTUP}{os.pathsep}{EXPORTER}"
pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("keras") is None,
    reason="Keras or TensorFlow is not installed",
)


class Trained(NamedTuple):
    words: str
    complaints: list[str]
    totals: LedgerTotals

    def seconds(self, phase: str, component: str) -> float:
        return self.totals.inside[phase][COMPONENTS.index(component)]


def train(folder: Path, script: str, *words: str, **variables: str) -> dict[str, Trained]:
    """Trains under the hooks. Returns the runs of the script by name."""
    return runs_of(folder, str(SCRIPTS / f"{script}.py"), *words, **variables)


def runs_of(folder: Path, *words: str, **variables: str) -> dict[str, Trained]:
    """Runs Python under the hooks. Returns the runs of its process by name."""
    hooks = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": HOOKED}
    ended = run_python(folder, *words, **{**QUIET, **hooks, **variables})
    complaints = [line for line in ended.stderr.splitlines() if line.startswith("stepscope: ")]
    found = {}
    for path in open_ledgers(folder):
        with LedgerReader(path) as reader:
            reader.new_steps()
            found[reader.header.name] = Trained(ended.stdout, complaints, reader.totals())
    return found


def run(folder: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_script(folder, script, *words, **{**QUIET, **variables})


# Backends with the workers of a PyDataset, or with tf.data. Both paths of Keras's own and of PyTorch's loop.
PLAIN = ("tensorflow", "")
WAYS = [PLAIN, ("torch", "1"), ("tf_keras", "")]
IN_VARIANTS = {PLAIN: "plain", ("tf_keras", ""): "Keras 2, plain"}
MORE = [("torch", ""), ("jax", ""), ("torch", "2"), *product(("tensorflow", "jax"), "12")]
REST = ("tf_keras", "torch", "jax")
PY_SETTINGS = ("workers", "processes", "queue")
PY_DATASET: dict[str, list[float | None]] = {
    "": [None, None, None],
    "0": [0, 0, 0],
    "1": [0, 0, 0],
    "2": [2, 0, 4],
}


def settings(backend: str, workers: str) -> dict[str, str]:
    keras = {"KERAS": backend} if backend == "tf_keras" else {"KERAS_BACKEND": backend}
    threads = {"OMP_NUM_THREADS": "1"} if backend == "torch" else {}  # others would spin
    return {**keras, **threads, "PY_WORKERS": workers}


# Trains with Keras 3 and 2, one after the other, and at last with a callback.
EACH = f"""
import os, runpy, sys
for os.environ["KERAS"] in sys.argv[3:]:
    runpy.run_path({str(SCRIPTS / "keras_fit.py")!r}, run_name="__main__")
os.environ["KERAS"] = "keras"
runpy.run_path({str(SCRIPTS / "keras_callback.py")!r}, run_name="__main__")
"""
# Runs scripts one after the other: each is a run of its name, but one that makes its own runs.
IN_RUNS = f"""
import runpy, stepscope, sys
for name in sys.argv[3:]:
    if name != "keras_fit": stepscope.start(run=name)
    runpy.run_path({str(SCRIPTS)!r} + f"/{{name}}.py", run_name="__main__")
    if name != "keras_fit": stepscope.finish()
"""


@cache
def bare(backend: str, workers: str) -> str:
    """Returns what the script prints without hooks."""
    if not workers and backend in ("tensorflow", "tf_keras"):
        return in_one_process()[backend]
    with TemporaryDirectory() as folder:
        words = "0.01", f"{folder}/of.weights.h5"
        return run(Path(folder), "keras_fit", *words, **settings(backend, workers)).stdout


@cache
def in_one_process() -> dict[str, str]:
    """Returns what is printed with TensorFlow, without hooks, by Keras 3, by Keras 2 and with a callback."""
    versions = {"tensorflow": "keras", "tf_keras": "tf_keras"}
    there = {backend: keras for backend, keras in versions.items() if find_spec(keras)}
    with TemporaryDirectory() as folder:
        words = "0.01", f"{folder}/of.weights.h5", *there.values()
        ended = run_python(Path(folder), "-c", EACH, *words, **QUIET, KERAS_BACKEND="tensorflow")
    return dict(zip((*there, "callback"), ended.stdout.splitlines(keepends=True), strict=True))


@pytest.mark.parametrize(
    ("backend", "workers"), [*WAYS, *(pytest.param(*way, marks=pytest.mark.trial) for way in MORE)]
)
def test_each_batch_of_keras_is_a_step_and_the_weights_are_as_without_hooks(
    backend: str, workers: str, variants: dict[str, Trained], tmp_path: Path
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if (backend, workers) in IN_VARIANTS:
        name = IN_VARIANTS[backend, workers]
        trained = variants[name]
        trained = trained._replace(words=f"{weights(trained)[name]}\n")
    else:
        words = "0.01", str(tmp_path / "of.weights.h5")
        [trained] = train(tmp_path, "keras_fit", *words, **settings(backend, workers)).values()
        assert trained.complaints == []
    assert trained.totals.steps == {"train": 24, "eval": 8, "predict": 2}
    fetched = {loader.phase: sum(loader.wait_counts) for loader in trained.totals.loaders}
    assert fetched == trained.totals.steps
    assert trained.seconds("train", "data_wait") > 0
    assert trained.seconds("train", "forward") > 0
    assert trained.seconds("train", "checkpoint") > 0
    assert (trained.seconds("train", "backward") > 0) == (backend == "torch")
    assert (trained.seconds("train", "optimizer") > 0) == (backend == "torch")
    assert (trained.seconds("train", "compile") > 0) == (backend != "torch")
    gauges = trained.totals.gauges
    assert gauges["epoch"] == 2
    assert gauges.get("tf_data_sequential_maps") == (None if workers else 1)
    assert [gauges.get(f"keras_py_dataset_{name}") for name in PY_SETTINGS] == PY_DATASET[workers]
    assert 0 < gauges["loss"] < 100
    assert 0 < gauges["val_loss"] < 100
    if (backend, workers) != ("jax", "2"):  # they differ from run to run without hooks, too
        assert trained.words.startswith(bare(backend, workers))


class OfTensorFlow(NamedTuple):
    """What one process has trained: small loops, and then the variants of `fit`, with the window of one."""

    folder: Path
    small: dict[str, Trained]
    variants: dict[str, Trained]


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> OfTensorFlow:
    folder = tmp_path_factory.mktemp("variants")
    places = {"STEPSCOPE_PROFILE_DIR": str(folder / "profiles"), "TMPDIR": str(folder)}
    found = small_loops(folder, "tensorflow", "keras_fit", VARIANTS="1", **places)
    lines = next(iter(found.values())).words.splitlines(keepends=True)
    small, variants = "".join(lines[:2]), "".join(lines[2:])
    names = {"tensorflow_loop", "eager loop", "inside"} | {name for name in found if name[:6] == "keras_"}
    return OfTensorFlow(
        folder,
        {name: trained._replace(words=small) for name, trained in found.items() if name in names},
        {name: trained._replace(words=variants) for name, trained in found.items() if name not in names},
    )


@pytest.fixture(scope="module")
def variants(of_tensorflow: OfTensorFlow) -> dict[str, Trained]:
    return of_tensorflow.variants


def weights(trained: Trained) -> dict[str, str]:
    """Returns what each of the variants, which print all they have trained, has printed."""
    names = ["plain", "eager", "at once", "watched", "py", "generator", "mirrored"]
    if find_spec("tf_keras"):
        names += ["Keras 2", "Keras 2, mirrored", "Keras 2, py", "Keras 2, plain"]
    return dict(zip([*names, "profiled"], trained.words.splitlines(), strict=True))


def test_eager_steps_have_their_parts(variants: dict[str, Trained]) -> None:
    trained = variants["eager"]
    assert trained.totals.steps == {"train": 24, "eval": 8, "predict": 2}
    for component in ("data_wait", "forward", "backward", "optimizer"):
        assert trained.seconds("train", component) > 0, component
    assert trained.seconds("eval", "backward") == 0
    assert trained.totals.gauges["keras_run_eagerly"] == 1
    assert "tf_data_sequential_maps" not in trained.totals.gauges  # Keras made the dataset, of arrays


@pytest.mark.parametrize(
    ("variant", "workers", "backend"),
    [("py", "1", "tensorflow"), ("generator", "0", "tensorflow"), ("Keras 2, py", "2", "tf_keras")],
)
def test_batches_that_python_makes_are_those_of_no_pipeline(
    variant: str, workers: str, backend: str, variants: dict[str, Trained]
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    trained = variants[variant]
    assert trained.totals.steps == {"train": 24, "eval": 8, "predict": 2}
    assert trained.seconds("train", "data_wait") > 0
    gauges = trained.totals.gauges
    assert [gauges[f"keras_py_dataset_{name}"] for name in PY_SETTINGS] == PY_DATASET[workers]
    assert "tf_data_sequential_maps" not in gauges


class ArrayDataAdapter:
    """Stands for Keras's, of arrays."""


@pytest.mark.parametrize(
    ("trained_on", "known"),
    [
        (ArrayDataAdapter(), [{"keras_py_dataset_workers": 0}]),
        (SimpleNamespace(), []),
        (None, [{"keras_py_dataset_workers": 0}]),  # nothing was trained
    ],
)
def test_a_py_dataset_that_only_validates_is_known_if_no_other_loader_trains(
    trained_on: object, known: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[dict[str, float]] = []
    monkeypatch.setattr("stepscope.training.frameworks.computing.publish", published.append)
    loop = Computing()
    loop.in_loop, loop.adapter = True, trained_on
    if trained_on is not None:
        loop.waits("train")
    validated = SimpleNamespace(workers=1, use_multiprocessing=False, max_queue_size=10)
    loop.adapter = SimpleNamespace(py_dataset=validated, enqueuer=None)
    loop.waits("eval")
    rest = {"keras_py_dataset_processes": 0.0, "keras_py_dataset_queue": 0}
    assert published == [each | rest for each in known]


def test_only_a_loop_of_keras_that_counts_keeps_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "adapter", None)
    monkeypatch.setattr(computing, "in_loop", False)
    keras_hooks._epoch_begins(SimpleNamespace(data_adapter=ArrayDataAdapter()))
    assert computing.adapter is None


class MapDataset:
    def __init__(self, *read: object, stateful: bool = True) -> None:
        self._inputs = lambda: [*read]
        function_def = SimpleNamespace(signature=SimpleNamespace(is_stateful=stateful))
        self._functions = lambda: [SimpleNamespace(function=SimpleNamespace(function_def=function_def))]


@pytest.mark.parametrize("phases", ["predict", "train predict"])
def test_the_maps_of_a_pipeline_are_known_of_training_or_of_a_script_that_only_predicts(
    phases: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[dict[str, float]] = []
    monkeypatch.setattr(tensorflow_hooks, "publish", published.append)
    monkeypatch.setattr(tensorflow_hooks, "computing", Computing())
    dataset = MapDataset()
    for phase in phases.split():
        tensorflow_hooks._of_phase(lambda: dataset, phase)
    assert published == [{"tf_data_sequential_maps": 1.0}]


@pytest.mark.parametrize(
    ("variant", "backend", "fetched"),  # phases in which Keras also fetches batches outside of its graphs
    [
        ("at once", "tensorflow", ["predict"]),
        ("mirrored", "tensorflow", ["eval", "predict"]),
        *(("Keras 2", "tf_keras", []), ("Keras 2, mirrored", "tf_keras", [])),
    ],
)
def test_a_clock_in_a_graph_of_several_steps_counts_its_waits_for_batches(
    variant: str, backend: str, fetched: list[str], variants: dict[str, Trained]
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    trained = variants[variant]
    assert trained.totals.steps == {"train": 12, "eval": 4, "predict": 1}
    assert [loader.phase for loader in trained.totals.loaders] == fetched
    assert min(trained.seconds("train", component) for component in ("data_wait", "forward")) > 0
    # Each second is in one component: a wait is no part of the forward pass.
    assert sum(trained.totals.inside["train"]) <= trained.totals.phase_seconds["train"] + 1e-9
    assert trained.seconds("eval", "forward") > 0
    assert trained.complaints == []
    assert weights(trained)[variant] == bare(backend, "").strip()  # without hooks, batch by batch


def test_keras_2_has_a_variable_without_int_in_a_strategy() -> None:
    mirrored = SimpleNamespace(numpy=lambda: np.int64(3))
    assert batches_at_once(SimpleNamespace(steps_per_execution=mirrored)) == 3


def test_a_watched_dataset_is_still_one_that_keras_accepts(variants: dict[str, Trained]) -> None:
    trained = variants["watched"]
    assert trained.totals.steps == {"train": 24, "eval": 8, "predict": 2}
    fetched = {loader.phase: sum(loader.wait_counts) for loader in trained.totals.loaders}
    assert fetched == trained.totals.steps
    assert trained.seconds("train", "data_wait") > 0


class ConcatenateDataset(MapDataset):
    pass


class CacheDataset(MapDataset):
    pass


def test_the_maps_of_a_pipeline_that_reads_a_dataset_many_times_are_found_once() -> None:
    pipeline: MapDataset = MapDataset(MapDataset(), CacheDataset(MapDataset()))
    for _ in range(200):
        pipeline = ConcatenateDataset(pipeline, pipeline)
    assert tensorflow_hooks.settings_of_dataset(pipeline) == {"tf_data_sequential_maps": 2}
    pipeline = MapDataset(pipeline, stateful=False)
    found = tensorflow_hooks.settings_of_dataset(pipeline)
    assert found == {"tf_data_sequential_maps": 2}, "tf.data runs it in parallel without being told"
    for _ in range(5000):
        pipeline = MapDataset(pipeline)
    found = tensorflow_hooks.settings_of_dataset(pipeline)
    assert found == {"tf_data_sequential_maps": tensorflow_hooks.MOST_DATASETS}


def test_functions_of_python_that_graphs_call_are_timed_apart_from_those_of_pipelines(
    variants: dict[str, Trained],
) -> None:
    for run, trained in variants.items():  # Keras reads arrays in eager mode
        assert ("tf_data_python_seconds" in trained.totals.gauges) == (run != "eager")
    name = "tensorflow_python_seconds"
    seconds = {run: trained.totals.gauges.get(name) for run, trained in variants.items()}
    slept = seconds.pop("watched")
    assert slept is not None
    assert slept >= 0.01 * (24 + 8), "of training and evaluation"
    assert set(seconds.values()) == {None}


def test_a_window_of_keras_has_the_operators_of_its_steps_and_changes_no_weight(
    of_tensorflow: OfTensorFlow,
) -> None:
    trained = of_tensorflow.variants["profiled"]
    assert weights(trained)["profiled"] == bare(*PLAIN).strip()
    has_operator_in_each_step(of_tensorflow.folder, "Conv2D")


@pytest.mark.trial
def test_a_window_of_keras_on_jax_has_the_operators_of_its_steps_and_changes_no_weight(
    tmp_path: Path,
) -> None:
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    words = str(SCRIPTS / "keras_fit.py"), "0.01", str(tmp_path / "of.weights.h5")
    assert profiled(tmp_path, "3:6", *words, KERAS_BACKEND="jax").stdout == bare("jax", "")
    has_operator_in_each_step(tmp_path, "conv")


def has_operator_in_each_step(folder: Path, operator: str) -> None:
    assert windows(folder) == [(3, 6, "written", "")]
    source, steps = read(folder)
    assert list(steps.numbers) == [3, 4, 5, 6]
    assert 4 in [each.calls for each in source.facts.operators if operator in each.operator]


BACKENDS = pytest.mark.parametrize("small", smallest(("tensorflow", *REST), {0}), indirect=True)


def small_loops(folder: Path, backend: str, *more: str, **variables: str) -> dict[str, Trained]:
    """Trains with `train_on_batch`, as the first in its process, then in other loops that the backend has."""
    scripts = ["keras_on_batch", *["tensorflow_loop"] * (backend == "tensorflow")]
    scripts += ["keras_callback"] * (backend in ("tensorflow", "tf_keras"))
    words = "0.01", str(folder / "of.weights.h5"), *scripts, "keras_interrupted", *more
    return runs_of(folder, "-c", IN_RUNS, *words, **{"KERAS": "keras", **settings(backend, ""), **variables})


@pytest.fixture(scope="module")
def small(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Trained]]:
    """The backend, and what its small loops have trained."""
    backend: str = request.param
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if backend == "tensorflow":
        of_tensorflow: OfTensorFlow = request.getfixturevalue("of_tensorflow")
        return backend, of_tensorflow.small
    return backend, small_loops(tmp_path_factory.mktemp("small"), backend)


def test_a_loop_of_tensorflow_makes_steps_with_its_optimizer_and_reading_makes_none(
    of_tensorflow: OfTensorFlow,
) -> None:
    found = of_tensorflow.small
    assert found["inside"].totals.gauges["tensorflow_graphs_fetch"] == 1
    for name in ("tensorflow_loop", "eager loop"):
        trained = found[name]
        assert "tensorflow_graphs_fetch" not in trained.totals.gauges
        assert trained.complaints == []
        assert trained.totals.steps == {"train": 16, "eval": 8}
        fetched = {loader.phase: sum(loader.wait_counts) for loader in trained.totals.loaders}
        assert fetched == trained.totals.steps
        parts = ("backward", "optimizer") if name == "eager loop" else ("compile",)
        for component in ("data_wait", "forward", *parts):
            assert trained.seconds("train", component) > 0, (name, component)


@BACKENDS
def test_the_first_call_of_train_on_batch_is_a_step_too(small: tuple[str, dict[str, Trained]]) -> None:
    backend, trained = small[0], small[1]["keras_on_batch"]
    assert trained.complaints == []
    assert trained.totals.steps == {"train": 16}
    if backend != "torch":
        assert trained.seconds("train", "compile") > 0


@BACKENDS
def test_steps_after_an_interrupted_loop_of_keras_count(small: tuple[str, dict[str, Trained]]) -> None:
    trained = small[1]["keras_interrupted"]
    assert (trained.words.splitlines()[-1], trained.complaints) == ("2", [])
    assert trained.totals.steps == {"train": 3 + 16, "eval": 2}


@pytest.mark.parametrize("small", smallest(("tensorflow", "tf_keras"), {0}), indirect=True)
def test_what_a_callback_computes_is_code_of_the_user_and_no_forward_pass(
    small: tuple[str, dict[str, Trained]],
) -> None:
    backend, trained = small[0], small[1]["keras_callback"]
    if backend == "tensorflow":
        assert trained.words == in_one_process()["callback"] + "2\n"
    assert trained.totals.steps == {"train": 16, "eval": 4}
    seconds, inside = trained.totals.phase_seconds["train"], trained.totals.inside["train"]
    assert seconds - sum(inside) > trained.seconds("train", "forward"), "the rest is host, with the sleep"
    assert trained.seconds("eval", "compile") > 0, "an evaluation in a callback has its components"
    assert trained.seconds("eval", "forward") > 0


def test_workers_of_a_strategy_are_ranks_and_what_they_wait_for_each_other_is_communication(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, "tensorflow_workers", STEPSCOPE_INSTRUMENT="1", PYTHONPATH=HOOKED)
    assert "stepscope: " not in ended.stderr
    ranks: dict[str, set[tuple[int, int | None, int]]] = {}
    waited: dict[tuple[str, int], float] = {}
    for path in open_ledgers(tmp_path):
        with LedgerReader(path) as reader:
            reader.new_steps()
            header, totals = reader.header, reader.totals()
        ranks.setdefault(header.run, set()).add((header.rank, header.local_rank, header.world_size))
        assert totals.steps == {"train": 24}
        assert totals.gauges.get("tf_data_sequential_maps") == (
            None if header.rank else float(header.name == "fit")  # the other one has no state
        )
        assert totals.gauges.get("tensorflow_graphs_wait") == (None if header.rank else 1)
        inside = dict(zip(COMPONENTS, totals.inside["train"], strict=True))
        waited[header.name, header.rank] = inside["data_wait"]
        timed = {"data_wait", "communication", "forward", "compile"}
        timed -= {"communication"} if header.name == "fit" else set()  # it is inside of its graphs
        assert min(inside[name] for name in timed) > 0
    assert list(ranks.values()) == [{(0, 0, 2), (1, 1, 2)}] * (1 + bool(find_spec("tf_keras")))
    if find_spec("tf_keras"):
        assert waited["fit", 1] > waited["fit", 0]


@pytest.mark.parametrize("slow", smallest(["map", "none"], {0}))
def test_the_verdict_names_the_late_pipeline_and_accuses_no_prompt_one(slow: str, tmp_path: Path) -> None:
    command = ["-m", "stepscope", "run", "--name", "imdb", "--out", str(tmp_path / "out")]
    if slow == "map":  # it sleeps, so its share is small on crowded cores, which compute for longer
        command += ["--set", "DataStarved.threshold=4"]
    script = [sys.executable, str(EXAMPLE), "--slow", slow, "--reviews", "1600"]
    checkpoint = ["--checkpoint", str(tmp_path / "best.weights.h5")]
    run_python(tmp_path, *command, "--", *script, *checkpoint, **QUIET)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    rules = {rule["rule"]: rule for rule in report["rules"]}
    starved = rules["DataStarved"]
    assert (starved["status"] == "found") == (slow == "map"), starved
    if slow == "map":
        assert "Give `map` num_parallel_calls=tf.data.AUTOTUNE" in starved["recommendation"]
        assert "num_workers" not in starved["recommendation"]


RECORDER = "so_far", "in_automatic_step", "show_phase"


def test_a_loop_goes_on_after_another_one_that_its_callback_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_hooks, "_loop", keras_hooks._Loop())
    monkeypatch.setattr(keras_hooks, "recorder", SimpleNamespace(**dict.fromkeys(RECORDER, bool)))
    monkeypatch.setattr(keras_hooks, "automatic", SimpleNamespace(begin_anew=bool))

    class Trainer:
        def fit(self, act: Callable[[], None] = lambda: None) -> None:
            keras_hooks._training_begins("", "")
            act()
            keras_hooks._training_ended()

    def fails() -> None:
        raise ValueError

    def callback() -> None:
        Trainer().fit()
        with pytest.raises(ValueError):
            Trainer().fit(fails)
        assert computing.in_loop

    keras_hooks.hook_calls_of_loops(Trainer)
    Trainer().fit(callback)
    assert not computing.in_loop


def test_the_first_batch_of_a_script_that_only_predicts_is_a_step_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([(5.0,), (7.0,), (9.0,)])
    steps: list[tuple[float, ...]] = []
    recorder = SimpleNamespace(
        first_batch_came=lambda: True,
        so_far=lambda: next(moments),
        take_step_out=lambda _, begin, end: steps.append((*begin, *end)),
    )
    monkeypatch.setattr("stepscope.training.automatic.recorder", recorder)
    loop = AutomaticSteps()
    loop.came((1.0, 5.0, None, True))
    loop.batch_ended("predict", (1.0,))
    loop.batch_ended("predict", (7.0,))
    assert steps == [(5.0, 7.0), (7.0, 9.0)]


@pytest.mark.parametrize("reads_first", [False, True])  # a batch, to build the model, as on PyTorch
def test_an_evaluation_goes_on_after_others_that_its_callbacks_ran(
    reads_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callbacks:
        def __init__(self, act: Callable[[], None]) -> None:
            self.act = act

        def on_test_begin(self) -> None:
            pass

        def on_test_batch_end(self) -> None:
            self.act()

        def on_test_end(self) -> None:
            self.act()

    class Trainer:
        def evaluate(self, act: Callable[[], None] = lambda: None) -> None:
            if reads_first and not open_steps:
                begin_step()
            callbacks = Callbacks(act)
            callbacks.on_test_begin()
            callbacks.on_test_batch_end()
            callbacks.on_test_batch_end()
            callbacks.on_test_end()

    open_steps: list[tuple[float, ...]] = []
    batches: list[str] = []

    def begin_step() -> bool:
        open_steps.append((0.0,))
        return True

    recorder = SimpleNamespace(
        so_far=lambda: open_steps[-1] if open_steps else None,
        counts_here=lambda: True,
        in_automatic_step=begin_step,
        show_phase=lambda _: None,
    )
    loop = SimpleNamespace(batch_ended=lambda phase, _: batches.append(phase), begin_anew=open_steps.clear)
    monkeypatch.setattr(keras_hooks, "_loop", keras_hooks._Loop())
    monkeypatch.setattr(keras_hooks, "recorder", recorder)
    monkeypatch.setattr(keras_hooks, "automatic", loop)
    keras_hooks.hook_loops(SimpleNamespace(CallbackList=Callbacks), "", "")
    keras_hooks.hook_calls_of_loops(Trainer)
    is_of_user = []

    def act() -> None:
        is_of_user.append(computing.in_callback)
        Trainer().evaluate()
        is_of_user.append(computing.in_callback)

    Trainer().evaluate(act)
    assert is_of_user == [True] * 6
    assert batches == ["eval"] * (2 + 3 * 2)
    assert (computing.in_loop, computing.in_callback, open_steps) == (False, False, [])


@pytest.mark.parametrize("jit", [True, False])
def test_a_batch_of_a_new_shape_that_train_on_batch_gives_to_xla_compiles(
    jit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = SimpleNamespace(Iterator=tuple)
    distribute = SimpleNamespace(DistributedIterator=tuple)
    nest = SimpleNamespace(flatten=list)
    monkeypatch.setitem(
        sys.modules, "tensorflow", SimpleNamespace(data=data, distribute=distribute, nest=nest)
    )
    seen = []

    def function(iterator: Iterator[Any]) -> None:
        seen.append((next(iterator), computing.will_compile))
        computing.will_compile = False

    timed = fetching_first(SimpleNamespace(jit_compile=jit, run_eagerly=False), function)
    batches = [(np.zeros((size, 3)), None) for size in (4, 4, 5)]
    for batch in batches:
        timed(each for each in [batch])
    assert [batch for batch, _ in seen] == batches
    assert [compiles for _, compiles in seen] == [jit, False, jit]


def test_the_graph_that_tensorboard_of_keras_2_writes_is_the_one_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Spec:
        pass

    class Batches(list[int]):
        element_spec = (Spec(),)

        def __next__(self) -> int:
            return self.pop()

    def graph(_: int) -> None:
        pass

    def function(_: object) -> None:
        pytest.fail("it gets the iterator")

    kinds = dict.fromkeys(("TensorSpec", "RaggedTensorSpec", "SparseTensorSpec"), Spec)
    tensorflow = SimpleNamespace(
        data=SimpleNamespace(Iterator=Batches),
        distribute=SimpleNamespace(DistributedIterator=Batches, get_strategy=object),
        nest=SimpleNamespace(flatten=list),
        function=lambda _, **__: graph,
        **kinds,
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    model = SimpleNamespace(jit_compile=False, run_eagerly=False, train_tf_function=function)
    fetching_first(model, function, function)(Batches([1]))
    assert model.train_tf_function is graph


class Graph:
    """A tf.function that was traced."""

    def experimental_get_tracing_count(self) -> int:
        return 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Replaces TensorFlow. Returns the list of functions that ended a step."""
    kinds = {"data": ("Iterator", "Dataset"), "distribute": ("DistributedIterator", "DistributedDataset")}
    parts = {
        part: SimpleNamespace(**{name: type(name, (), {}) for name in names}) for part, names in kinds.items()
    }
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(**parts))
    context = SimpleNamespace(executing_eagerly=lambda: True)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)
    monkeypatch.setattr(computing, "begin", lambda *_: 0)
    monkeypatch.setattr(computing, "end", lambda *_: None)
    ended: list[object] = []
    monkeypatch.setattr(computing, "step_ended", ended.append)
    return ended


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_function_that_runs_eagerly_is_no_graph_that_is_traced_at_each_call(
    eagerly: bool, graphs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[dict[str, float]] = []
    monkeypatch.setattr(tensorflow_hooks, "publish", published.append)
    config = SimpleNamespace(functions_run_eagerly=lambda: eagerly)
    monkeypatch.setattr(sys.modules["tensorflow"], "config", config, raising=False)
    train = Graph()
    tensorflow_hooks._graphs.with_steps.add(train)
    call = tensorflow_hooks._begins(train)
    if call is not None:
        tensorflow_hooks._returned(call, True)
    assert (graphs, published) == (([], [{"keras_run_eagerly": 1.0}]) if eagerly else ([train], []))


def test_a_graph_that_another_thread_runs_hides_no_step(graphs: list[object]) -> None:
    train, act = Graph(), Graph()
    tensorflow_hooks._graphs.with_steps.add(train)
    thread = Thread(target=tensorflow_hooks._called, args=(act,))  # it does not return yet
    thread.start()
    thread.join()
    tensorflow_hooks._returned(tensorflow_hooks._called(train), True)
    assert graphs == [train]


def test_replicas_are_of_the_graph_that_started_them_whatever_another_thread_calls(
    graphs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Untraced(Graph):
        def experimental_get_tracing_count(self) -> int:
            return 0

    def in_thread(function: Callable[..., Any], *arguments: object) -> None:
        thread = Thread(target=function, args=arguments)
        thread.start()
        thread.join()

    train, act = Untraced(), Untraced()
    call = tensorflow_hooks._called(train)
    tensorflow_hooks._replicas_run(None, None)
    in_thread(tensorflow_hooks._called, act)
    with monkeypatch.context() as tracing:
        tracing.setattr(tensorflow_hooks, "runs_eagerly", lambda: False)
        in_thread(tensorflow_hooks.optimizer_is_traced)
    tensorflow_hooks._returned(call, True)
    assert graphs == [train]


def test_after_an_interrupt_before_a_graph_begins_no_graph_seems_to_run(
    graphs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    train = Graph()
    tensorflow_hooks._graphs.with_steps.add(train)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(computing, "begin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tensorflow_hooks._called(train)
    tensorflow_hooks._returned(tensorflow_hooks._called(train), True)
    assert graphs == [train]


def test_a_graph_that_iterates_over_a_dataset_says_that_its_time_may_be_waits(
    graphs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[dict[str, float]] = []
    monkeypatch.setattr(tensorflow_hooks, "publish", published.append)
    epoch, step = Graph(), Graph()
    tensorflow_hooks._graphs.with_steps.update([epoch, step])
    call = tensorflow_hooks._called(epoch)
    with monkeypatch.context() as tracing:
        tracing.setattr(tensorflow_hooks, "runs_eagerly", lambda: False)
        tensorflow_hooks._loop_is_traced()
    tensorflow_hooks._loop_is_traced()  # a loop of Python
    tensorflow_hooks._returned(call, True)
    tensorflow_hooks._returned(tensorflow_hooks._called(step), True)
    assert published == [{"tensorflow_graphs_fetch": 1.0}]
    assert graphs == [epoch, step]


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("in_loop", [True, False])
def test_only_a_graph_of_keras_that_gets_data_has_no_component_and_other_arguments_are_asked_for_nothing(
    in_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "in_loop", in_loop)
    fetches = None if in_loop else 0

    class Lazy:
        def __getattr__(self, name: str) -> object:
            raise KeyError(name)

    def component(*arguments: Any, **keywords: Any) -> int | None:
        call = tensorflow_hooks._called(Graph(), *arguments, **keywords)
        tensorflow_hooks._returned(call, True)
        return call[0].place

    tensorflow: Any = sys.modules["tensorflow"]
    assert component(Lazy(), each=Lazy()) == 0
    assert component(tensorflow.data.Iterator()) == fetches
    assert component(iterator=tensorflow.data.Iterator()) == fetches
    assert component(tensorflow.data.Dataset()) == fetches
    assert component(data=tensorflow.distribute.DistributedDataset()) == fetches


def test_models_that_train_on_batch_in_turn_make_one_step_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        def train_on_batch(self) -> None:
            pass

        def _make_function(self) -> None:
            pass

    ended: list[object] = []
    monkeypatch.setattr(computing, "step_ended", ended.append)
    monkeypatch.setattr(keras_hooks, "_trains_on_batch", lambda *_: None)
    keras_hooks._hook_jax(Trainer)
    generator, discriminator = Trainer(), Trainer()
    generator.train_on_batch()
    discriminator.train_on_batch()
    assert ended == [generator, discriminator], "the first one ends the steps"
