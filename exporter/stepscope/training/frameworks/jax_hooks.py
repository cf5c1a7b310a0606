"""Times stock JAX: calls of what a script, Flax or another library gives to `jax.jit` or `jax.pmap`.

A compiled function is one call, also if it was compiled ahead of time. Its time is `forward`, whatever it
computes, or `compile` if JAX compiled. JAX computes while Python continues, so waits for an array are
`forward`, too. Except at the ends of a profile window, nothing waits that would not wait without hooks.

What trains is learned in the first calls of each function, from arrays that a call returned and that come
back as arguments. A function that computes gradients trains if its own arrays come back to it. One that
computes none trains if its own do, it gets gradients or their sums, and what it returns goes where they are
computed. Neither evaluation, nor averages of metrics or parameters, nor sampling does that. What
`jax.tree.map` maps outside of compiled functions is such a function, too. An update that is neither cannot
be seen: then each call that computes gradients trains, if most of what it gets is new.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial, wraps
from threading import local
from time import perf_counter
from types import FunctionType, MethodType
from weakref import WeakKeyDictionary, ref

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.around import around, nothing, replace, timed
from stepscope.training.frameworks.computing import (
    COMPILE,
    FIRST_GRADIENTS,
    FORWARD,
    OPTIMIZER,
    Call,
    computing,
)
from stepscope.training.frameworks.published import after
from stepscope.training.frameworks.xla_profilers import jax_profiler
from stepscope.training.layout import JAX_PYTHON
from stepscope.training.off import is_off
from stepscope.training.session import complain, recorder, session, start_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, SupportsIndex

    from stepscope.training.automatic import Moment
    from stepscope.training.ledger import Ledger

LOOKS = 100  # first calls of a function in which its arrays are followed
MOST_ARRAYS = 1000  # that are followed of one call
MOST_KNOWN = 1000  # functions of which what is known is kept for others of the same code
MOST_WRAPPED = 10  # functions around one another, of which the code is compared
_NOT_FOLLOWED = "jax", "jaxlib", "keras"  # packages whose functions are parts of operations, or of a loop
_installed: set[str] = set()


def install() -> None:
    """Hooks JAX, which must be imported completely. Does nothing if Stepscope is off."""
    if is_off() or "jax" in _installed:
        return
    _installed.add("jax")
    jax, api = sys.modules["jax"], sys.modules.get("jax._src.api")
    monitoring = sys.modules.get("jax.monitoring")
    if monitoring is not None:
        monitoring.register_event_duration_secs_listener(_compiled)
    for name in ("source_info_util", "traceback_util"):  # hooks are not the script's code
        register = getattr(sys.modules.get(f"jax._src.{name}"), "register_exclusion", nothing)
        register(timed.__code__.co_filename)
        register(__file__)
    for name in ("jit", "pmap"):
        replace(jax, name, _following)
    for name in ("grad", "value_and_grad"):
        replace(jax, name, partial(_following, gradients=True))
    stages = sys.modules.get("jax.stages")
    for stage, name in (("Traced", "lower"), ("Lowered", "compile")):
        around(getattr(stages, stage, None), name, _stage_begins, _stage_ends, see=_makes)
    ahead = partial(timed, name="Compiled", begin=_called_ahead, end=_returned, see=_saw)
    replace(getattr(stages, "Compiled", None), "__call__", ahead)
    for module, name in (("jax.tree", "map"), ("jax.tree_util", "tree_map")):
        around(sys.modules.get(module), name, _map_begins, _map_ends, see=_saw)
    for owner in (api, jax):
        around(owner, "vjp", _gradient_begins)
    around(api, "_vjp", _gradient_begins)  # of older versions
    _time_waits(jax)
    replace(sys.modules.get("jax._src.callback"), "emit_python_callback", _with_timed_callback)
    after(sys.modules.get("jax.distributed"), "initialize", _distributed)
    jax_profiler.install()


def install_optax() -> None:
    """Hooks Optax, which must be imported completely: outside of compiled functions it ends steps."""
    if is_off() or "optax" in _installed:
        return
    _installed.add("optax")
    around(sys.modules["optax"], "apply_updates", _update_begins, _update_ends, see=_updated)


def _compiled(event: str, *_: object, **__: object) -> None:
    if event.endswith("backend_compile_duration"):
        computing.compiles = True


def _distributed(*_: object, **__: object) -> None:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    rank, world_size = getattr(state, "process_id", None), getattr(state, "num_processes", None)
    if rank is not None and world_size is not None:
        start_as(int(rank), int(world_size))


# -- compiled functions --------------------------------------------------------------------------------


class _Function:
    """A compiled function, and what is known of it so far."""

    def __init__(self) -> None:
        self.has_gradients = False
        self.gets_back = False  # arrays that it has returned
        self.updates = False  # it gets back what it returned, and gradients, but computes none
        self.trains = False
        self.looks = LOOKS
        self.returned: dict[int, Callable[[], object]] = {}  # arrays of its latest call, by their identity
        self.given: dict[int, Callable[[], object]] = {}  # to it, if it computes gradients
        self.gets_new = False  # mostly arrays that it did not get in the call before
        self.began: Moment = ()  # that call, in an open step,
        self.ended: Moment = ()  # and its end, until it is known to train


class _Handle:
    """A function as a script can call it. One that a loop compiles again each time is the same one.

    So once nobody can call the former function of the same code, what is known of it is known of this one.
    """

    def __init__(self, compiled: Any, kind: str = "") -> None:
        codes = _codes_of(compiled)
        self._codes: tuple[str | CodeType, ...] = (kind, *codes) if codes else ()
        self._function: _Function | None = None

    def is_new(self) -> bool:
        """Returns whether it was neither called nor traced so far."""
        return self._function is None

    def function(self) -> _Function:
        """Returns what is known of the function. Its first call decides: the former may be gone then."""
        if self._function is None:
            handle, known = _latest.get(self._codes, (nothing, None))
            self._function = known if known is not None and handle() is None else _Function()
            if len(_latest) >= MOST_KNOWN:  # of a script that writes its functions as it runs
                _latest.clear()
            if self._codes:
                _latest[self._codes] = ref(self), self._function
        return self._function


_latest: dict[tuple[str | CodeType, ...], tuple[Callable[[], object], _Function]] = {}


def _codes_of(compiled: object) -> tuple[CodeType, ...]:
    """Returns the code of a function, and of those that it wraps: of gradients, it is JAX's own."""
    codes: list[CodeType] = []
    function = getattr(compiled, "__wrapped__", None)
    while function is not None and len(codes) < MOST_WRAPPED:
        if issubclass(type(function), partial):
            function = function.func
        if type(function) is MethodType:
            function = function.__func__
        if type(function) is not FunctionType:  # an attribute of an object may run code of the script
            return ()
        codes.append(function.__code__)
        function = vars(function).get("__wrapped__")
    return tuple(codes)


class _Running(local):
    """The calls of compiled functions in a thread now, the outermost first: the others are traced."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


class _Functions:
    """Compiled functions. `of_gradients`: those that compute gradients, or get them and update.

    `named` is the ledger of the run that has JAX as its framework.
    """

    def __init__(self) -> None:
        self.of_gradients: WeakKeyDictionary[_Function, None] = WeakKeyDictionary()
        self.named: Ledger | None = None


_running, _functions = _Running(), _Functions()


def _following(original: Callable[..., Any], gradients: bool = False) -> Callable[..., Any]:
    """Returns `jax.jit`, or `jax.grad`, of which the calls outside of compiled functions are followed."""

    def making(*arguments: Any, **keywords: Any) -> Any:
        made = original(*arguments, **keywords)
        try:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller.partition(".")[0] in _NOT_FOLLOWED:
                return made
            if gradients:
                begin = partial(_called, _Handle(made, "gradients"))
                return wraps(made)(timed(made, "grad", begin, _returned, see=_saw))
            if hasattr(made, "lower"):
                return _Followed(made)
            if not arguments and callable(made):  # a decorator with settings
                return lambda function: _Followed(made(function))
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            complain("jit", f"a function of jax.jit is not timed: {type(error).__name__}: {error}")
        return made

    return making


class _Followed:
    """A function of `jax.jit` whose calls are followed. It has the same attributes, and the same `__dict__`.

    JAX copies that into functions that it makes of this one, so nothing of ours may be in it.
    """

    __slots__ = ("__dict__", "__weakref__", "_call", "_compiled", "_handle")

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._handle = compiled, _Handle(compiled)
        self._call = timed(compiled, "jit", partial(_called, self._handle), _returned, see=_saw)
        self.__dict__.update(compiled.__dict__)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self._call(*arguments, **keywords)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __repr__(self) -> str:
        return repr(self._compiled)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self._compiled.__reduce_ex__(protocol)

    @property
    def lower(self) -> Any:  # this one and the next two are looked up in the class, by isinstance
        return _ahead(self._compiled.lower, self._handle)

    @property
    def trace(self) -> Any:
        return _ahead(self._compiled.trace, self._handle)

    @property
    def eval_shape(self) -> Any:
        return self._compiled.eval_shape


_Followed.__name__ = _Followed.__qualname__ = "PjitFunction"  # by which Chex knows what is compiled


def _called(handle: _Handle, /, *arguments: Any, **keywords: Any) -> Call:
    compiles, calls = handle.is_new(), _running.calls  # as it seems: that may never end
    function = handle.function()
    if not calls and function.looks:
        _compare(function, (arguments, keywords))
    begins = function.trains or (function.has_gradients and computing.unused < FIRST_GRADIENTS)
    if not calls and begins and not computing.in_loop:
        recorder.in_automatic_step()
        function.began = () if function.trains else recorder.so_far() or ()
    place = None if calls else computing.begin(COMPILE if compiles else FORWARD)
    call = Call(function, place, compiles)
    calls.append(call)
    return call


def _returned(call: Call, done: bool) -> None:
    calls, function = _running.calls, call.function
    calls.pop()
    if call.place is not None:
        if call.compiles and not computing.compiles:
            recorder.turns_out(FORWARD)
        computing.end(call.place)
    if calls or computing.in_loop or not done:
        return
    if function.trains:
        _step_ended(function)
        return
    function.ended = recorder.so_far() or ()
    if function.has_gradients and computing.ends_with_gradients(function, function.gets_new):
        _step_ended(function)


def _begins_with(function: _Function, began: Moment) -> None:
    """Ends a step with the latest call of a function, of which it is only now known that it trains.

    `began`: the latest call that computed gradients for it. Without a loader, what was before is set-up.
    """
    function.trains = True
    if not function.ended or computing.in_loop or computing.steps_with() is not None:
        return
    if began and automatic.waits is None and not automatic.undecided:
        recorder.take_step_out("", (), began)
    recorder.take_step_out("train", (), function.ended)


def _step_ended(made_by: object) -> None:
    if not recorder.counts_here():
        return
    automatic.trains()
    jax_profiler.use()
    computing.step_ended(made_by)
    if session.ledger is not None and session.ledger is not _functions.named:
        _functions.named = session.ledger  # another framework may read the data
        session.ledger.name_framework("jax", str(getattr(sys.modules["jax"], "__version__", "")))


# -- functions that are compiled ahead of their calls --------------------------------------------------

_stages: WeakKeyDictionary[Any, _Handle] = WeakKeyDictionary()  # traced, lowered and compiled functions


def _stage_begins(stage: Any, *_: object, **__: object) -> tuple[_Handle, int | None] | None:
    handle = _stages.get(stage)
    return None if handle is None else (handle, computing.begin(COMPILE))


def _stage_ends(begun: tuple[_Handle, int | None], _done: bool) -> None:
    if begun[1] is not None:
        computing.end(begun[1])


def _makes(begun: tuple[_Handle, object], stage: Any) -> None:
    _stages[stage] = begun[0]


def _ahead(make: Callable[..., Any], handle: _Handle) -> Callable[..., Any]:
    """Returns `lower` or `trace` of a function, which then sees whether it computes gradients."""

    def begin(*_: object, **__: object) -> tuple[_Handle, int | None]:
        place = computing.begin(COMPILE)
        _running.calls.append(Call(handle.function(), place))
        return handle, place

    def end(begun: tuple[_Handle, int | None], done: bool) -> None:
        _stage_ends((begun[0], _running.calls.pop().place), done)

    return wraps(make)(timed(make, "lower", begin, end, see=_makes))


def _called_ahead(compiled: Any, *arguments: Any, **keywords: Any) -> Call | None:
    handle = _stages.get(compiled)
    return None if handle is None else _called(handle, *arguments, **keywords)


# -- what trains ---------------------------------------------------------------------------------------


def _gradient_begins(*_: object, **__: object) -> None:
    for call in _running.calls:
        call.function.has_gradients = True
        _functions.of_gradients[call.function] = None
    if not _running.calls:
        automatic.trains()
    else:
        computing.gradients_are_traced(_running.calls[0])


def _compare(function: _Function, arguments: object) -> None:
    """Looks which functions' arrays are among the arguments of a call that begins."""
    arrays = _arrays(arguments)
    function.gets_back = function.gets_back or bool(_among(arrays, function.returned))
    # Other threads may add functions meanwhile: `keyrefs` copies at once.
    others = [other for each in _functions.of_gradients.keyrefs() if (other := each())]
    if not function.has_gradients:  # an update also adds them up
        if function.gets_back and any(_among(arrays, other.returned) for other in others):
            function.updates = True
            _functions.of_gradients[function] = None
        return
    if not function.trains:
        same, function.given = _among(arrays, function.given), _references(arrays)
        function.gets_new = function.looks < LOOKS and len(arrays) > max(2 * same, 1)
    updates = [other for other in others if other.updates and _among(arrays, other.returned)]
    for each in [function] if function.gets_back else updates:
        if not each.trains:
            _begins_with(each, function.began)


def _saw(call: Call, result: object) -> None:
    """Remembers the arrays that a call returned, without keeping them alive."""
    function = call.function
    if not function.looks or _running.calls:
        return
    function.looks -= 1
    function.returned = _references(_arrays(result))


def _references(arrays: list[Any]) -> dict[int, Callable[[], object]]:
    found: dict[int, Callable[[], object]] = {}
    for array in arrays:
        with suppress(TypeError):  # of a number
            found[id(array)] = ref(array)
    return found


def _arrays(tree: object) -> list[Any]:
    leaves: list[Any] = sys.modules["jax"].tree_util.tree_leaves(tree)
    return leaves[:MOST_ARRAYS]


def _among(arrays: list[Any], references: dict[int, Callable[[], object]]) -> int:
    return sum(references.get(id(array), nothing)() is array for array in arrays)


# -- outside of compiled functions ---------------------------------------------------------------------

_maps: dict[object, _Function] = {}  # what is known of `jax.tree.map`, by the function that it maps


def _map_begins(*arguments: Any, **_: Any) -> Call | None:
    """Begins a map over trees. Updates by hand are such maps, of what they returned and of gradients."""
    if not arguments or _running.calls or computing.is_inside or computing.in_loop:
        return None
    function, *trees = arguments
    if len(_maps) >= MOST_KNOWN:
        _maps.clear()
    key = function.__code__ if type(function) is FunctionType else id(function)
    known = _maps.setdefault(key, _Function())
    if known.looks:
        _compare(known, trees)
    elif not known.updates:
        return None
    return Call(known, computing.begin(OPTIMIZER) if known.updates else None)


def _map_ends(call: Call, done: bool) -> None:
    if call.place is not None:
        computing.end(call.place)
    if call.function.trains and done:
        _step_ended(call.function)
    else:
        call.function.ended = recorder.so_far() or ()


class _Parameters:
    """Parameters that Optax updates, such as those of one model of a GAN."""

    def __init__(self) -> None:
        self.latest: Callable[[], object] = nothing  # returns the first of them, as it was updated last


_parameters: list[_Parameters] = []


def _parameters_with(array: object) -> _Parameters:
    """Returns the parameters that begin with this array, or those whose latest array is gone."""
    for first in (array, None):
        for each in _parameters:
            if each.latest() is first:
                return each
    _parameters.append(_Parameters())
    return _parameters[-1]


def _update_begins(*arguments: object, **keywords: object) -> tuple[_Parameters, int | None] | None:
    """Begins an update by Optax, unless it becomes a part of a compiled function, which then makes steps."""
    arrays = _arrays((arguments, keywords))
    tracer = sys.modules["jax"].core.Tracer
    if _running.calls or any(isinstance(each, tracer) for each in arrays):
        return None
    return _parameters_with(arrays[0] if arrays else None), computing.begin(OPTIMIZER)


def _update_ends(begun: tuple[_Parameters, int | None], _done: bool) -> None:
    if begun[1] is not None:
        computing.end(begun[1])


def _updated(begun: tuple[_Parameters, int | None], result: object) -> None:
    arrays = _arrays(result)
    if arrays:
        begun[0].latest = ref(arrays[0])
    if not computing.in_loop:
        _step_ended(begun[0])


def _time_waits(jax: Any) -> None:
    """Hooks what waits for an array, and everything that reads one: `float`, `print`, NumPy's functions."""
    around(jax, "block_until_ready", _wait_begins, computing.end)
    array = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    functions = vars(array) if array is not None else {}
    wait, value = functions.get("block_until_ready"), functions.get("_value")
    if array is not None and callable(wait):  # made in C++: it has no name to copy
        array.block_until_ready = timed(wait, "block_until_ready", _wait_begins, computing.end)
    if array is not None and isinstance(value, property) and value.fget is not None:
        array._value = property(timed(value.fget, "Array", _wait_begins, computing.end), doc=value.__doc__)


def _with_timed_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    """Times functions of Python that compiled functions call, in a thread of JAX: the step waits for them."""

    def emit(ctx: Any, callback: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        ours = timed(callback, "callback", lambda *_, **__: perf_counter(), _called_back)
        return original(ctx, ours, *arguments, **keywords)

    return emit


def _called_back(began: float, _done: bool) -> None:
    computing.python.add(JAX_PYTHON, perf_counter() - began)


def _wait_begins(*_: object) -> int | None:
    """Begins a wait for an array. A callback of Keras waits for numbers of the step, as a part of it."""
    return computing.begin(FORWARD, in_callback=True)
