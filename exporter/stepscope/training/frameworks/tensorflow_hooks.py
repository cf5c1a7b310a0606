"""Times stock TensorFlow 2: the iterators of tf.data, and calls of `tf.function`.

A graph is one call. Its time is `forward`, whatever it computes, or `compile` if it was traced. A graph in
which gradients were computed trains. One with a step of a Keras optimizer in it ends a training step.
One of Horovod's collectives alone is communication.
A graph that iterates over a dataset waits for batches inside. If Keras made it, graph_clock.py times that.
Otherwise nobody can, and a gauge says that its time may be waits.
"""

from __future__ import annotations

import sys
from functools import partial
from threading import local
from time import perf_counter, thread_time
from weakref import WeakKeyDictionary, WeakSet, ref

from stepscope.training.automatic import LoaderWaits, automatic
from stepscope.training.frameworks.around import around, nothing
from stepscope.training.frameworks.computing import (
    BACKWARD,
    COMPILE,
    FORWARD,
    Call,
    ask,
    checkpoint,
    computing,
    got,
    leave,
)
from stepscope.training.frameworks.graph_clock import FETCHES, STEPS, graph_clock
from stepscope.training.frameworks.published import after, publish
from stepscope.training.frameworks.xla_profilers import tensorflow_profiler
from stepscope.training.layout import (
    EAGER,
    GRAPH_PYTHON,
    GRAPHS_FETCH,
    GRAPHS_WAIT,
    OPERATIONS,
    PIPELINE_PYTHON,
    SEQUENTIAL_MAPS,
)
from stepscope.training.loader import Waits
from stepscope.training.off import is_off
from stepscope.training.recorder import COMPONENT_INDEX
from stepscope.training.session import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stepscope.training.frameworks.computing import Asked

_DATA_WAIT, _COMMUNICATION = COMPONENT_INDEX["data_wait"], COMPONENT_INDEX["communication"]
_ALL_REDUCE = OPERATIONS.index("all_reduce") + 1.0
ELSEWHERE = ("TPU", "ParameterServer")  # strategies that run graphs in other processes
SEVERAL = ("MultiWorker", "CollectiveAllReduce", *ELSEWHERE)  # those that wait for others
MOST_DATASETS = 1000  # of a pipeline that are looked at
_WAITS = "_stepscope"  # attribute of a dataset that the script watches, and of an iterator that is timed
_installed: set[str] = set()


def install() -> None:
    """Hooks TensorFlow, which must be imported completely. Does nothing if Stepscope is off."""
    if is_off() or "all" in _installed:
        return
    _installed.add("all")
    time_iterators()
    functions = sys.modules.get("tensorflow.python.eager.polymorphic_function.polymorphic_function")
    around(getattr(functions, "Function", None), "__call__", _begins, _returned)
    tape = getattr(sys.modules.get("tensorflow.python.eager.backprop"), "GradientTape", None)
    around(tape, "gradient", _gradient_begins, computing.end)
    saver = getattr(sys.modules.get("tensorflow.python.checkpoint.checkpoint"), "TrackableSaver", None)
    around(saver, "save", checkpoint, leave)
    dataset = getattr(sys.modules.get("tensorflow.python.data.ops.dataset_ops"), "DatasetV2", None)
    around(dataset, "reduce", _loop_is_traced)
    registry = getattr(sys.modules.get("tensorflow.python.ops.script_ops"), "FuncRegistry", None)
    after(registry, "insert", _registered)
    around(registry, "__call__", _python_begins, _python_ends)
    strategy = getattr(sys.modules.get("tensorflow.python.distribute.distribute_lib"), "StrategyBase", None)
    around(strategy, "reduce", _reduce_begins, leave)
    after(strategy, "run", _replicas_ran)
    around(strategy, "run", _replicas_run, see=step_was_traced)
    tensorflow_profiler.install()


def time_iterators() -> None:
    """Hooks `next` on the iterators of datasets, also of distributed ones."""
    if "iterators" in _installed:
        return
    _installed.add("iterators")
    iterators = sys.modules.get("tensorflow.python.data.ops.iterator_ops")
    distributed = sys.modules.get("tensorflow.python.distribute.input_lib")
    for module, name in ((iterators, "OwnedIterator"), (distributed, "DistributedIteratorBase")):
        owner = getattr(module, name, None)
        for each in ("__next__", "get_next"):  # of distributed ones, the first calls the second
            around(owner, each, _asks, got)
        for each in ("__next__", "get_next", "get_next_as_optional"):
            around(owner, each, _fetch_is_traced, _fetch_ended, see=_fetch_was_traced)


def fetches_here(iterator: object) -> bool:
    """Returns whether an iterator gets its batches in this process."""
    tensorflow = sys.modules["tensorflow"]
    if isinstance(iterator, tensorflow.distribute.DistributedIterator):
        return not type(getattr(iterator, "_strategy", None)).__name__.startswith(ELSEWHERE)
    return isinstance(iterator, tensorflow.data.Iterator)


def runs_eagerly() -> bool:
    """Returns whether code runs now, instead of being traced."""
    answer: bool = sys.modules["tensorflow.python.eager.context"].executing_eagerly()
    return answer


# -- datasets ------------------------------------------------------------------------------------------


def watch_dataset(dataset: Any, phase: str, waits: Waits) -> None:
    """Times the iterators of a dataset for a script that watches it by hand."""
    setattr(dataset, _WAITS, (phase, waits))
    time_iterators()


def _asks(iterator: Any) -> Asked | None:
    if not runs_eagerly():
        return None
    waits = iterator.__dict__.get(_WAITS)
    if waits is None:
        parts = getattr(iterator, "_iterators", None) or [iterator]  # one for each worker that is here
        waits = _waits_of(getattr(parts[0], "_dataset", None))
        setattr(iterator, _WAITS, waits)
    return ask(waits)


def _waits_of(dataset: Any) -> LoaderWaits:
    """Returns what counts the waits for an iterator over a dataset."""
    watched = getattr(dataset, _WAITS, None)
    if watched is not None:
        phase, of_phase = watched
        waits = LoaderWaits(lambda _: of_phase)
        waits.phase = phase
        of_phase.begin()
        if phase == "train":
            publish(settings_of_dataset(dataset))
        return waits
    return LoaderWaits(partial(_of_phase, ref(dataset) if dataset is not None else nothing))


def _of_phase(dataset_of: Callable[[], Any], phase: str) -> Waits:
    dataset = dataset_of()  # that the iterator keeps, as long as it lives
    of_arrays = computing.in_loop and not hasattr(computing.adapter, "_dataset")  # Keras made it
    if computing.is_of_run(phase) and dataset is not None and not of_arrays:
        publish(settings_of_dataset(dataset))
    return computing.waits(phase)


def settings_of_dataset(dataset: Any) -> dict[str, float]:
    """Returns the gauge of a pipeline: how many of its maps run without parallel calls.

    tf.data itself runs maps without state in parallel: all but those of Python, random numbers or variables.
    One that several datasets read, as after `concatenate`, counts once. The search ends at a cache: what is
    before it works in the first epoch only. Whether it prefetches is not looked for: tf.data itself adds that
    at its end, unless autotuning is off.
    """
    maps, known, datasets = 0, set[int](), [dataset]
    while datasets and len(known) < MOST_DATASETS:
        each = datasets.pop()
        kind = type(each).__name__.strip("_").removesuffix("Dataset")
        if id(each) not in known and not kind.startswith("Cache"):
            known.add(id(each))
            maps += kind == "Map" and any(
                function.function.function_def.signature.is_stateful for function in each._functions()
            )
            datasets += each._inputs()
            if kind == "Restructured":  # by TensorFlow's `normalize_to_dense`, above its map
                datasets += datasets.pop()._inputs()
    return {SEQUENTIAL_MAPS: float(maps)}


# -- several processes ---------------------------------------------------------------------------------


def _reduce_begins(strategy: Any, *_: object, **__: object) -> int | None:
    """Begins a reduction over workers. An iterator asks at each batch whether any of them has one left."""
    if not strategy.extended._in_multi_worker_mode() or not runs_eagerly():
        return None
    return recorder.enter(_COMMUNICATION, _ALL_REDUCE)


def _replicas_ran(_result: object, strategy: Any, *_: object, **__: object) -> None:
    """Knows that the graphs which are traced now exchange gradients, or other sums, with other workers."""
    if not runs_eagerly() and strategy.extended._in_multi_worker_mode():
        _graphs.wait = True


# -- graphs --------------------------------------------------------------------------------------------


class _Running(local):
    """The graphs that a thread calls or traces now, the outermost first."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        self.outermost: Call | None = None  # of their calls
        self.fetches = False  # the outermost one gets an iterator of tf.data,
        self.fetching = False  # and what asks it for a batch is traced,
        self.fetch_is_timed = False  # or was, with a clock


class _Graphs:
    """The graphs of this process. `tracing`: those of the thread whose replicas were started last."""

    def __init__(self) -> None:
        self.tracing: list[Any] = []
        self.with_gradients: WeakSet[Any] = WeakSet()
        self.with_steps: WeakSet[Any] = WeakSet()
        self.with_fetches: WeakSet[Any] = WeakSet()
        self.with_collectives: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # and which operation
        self.clocked: WeakSet[Any] = WeakSet()
        self.python = set[object]()  # tokens of functions of Python that they call
        self.wait = False  # for other ranks, inside


_running, _graphs = _Running(), _Graphs()


def _traced() -> list[Any]:
    """Returns the graphs that become longer now. A strategy traces its replicas in threads of their own."""
    return _running.functions or _graphs.tracing


def _begins(*arguments: Any, **keywords: Any) -> tuple[Call, int] | None:
    """Begins a call of a graph. Without graphs, functions only call what is timed by itself."""
    if not sys.modules["tensorflow"].config.functions_run_eagerly():
        return _called(*arguments, **keywords)
    publish({EAGER: 1.0})
    return None


def _called(function: Any, *arguments: Any, **keywords: Any) -> tuple[Call, int]:
    functions = _running.functions
    if functions and not runs_eagerly():
        functions.append(function)
        return Call(function, None), 0
    traced = function.experimental_get_tracing_count()
    tensorflow = sys.modules["tensorflow"]
    data, distribute = tensorflow.data, tensorflow.distribute
    kinds = data.Iterator, data.Dataset, distribute.DistributedIterator, distribute.DistributedDataset
    # By their types: an argument may be an object of the script, which nobody asks for an attribute.
    iterators = [each for each in (*arguments, *keywords.values()) if issubclass(type(each), kinds)]
    _running.fetches, _running.fetch_is_timed = any(map(fetches_here, iterators)), False
    place = None
    trains = function in _graphs.with_gradients or function in _graphs.with_steps
    if function in _graphs.with_collectives and not trains:
        place = computing.begin(_COMMUNICATION, _graphs.with_collectives[function])
    elif not (traced and iterators and computing.in_loop) or function in _graphs.clocked:
        place = computing.begin(FORWARD if traced else COMPILE)
    _running.outermost = call = Call(function, place)
    functions.append(function)  # last: after Ctrl-C before this, nothing would remove it
    return call, traced


def _returned(begun: tuple[Call, int], done: bool) -> None:
    call, traced = begun
    function, place, functions = call.function, call.place, _running.functions
    functions.pop()
    if not functions:
        _running.outermost = None
    computing.python.publish()
    if _graphs.wait and place is not None:
        _graphs.wait = False
        publish({GRAPHS_WAIT: 1.0})
    if place is not None:
        computing.compiles |= function.experimental_get_tracing_count() != traced
        computing.end(place)
        if function in _graphs.clocked:
            waited = graph_clock.waited(perf_counter() - call.began)
            if not computing.compiles:
                recorder.adds(FORWARD, -waited)
                recorder.adds(_DATA_WAIT, waited)
    if functions or computing.in_loop or not done:
        return
    if place is not None:  # not of a thread that only looks ahead, or acts
        if function in _graphs.with_steps:
            automatic.trains()
        elif function in _graphs.with_gradients:
            computing.ends_with_gradients(function, False)  # an optimizer outside of it does, if any
        elif function not in _graphs.with_collectives:
            automatic.evaluated = True
    if function in _graphs.with_steps:
        tensorflow_profiler.use()
        if function in _graphs.with_fetches:
            publish({GRAPHS_FETCH: 1.0})
        computing.step_ended(function)


def _fetches_in_loop() -> bool:
    """Returns whether a graph of Keras is traced that fetches its batches in this process."""
    return computing.in_loop and _running.fetches and bool(_running.functions) and not runs_eagerly()


def _loop_is_traced(*_: object, **__: object) -> None:
    """Knows that the graph which is traced now iterates over a dataset."""
    if not runs_eagerly():
        _graphs.with_fetches.update(_running.functions[:1])


def _fetch_is_traced(iterator: Any, *_: object, **__: object) -> tuple[Any] | None:
    """Begins to time a fetch: with several workers, what each does before it asks the others."""
    _loop_is_traced()
    strategy = getattr(iterator, "_strategy", None)
    asks = strategy is not None and strategy.extended._in_multi_worker_mode()
    if _running.fetching or asks or not _fetches_in_loop():
        return None
    _running.fetching = True
    return (graph_clock.begin(),)


def _fetch_ended(*_: object) -> None:
    _running.fetching = False


def _fetch_was_traced(begun: tuple[Any], batch: Any) -> None:
    _running.fetch_is_timed |= graph_clock.end(FETCHES, begun[0], batch)


def _replicas_run(
    _strategy: object, _function: object, args: Any = (), *_: object, **__: object
) -> tuple[Any] | None:
    """Begins to time a step of Keras 2. Those of Keras 3 have their own graph, which XLA may compile."""
    _graphs.tracing = _running.functions
    return step_is_traced(args) if len(_running.functions) == 1 else None


def step_is_traced(data: Any) -> tuple[Any] | None:
    """Begins to time a step of Keras inside of a graph that fetches its batch. Returns that moment."""
    if not _fetches_in_loop() or not _running.fetch_is_timed:
        return None
    _graphs.clocked.add(_running.functions[0])
    return (graph_clock.begin(data),)


def step_was_traced(begun: tuple[Any], results: Any) -> None:
    """Ends what `step_is_traced` began. Steps without a result cannot be timed."""
    if not graph_clock.end(STEPS, begun[0], results):
        _graphs.clocked.discard(_running.functions[0])


def collective_is_traced(operation: float) -> None:
    """Says that a collective of Horovod becomes a part of the graphs that are traced now."""
    _graphs.wait = True
    for function in _traced():
        _graphs.with_collectives[function] = operation


def _registered(token: object, *_: object, **__: object) -> None:
    """Knows a function of Python by its token: of a graph that is traced by its call, not of tf.data."""
    if _traced() and not runs_eagerly():
        _graphs.python.add(token)


def _python_begins(_: object, token: object, *__: object) -> tuple[str, float]:
    """Begins a call of a function in a thread of TensorFlow: by a graph, which waits, or by a pipeline."""
    return (GRAPH_PYTHON, perf_counter()) if token in _graphs.python else (PIPELINE_PYTHON, thread_time())


def _python_ends(call: tuple[str, float], _done: bool) -> None:
    caller, began = call
    now = perf_counter() if caller is GRAPH_PYTHON else thread_time()
    computing.python.add(caller, now - began)


def _gradient_begins(*_: object, **__: object) -> int | None:
    if not runs_eagerly():
        _graphs.with_gradients.update(_traced())
        if _running.functions and _running.outermost is not None:
            computing.gradients_are_traced(_running.outermost)
        return None
    place = computing.begin(BACKWARD)
    automatic.trains()
    return place


def optimizer_is_traced() -> bool:
    """Returns whether a step of an optimizer becomes a part of graphs now, which then make steps."""
    if runs_eagerly():
        return False
    _graphs.with_steps.update(_traced())
    return True
