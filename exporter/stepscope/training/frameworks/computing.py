"""Counts what TensorFlow, Keras and JAX compute, in calls that hooks see: of a graph, or a layer.

And the waits for batches of loaders that are no PyTorch DataLoader.
"""

from __future__ import annotations

from collections import defaultdict
from threading import local
from time import perf_counter
from weakref import ref

from stepscope.training.automatic import LoaderWaits, automatic
from stepscope.training.frameworks.around import nothing
from stepscope.training.frameworks.published import publish
from stepscope.training.layout import PY_PROCESSES, PY_QUEUE, PY_WORKERS
from stepscope.training.loader import Waits, batch_size_of, settings_of
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import of_run, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Asked = tuple[LoaderWaits, int | None, float]
    Settings = tuple[int | None, bool | None, int | None]

FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, COMPILE = (
    COMPONENT_INDEX[name] for name in ("forward", "backward", "optimizer", "checkpoint", "compile")
)
FIRST_GRADIENTS = 10  # calls in which it is learned what uses their gradients


class PythonSeconds:
    """Seconds so far of functions of Python that graphs and pipelines call, by their gauges."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._published: dict[str, float] = {}

    def add(self, gauge: str, seconds: float) -> None:
        """Counts a call. Any thread may make it."""
        self._seconds[gauge] += seconds  # no call in between: no other thread's seconds are lost

    def publish(self) -> None:
        """Publishes what came since the run began. Only the training thread calls this."""
        if self._seconds != self._published:
            self._published = dict(self._seconds)
            publish(self._published)


class Call:
    """A call of something compiled. `place`: of its component, if one is open."""

    __slots__ = ("began", "compiles", "function", "place")

    def __init__(self, function: Any, place: int | None, compiles: bool = False) -> None:
        self.function, self.place, self.compiles = function, place, compiles
        self.began = perf_counter()


class Computing(local):
    """The state of the hooks of a thread: others may compute, compile or run loops meanwhile.

    The only instance is `computing`.
    """

    python = of_run(PythonSeconds())

    def __init__(self) -> None:
        self.is_inside = False  # a call that counts: what it calls counts as a part of it
        self.compiles = False  # a compiler was at work in this call,
        self.will_compile = False  # or will be in the next one
        self.in_loop = False  # Keras's own, which says itself what a step is
        self.in_callback = False  # of that loop: what it calls is the user's code, and no part of the model
        self.adapter: Any = None  # Keras's, of the data of its loop
        self.trained_on = ""  # the class of that adapter: with arrays, an evaluation may have the only loader
        # Return the optimizer, or the graph with one, whose steps count, and another that made the latest.
        self.steps_with: Callable[[], object] = nothing
        self.rival: Callable[[], object] = nothing
        self.unused = 0  # calls that computed gradients before the first step
        self.is_guess = False  # whether steps end with such calls, as nobody sees what updates

    def is_of_run(self, phase: str) -> bool:
        """Returns whether a loader of this phase is the run's: it trains, or nothing was trained so far."""
        return phase == "train" or not self.trained_on

    def waits(self, phase: str) -> Waits:
        """Returns what counts the waits for the loader in Keras's loop, and publishes how it works."""
        if phase == "train":
            self.trained_on = type(self.adapter).__name__
        python = self._python()
        if python is not None and (self.is_of_run(phase) or self.trained_on == "ArrayDataAdapter"):
            publish(dict(zip((PY_WORKERS, PY_PROCESSES, PY_QUEUE), python, strict=True)))
        return Waits(phase, *self._loader())

    def _python(self) -> tuple[float, ...] | None:
        """Returns the workers that make Keras's batches in Python, whether as processes, and their queue.

        A generator makes one batch after another, like a PyDataset without workers. None: another loader.
        """
        kinds = "py_dataset", "generator"
        if not self.in_loop or not any(hasattr(self.adapter, kind) for kind in kinds):
            return None
        if getattr(self.adapter, "enqueuer", None) is None:
            return 0.0, 0.0, 0.0
        python = self.adapter.py_dataset
        return python.workers, float(bool(python.use_multiprocessing)), python.max_queue_size

    def _loader(self) -> tuple[Settings, int]:
        """Returns the settings and the batch size of the loader in Keras's loop, as far as they are known."""
        if not self.in_loop or self.adapter is None:
            return (None, None, None), 0
        size = batch_size_of(self.adapter) or 0
        if (python := self._python()) is not None:
            return (int(python[0]), None, None), size
        return settings_of(getattr(self.adapter, "_dataloader", None)), size

    def begin(self, component: int, operation: float = 0.0, in_callback: bool = False) -> int | None:
        """Opens a component for an outermost call. Returns its place for `end`; None: nothing is open.

        `in_callback`: what callbacks do counts, too.
        """
        if self.is_inside or (self.in_callback and not in_callback):
            return None
        if session.windows is not None:
            session.windows.end_if_idle()
        self.compiles, self.will_compile = self.will_compile, False
        place = recorder.enter(component, operation)
        if place == NOT_OPENED:
            return None
        self.is_inside = True
        return place

    def end(self, place: int, _done: bool = True) -> None:
        """Closes the component. If a compiler was at work, the time of the call was its."""
        self.is_inside = False
        self.python.publish()
        if self.compiles:
            recorder.turns_out(COMPILE)
        recorder.leave(place)

    def gradients_are_traced(self, outermost: Call) -> None:
        """Begins the first step with the call that computes gradients: to compile it may never end."""
        if self.in_loop or self.unused >= FIRST_GRADIENTS or recorder.so_far() is not None:
            return
        if recorder.in_automatic_step(outermost.began) and outermost.place is None:
            recorder.adds(COMPILE, perf_counter() - outermost.began)
            outermost.place = self.begin(COMPILE)

    def ends_with_gradients(self, call: object, are_of_parameters: bool) -> bool:
        """Returns whether a call that computed gradients ends a step, as nothing else was seen to end it.

        The first such calls decide, until an optimizer makes a step.
        """
        automatic.trains()
        if self.in_loop or automatic.waits is not None:
            return False
        if (now := self.steps_with()) is not None:
            return self.is_guess and now is call
        self.unused += 1
        self.is_guess = are_of_parameters and self.unused >= FIRST_GRADIENTS
        if self.unused == FIRST_GRADIENTS and not self.is_guess:
            automatic.begin_anew()  # they are of what is explained, or sampled
        return self.is_guess

    def step_ended(self, optimizer: object) -> None:
        """Ends the training step with the first optimizer that makes steps; Keras ends those of its loops.

        Another one takes over once it makes two steps while the first makes none, or is gone.
        """
        if self.in_loop or not recorder.counts_here():
            return
        if (now := self.steps_with()) is not optimizer:
            if now is not None and not self.is_guess and self.rival() is not optimizer:
                self.rival = ref(optimizer)
                return
            self.is_guess &= now is None
            self.steps_with = ref(optimizer)
        self.rival = nothing
        automatic.step_ended(NOT_OPENED)


computing = of_run(Computing())


def forward(*_: object, **__: object) -> int | None:
    """Begins a call that counts as a forward pass, if it is an outermost one."""
    return computing.begin(FORWARD)


def checkpoint(*_: object, **__: object) -> int:
    """Begins a call that saves."""
    return recorder.enter(CHECKPOINT)


def leave(place: int, _done: bool) -> None:
    recorder.leave(place)


# -- waits for batches ---------------------------------------------------------------------------------


def ask(waits: LoaderWaits) -> Asked | None:
    """Begins the wait for a batch. Returns None inside another wait, in other threads and in callbacks."""
    if computing.in_callback or not recorder.asks_here() or recorder.is_waiting():
        return None
    if not computing.in_loop and _nothing_was_computed():
        automatic.begin_anew()
    place = None if waits.phase else automatic.requested(waits, True)
    asked = perf_counter()
    if place is None:
        recorder.waiting(asked)
    return waits, place, asked


def got(begun: Asked, done: bool) -> None:
    """Ends the wait. `done`: there was a batch, neither the end of the data nor an error."""
    waits, place, asked = begun
    if place is not None:
        recorder.leave(place)
    else:
        recorder.waiting(0.0)
    if not done and waits.phase:
        return
    if not done:
        if not computing.in_loop and _nothing_was_computed():
            automatic.begin_anew()
        automatic.ended()
        return
    wait = (asked, perf_counter(), None, not waits.is_usual)
    waits.is_usual = True
    if place is not None:
        automatic.came(wait)
    else:  # the script makes steps, or watches the loader: the wait belongs to the step that follows
        waits[waits.phase or "train"].count(*wait)
        recorder.waited(*wait[:2])


def _nothing_was_computed() -> bool:
    """Returns whether the latest batch was neither trained on nor evaluated, before the first step.

    Then the script only reads its data, for example to adapt a layer to it.
    """
    if automatic.waits is None or automatic.trained or automatic.evaluated:
        return False
    return session.ledger is not None and not session.ledger.has_steps()
