"""Times Keras 3: the loops of `fit`, `evaluate` and `predict`, on TensorFlow, JAX and PyTorch.

Each call of Keras's callbacks at the end of a batch ends a step, which has all that happened since the one
before. Batches of `evaluate` and `predict` are steps of their own, also inside `fit`. With
`steps_per_execution`, a step has several batches.

On TensorFlow, `fit` and `evaluate` fetch a batch inside the graph that trains on it, where no hook can see
the wait. So the batch is fetched before, as Keras itself does in `predict`, and the rest of the same graph
gets it as its argument. Nothing else changes: the shapes that the graph is traced with are the dataset's.
Graphs that must fetch their batches themselves have a clock inside (graph_clock.py).
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain, product
from threading import local
from types import GeneratorType
from weakref import ref

from stepscope.training.automatic import LoaderWaits, automatic
from stepscope.training.frameworks.around import around, never, replace, timed
from stepscope.training.frameworks.computing import (
    FORWARD,
    OPTIMIZER,
    ask,
    checkpoint,
    computing,
    forward,
    got,
    leave,
)
from stepscope.training.frameworks.published import after, publish
from stepscope.training.frameworks.tensorflow_hooks import (
    SEVERAL,
    fetches_here,
    optimizer_is_traced,
    settings_of_dataset,
    step_is_traced,
    step_was_traced,
)
from stepscope.training.frameworks.xla_profilers import jax_profiler, tensorflow_profiler
from stepscope.training.layout import EAGER
from stepscope.training.loader import Waits
from stepscope.training.off import is_off
from stepscope.training.session import complain, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stepscope.training.automatic import Moment
    from stepscope.training.frameworks.computing import Asked

_SAVES = {
    "keras.src.models.model": ("Model", ("save", "save_weights", "export")),
    "keras.src.saving.saving_lib": ("", ("save_model", "save_weights_only")),
}
_TRAINERS = {
    "tensorflow": "TensorFlowTrainer",
    "jax": "JAXTrainer",
    "torch": "TorchTrainer",
    "numpy": "NumpyTrainer",
    "openvino": "OpenVINOTrainer",
}
_PROFILERS = {"jax": jax_profiler, "tensorflow": tensorflow_profiler}  # by the backend; PyTorch has its own
_installed = False


def install() -> None:
    """Hooks Keras 3, which must be imported completely. Does nothing for Keras 2, or if Stepscope is off."""
    global _installed
    keras = sys.modules["keras"]
    if _installed or is_off() or not str(getattr(keras, "__version__", "")).startswith("3."):
        return
    _installed = True
    backend = keras.config.backend()
    hook_loops(sys.modules.get("keras.src.callbacks.callback_list"), backend, keras.__version__)
    iterators = getattr(sys.modules.get("keras.src.trainers.epoch_iterator"), "EpochIterator", None)
    around(iterators, "__iter__", _epoch_begins)
    around(iterators, "__next__", _asks, got)
    hook_numbers(sys.modules.get("keras.src.callbacks"))
    trainers = sys.modules.get(f"keras.src.backend.{backend}.trainer")
    trainer = getattr(trainers, _TRAINERS.get(backend, ""), None)
    hook_calls_of_loops(trainer)
    if backend == "tensorflow":
        around(trainer, "train_on_batch", _trains_on_batch)
        replace(trainer, "_make_function", _with_fetches)
        replace(trainer, "_autoconvert_optionals", _with_clock)
    elif backend == "jax":
        _hook_jax(trainer)
    if backend != "jax":
        hook_eager_parts(
            backend,
            getattr(sys.modules.get("keras.src.layers.layer"), "Layer", None),
            getattr(sys.modules.get("keras.src.trainers.trainer"), "Trainer", None),
            ("_compute_loss", "compute_metrics"),
        )
        optimizer = getattr(sys.modules.get("keras.src.optimizers.base_optimizer"), "BaseOptimizer", None)
        hook_optimizer(backend, optimizer, "apply")
    for module, (owner, names) in _SAVES.items():
        found = sys.modules.get(module)
        for name in names:
            around(getattr(found, owner, None) if owner else found, name, checkpoint, leave)


# -- loops ---------------------------------------------------------------------------------------------


class _Loop(local):
    """The loop of Keras that a thread runs now."""

    def __init__(self) -> None:
        self.is_called = False  # `fit`, `evaluate` or `predict`: loops of scripts may call callbacks, too
        self.begin: Moment = ()  # of the latest batch that is not trained on
        self.is_alone = False  # it trains nothing, and is in no step


_loop = _Loop()


def hook_loops(module: Any, backend: str, version: str) -> None:
    """Hooks the callbacks of a module that has CallbackList. `version` is that of Keras."""
    callbacks, name = getattr(module, "CallbackList", None), f"{version} on {backend}"
    parts = ("epoch", *(f"{loop}{part}" for loop in ("train", "test", "predict") for part in ("", "_batch")))
    for part, end in product(parts, ("begin", "end")):
        around(callbacks, f"on_{part}_{end}", _calls_back, _called_back)
    around(callbacks, "on_train_begin", partial(_training_begins, backend, name))
    after(callbacks, "on_epoch_begin", lambda _, __, epoch, *___, **____: publish({"epoch": epoch}))
    after(callbacks, "on_train_batch_end", _trained)
    after(callbacks, "on_train_end", _training_ended)
    for phase, loop in (("eval", "test"), ("predict", "predict")):
        around(callbacks, f"on_{loop}_begin", partial(_evaluation_begins, phase, name))
        after(callbacks, f"on_{loop}_batch_end", partial(_evaluated, phase))
        after(callbacks, f"on_{loop}_end", _evaluation_ended)


def hook_calls_of_loops(trainer: Any) -> None:
    """Hooks the methods with loops, because an error that ends one calls no callback at its end."""
    for name in ("fit", "evaluate", "predict"):
        around(trainer, name, _loop_is_called, _loop_was_left)


def _loop_is_called(*_: object, **__: object) -> tuple[tuple[bool, bool, bool, bool, bool], Any]:
    is_called, _loop.is_called = _loop.is_called, True
    state = is_called, bool(_loop.begin), _loop.is_alone, computing.in_loop, computing.in_callback
    _loop.is_alone = recorder.so_far() is None
    return state, computing.adapter


def _loop_was_left(before: tuple[tuple[bool, bool, bool, bool, bool], Any], done: bool) -> None:
    """Makes the loop around it, if there is one, the running one again, also after an error."""
    state, computing.adapter = before
    _loop.is_called, evaluates, _loop.is_alone, computing.in_loop, computing.in_callback = state
    _loop.begin = (recorder.so_far() or ()) if evaluates else ()
    if not done:
        automatic.begin_anew()
        recorder.show_phase("train")


def _calls_back(*_: object, **__: object) -> tuple[bool] | None:
    """Begins the callbacks of a loop."""
    if not _loop.is_called:
        return None
    before, computing.in_callback = computing.in_callback, True
    return (before,)


def _called_back(before: tuple[bool], _done: bool) -> None:
    (computing.in_callback,) = before


def _training_begins(backend: str, name: str, *_: object, **__: object) -> None:
    if not _loop.is_called:
        return
    computing.in_callback = _loop.is_alone = False
    automatic.begin_anew()
    computing.in_loop = True
    _use_profiler(backend)
    if recorder.in_automatic_step():
        _name_framework(name)


def _trains_on_batch(*_: object, **__: object) -> None:
    """Begins the first step of a loop without a loader: its call says before it compiles that it trains."""
    recorder.in_automatic_step()


def _trained(*_: object, **__: object) -> None:
    if _loop.is_called and recorder.counts_here():
        automatic.step_ended(-1)


def _training_ended(*_: object, **__: object) -> None:
    if _loop.is_called:
        automatic.begin_anew()


def _evaluation_begins(phase: str, name: str, *_: object, **__: object) -> None:
    if not _loop.is_called:
        return
    if _loop.is_alone:
        automatic.begin_anew()  # without the batch that Keras may have read to build the model
        if recorder.in_automatic_step():
            computing.in_loop = True
            _name_framework(name)
    _loop.begin = recorder.so_far() or ()
    computing.in_callback = False
    recorder.show_phase(phase)


def _evaluated(phase: str, *_: object, **__: object) -> None:
    if _loop.begin:
        automatic.batch_ended(phase, _loop.begin)
        _loop.begin = recorder.so_far() or ()
        recorder.show_phase(phase)


def _evaluation_ended(*_: object, **__: object) -> None:
    _loop.begin = ()
    recorder.show_phase("train")
    if _loop.is_alone:
        _training_ended()


def _use_profiler(backend: str) -> None:
    profiler = _PROFILERS.get(backend)
    if profiler is not None:
        profiler.use()


def _name_framework(name: str) -> None:
    if session.ledger is not None:
        session.ledger.name_framework("keras", name)


def _epoch_begins(iterator: Any) -> None:
    if computing.in_loop:  # whose end lets go of it
        computing.adapter = getattr(iterator, "data_adapter", None)


def _asks(iterator: Any) -> Asked | None:
    """Begins the wait for a batch on PyTorch. The other backends fetch it in the step's function."""
    if not computing.in_loop:
        return None
    waits = iterator.__dict__.get("_stepscope")
    if waits is None:
        iterator._stepscope = waits = LoaderWaits(_of_phase)
    return ask(waits)


def _of_phase(phase: str) -> Waits:
    tensorflow = sys.modules.get("tensorflow")
    dataset = getattr(computing.adapter, "_dataset", None)
    is_pipeline = tensorflow is not None and isinstance(dataset, tensorflow.data.Dataset)
    if computing.is_of_run(phase) and is_pipeline:
        publish(settings_of_dataset(dataset))
    return computing.waits(phase)


# -- what Keras has in Python anyway -------------------------------------------------------------------


def hook_numbers(callbacks: Any) -> None:
    """Hooks the callbacks of a module that has History and ProgbarLogger."""
    after(getattr(callbacks, "History", None), "on_epoch_end", _logged)
    after(getattr(callbacks, "ProgbarLogger", None), "on_train_batch_end", _logged)


def _logged(_result: object, _callback: object, _number: int, logs: Any = None) -> None:
    publish(logs or {})


# -- what is not one graph -----------------------------------------------------------------------------


def hook_eager_parts(backend: str, layer: Any, trainer: Any, names: tuple[str, ...]) -> None:
    """Hooks layers, losses and metrics, which run one by one outside of graphs."""
    for owner, name in ((layer, "__call__"), *((trainer, name) for name in names)):
        around(owner, name, forward, computing.end, _compiles(backend))


def hook_optimizer(backend: str, optimizer: Any, name: str) -> None:
    """Hooks the function that makes the step of an optimizer."""
    begins = _optimizer_begins if backend == "torch" else _eager_optimizer_begins
    around(optimizer, name, begins, partial(_optimizer_ended, backend), _compiles(backend))


def _compiles(backend: str) -> Callable[[], bool]:
    if backend != "torch":
        return never
    from stepscope.training.frameworks.torch_hooks.patches import is_compiling

    return is_compiling


def _eager_optimizer_begins(optimizer: Any, *_: object, **__: object) -> tuple[Any, int | None] | None:
    return None if optimizer_is_traced() else _optimizer_begins(optimizer)


def _optimizer_begins(optimizer: Any, *_: object, **__: object) -> tuple[Any, int | None]:
    return optimizer, computing.begin(OPTIMIZER)


def _optimizer_ended(backend: str, step: tuple[Any, int | None], done: bool) -> None:
    optimizer, place = step
    if place is not None:
        computing.end(place)
    if done:
        _use_profiler(backend)
        computing.step_ended(optimizer)


# -- TensorFlow ----------------------------------------------------------------------------------------


def _with_fetches(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(trainer: Any, step_function: Any) -> Any:
        function = original(trainer, step_function)
        # Those of older versions accept no other iterator than TensorFlow's.
        accepts_any = "zip" in getattr(getattr(function, "__code__", None), "co_names", ())
        return fetching_first(trainer, function) if accepts_any else function

    return make


def _with_clock(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(trainer: Any, step: Any) -> Any:
        return timed(original(trainer, step), "step", step_is_traced, see=step_was_traced)

    return make


def fetching_first(
    trainer: Any, function: Callable[..., Any], untraced: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function that fetches a batch, and then calls the graph of what `function` does with it.

    `untraced` is given if `function` is a graph itself: what that traces, converted by AutoGraph.
    """
    tensorflow = sys.modules["tensorflow"]
    graphs: dict[str, Any] = {}  # by the shapes and types of batches
    latest: tuple[Callable[[], object], Any] = (lambda: None), None  # the iterator and its graph
    compiled: set[tuple[str, ...]] = set()  # shapes that XLA has seen

    def step(data: Any) -> Any:
        return (untraced or function)(iter((data,)))

    def graph_for(iterator: Any) -> Any:
        """Returns the graph for batches of an iterator; None if it must fetch them itself."""
        if not isinstance(iterator, (tensorflow.data.Iterator, tensorflow.distribute.DistributedIterator)):
            return None  # of one batch, as in `train_on_batch`
        several = batches_at_once(trainer) != 1
        if several or not _gives_tensors(iterator, tensorflow):
            has_clock = untraced or hasattr(trainer, "_autoconvert_optionals")
            if has_clock and fetches_here(iterator) and not trainer.run_eagerly:
                if not _loop.begin:
                    _of_phase("train")
                return None
            why = "steps_per_execution is not 1" if several else "of their types, or of the strategy"
            complain("fetch", f"waits for data are not timed, because {why}: a graph fetches the batches")
            return None
        if trainer.run_eagerly:
            publish({EAGER: 1.0})
            return step
        name = repr(iterator.element_spec)
        if name not in graphs:
            traced = step if untraced else tensorflow.autograph.experimental.do_not_convert(step)
            graphs[name] = tensorflow.function(
                traced, input_signature=[iterator.element_spec], reduce_retracing=True
            )
            if getattr(trainer, "train_tf_function", None) is function:  # Keras 2 keeps it for TensorBoard
                trainer.train_tf_function = graphs[name]
        return graphs[name]

    def timed(iterator: Any) -> Any:
        nonlocal latest
        try:
            if latest[0]() is not iterator:
                latest = ref(iterator), graph_for(iterator)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            latest = (lambda: iterator), None
            complain("fetch", f"waits for data are not timed: {type(error).__name__}: {error}")
        graph, compiles = latest[1], trainer.jit_compile and not trainer.run_eagerly
        if graph is None and not (compiles and isinstance(iterator, GeneratorType)):  # of `train_on_batch`
            return function(iterator)
        data = next(iterator)
        if compiles:
            shapes = tuple(str(getattr(each, "shape", "")) for each in tensorflow.nest.flatten(data))
            computing.will_compile = shapes not in compiled
            compiled.add(shapes)
        return graph(data) if graph is not None else function(iter((data,)))

    return timed


def batches_at_once(trainer: Any) -> int:
    """Returns how many batches a call trains on; 0 if Keras 2 chooses it."""
    if getattr(trainer, "_autotune_steps_per_execution", False):
        return 0
    known: Any = getattr(trainer, "steps_per_execution", None)
    if known is None:
        known = getattr(trainer, "_steps_per_execution", None)
    if hasattr(known, "numpy"):  # of Keras 2: a variable, which has no int() in a strategy
        known = known.numpy()
    return 1 if known is None else int(known)


def _gives_tensors(iterator: Any, tensorflow: Any) -> bool:
    """Returns whether batches of an iterator are tensors of one process, so that a graph accepts them."""
    strategy = type(tensorflow.distribute.get_strategy()).__name__
    plain = tensorflow.TensorSpec, tensorflow.RaggedTensorSpec, tensorflow.SparseTensorSpec
    leaves = tensorflow.nest.flatten(getattr(iterator, "element_spec", None))
    parts = chain.from_iterable(getattr(leaf, "_value_specs", (leaf,)) for leaf in leaves)
    alone = not strategy.startswith(SEVERAL)
    return alone and all(isinstance(part, plain) for part in parts)


# -- JAX -----------------------------------------------------------------------------------------------


def _hook_jax(trainer: Any) -> None:
    """Hooks steps on JAX. When it compiles, jax_hooks say."""
    around(trainer, "train_on_batch", _trains_on_batch)
    replace(trainer, "_make_function", _with_timed_iterators)
    after(trainer, "train_on_batch", lambda _, model, *__, **___: computing.step_ended(model))


def _with_timed_iterators(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **keywords: Any) -> Any:
        function = original(*arguments, **keywords)
        latest: tuple[Callable[[], object], LoaderWaits] = (lambda: None), LoaderWaits(_of_phase)

        def timed(state: Any, iterator: Any) -> Any:
            nonlocal latest
            place, batches = None, iterator
            try:
                if latest[0]() is not iterator:
                    latest = ref(iterator), LoaderWaits(_of_phase)
                batches = _TimedIterator(iterator, latest[1])
                place = computing.begin(FORWARD)
            except Exception as error:  # noqa: BLE001 - nothing may raise into training
                complain("fetch", f"waits for data are not timed: {type(error).__name__}: {error}")
            try:
                return function(state, batches)
            finally:
                if place is not None:
                    computing.end(place)

        return timed

    return make


class _TimedIterator:
    """An iterator of batches, whose waits are timed."""

    def __init__(self, iterator: Iterator[Any], waits: LoaderWaits) -> None:
        self._iterator = iterator
        self._waits = waits

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


around(_TimedIterator, "__next__", lambda iterator: ask(iterator._waits), got)
