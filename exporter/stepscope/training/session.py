"""The run of this process: its start, its end, forks, and errors of its ledger.

Nothing here ever raises into training because of the ledger: if it cannot be made, one line on stderr
says so and training continues unrecorded.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import allocate_lock

from stepscope.training import tools
from stepscope.training.launch import Launch, process_start, read_launch, shared_key
from stepscope.training.layout import COMPONENTS, FRAMEWORKS, MOST_AT_ONCE, NEVER
from stepscope.training.ledger import Ledger, create_ledger
from stepscope.training.ledger_files import ledger_directory
from stepscope.training.ranks import Ranks, check_run_name, ranks_of_torch, read_ranks
from stepscope.training.recorder import make_recorder

WORKER_OF = "STEPSCOPE_WORKER_OF"  # environment variable: the ledger that child processes count in
PROFILE = "STEPSCOPE_PROFILE"  # environment variable: profile windows (window_plans.py)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from stepscope.training.windows import Profiler, Windows

    State = TypeVar("State")


class Session:
    """The state of this process's run. The only instance is `session`."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None  # of this process: it writes the steps
        self.parents_ledger: Ledger | None = None  # of the process from which this one was forked
        self.unnamed: Launch | None = None  # of the ledger, until its run is known at the first step
        self.again = ""  # of the launch key: distinguishes runs that this process starts one after the other
        self.settled = False  # whether it is decided if this process records
        self.ranks = (0, 1)  # rank and world size of the ledger
        self.ranks_given = False  # by the script, in `start`
        self.run_given: str | None = None  # likewise,
        self.framework_given: tuple[str, str] | None = None  # and with its version
        self.lock = allocate_lock()
        self.complained: set[str] = set()
        self.profiler: Profiler | None = None  # of the framework, from its hooks on
        self.captures: Callable[[], bool] = bool  # whether work is put into a CUDA graph now
        self.before_end: Callable[[], object] = bool  # counts what hooks know, and have not counted yet
        self.windows: Windows | None = None  # once it is time to look for one
        self.forgets: list[Callable[[], None]] = []  # what hooks know of a run, once it has ended


session = Session()


def of_run(state: State) -> State:
    """Returns this state of hooks, which begins again after each run of this process."""
    session.forgets.append(lambda: vars(state).update(vars(type(state)())))
    return state


def start(
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
) -> None:
    """Starts this process's part of a run. Optional: the first use of any other function does the same.

    Arguments that are not given are read from the environment (see docs/training.md). If the run has
    started already, only the framework is used. A forked child starts its own run. Raises ValueError for a
    rank, world size or run name that cannot be.
    """
    with session.lock:
        is_new = session.ledger is None
        if is_new or framework is not None:
            session.framework_given = (framework, framework_version or "") if framework is not None else None
        if is_new:
            session.ranks_given = rank is not None or world_size is not None
            session.run_given = run
            _start(run, rank, world_size, local_rank)
        if is_new or framework is not None:
            _name_framework()


def start_as(rank: int, world_size: int) -> None:
    """Starts the run with the ranks of torch.distributed. A ledger with other ranks is replaced.

    Launchers such as Lightning's, or a script that starts its ranks itself, do not put the rank into the
    environment. Ranks that the script gave to `start` stay, and so does a ledger that has steps. A child that
    was forked after its parent's run began has a rank only here.
    """
    with session.lock:
        ledger = session.ledger
        is_over = ledger is None and session.settled and session.parents_ledger is None
        if session.ranks_given or is_over:
            return
        if ledger is not None:
            if session.ranks == (rank, world_size) or ledger.has_steps():
                return
            recorder.detach(False)
            ledger.remove()
        _start(session.run_given, rank, world_size)
        _name_framework()
        if ledger is not None and session.ledger is not None:
            session.ledger.take_numbers_of(ledger)


def instrument() -> None:
    """Hooks PyTorch in this process, for example in a notebook whose kernel was started without hooks.

    The same as STEPSCOPE_INSTRUMENT=1 at the start of Python (see docs/run.md). Never raises.
    """
    import stepscope_startup  # outside this package, because it must load without it

    stepscope_startup.hook()


def gauge(name: str, value: float) -> None:
    """Publishes a number of the script's own, such as its loss, until it is set again: a gauge of this rank.

    Any float, at most 32 names per process. Raises ValueError for another name, or one of 56 bytes or more,
    and TypeError if the value is not a number.
    """
    value = float(value)
    if start_run() and session.ledger is not None:
        session.ledger.set_gauge(name, value)


def count(name: str, amount: float = 1) -> None:
    """Adds to a total of the script's own, such as its tokens: a counter of this rank.

    Each rank counts its own share: reports and dashboards add the ranks. At most 16 names per process. Raises
    ValueError for another name, one of 56 bytes or more, and a negative, endless or huge amount.

    Two names give the model FLOPs utilisation: `count("flops", n)` has the operations of the model, and
    `gauge("peak_flops", p)` what this rank's device can do per second. MFU = flops / (seconds * peak), over
    all ranks. A token of a transformer takes 6 N + 12 L H Q T operations, forward and backward. N is the
    number of parameters, L of layers and H of heads. Q is the size of a head, T the length of a sequence.
    Source of both: appendix B of PaLM, Chowdhery et al. 2022 (https://arxiv.org/abs/2204.02311).
    """
    amount = float(amount)
    if not 0.0 <= amount < MOST_AT_ONCE:  # nor is NaN
        raise ValueError(f"count {name!r}: {amount} cannot be added; use 0 to less than {MOST_AT_ONCE:g}")
    ledger = session.ledger
    if ledger is None:
        if not start_run():
            return
        ledger = session.ledger
    if ledger is not None:
        ledger.add_to_count(name, amount)


def start_run() -> bool:
    """Starts the run at the first use. Returns whether this process records: not in a forked child."""
    if session.settled:
        return session.ledger is not None
    with session.lock:
        if not session.settled:
            _start()
            _name_framework()
    return session.ledger is not None


def finish() -> None:
    """Ends the run cleanly: later steps are not recorded, unless `start` begins another run.

    Optional: the end of the process does the same, except after `kill -9` or `os._exit`.
    """
    if getattr(sys, "last_value", None) is not None:
        try:
            from stepscope.training.last_exception import note_last  # json is slow to import

            note_last()
        except Exception:  # noqa: BLE001 - as in unknown_component(); the run must end
            pass
    if session.windows is not None:
        session.windows.end()
    session.before_end()
    with session.lock:
        ledger, session.ledger, session.settled = session.ledger, None, True
        recorder.detach(ledger is not None)
        if ledger is not None:
            _name_run(ledger)
            session.again += "+"
            os.environ.pop(WORKER_OF, None)
            ledger.finish()
        for forget in session.forgets:
            forget()


def complain(about: str, text: str) -> None:
    """Prints one line on stderr, once per kind of error. Never raises."""
    if about in session.complained:
        return
    session.complained.add(about)
    try:  # noqa: SIM105 - contextlib takes longer to import than all of this package
        print(f"stepscope: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # stderr is full, closed, or gone
        pass


def unknown_component(name: object) -> None:
    """Warns once about a component that does not exist: a typo must never end a training job."""
    about = f"component {name!r}"
    if about in session.complained:
        return
    hint = f"use one of {', '.join(COMPONENTS)}"
    try:
        from stepscope.common.errors import did_you_mean  # not at the top: difflib is slow to import

        hint = did_you_mean(str(name), COMPONENTS, hint)
    except Exception:  # noqa: BLE001 - such as of an import, if another version was installed meanwhile
        pass
    complain(about, f"unknown {about}: its time counts as other; {hint}")


def name_devices() -> bool:
    """Writes the GPU of this process to its ledger, once PyTorch has started CUDA. Returns whether to stop.

    It never starts CUDA: that would take memory on a GPU, and would break processes forked later.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return False
        uuid = cuda.get_device_properties(cuda.current_device()).uuid
        if session.ledger is not None:
            session.ledger.name_devices([f"GPU-{uuid}"])
    except Exception:  # noqa: BLE001 - before PyTorch 2.4 there is no uuid; nothing may raise into training
        pass
    return True


def first_step() -> None:
    """Names the run before its first step: by now torch.distributed is set up, if the script uses it.

    Lines are those of the thread that calls this.
    """
    tools.note()
    sampler = sys.modules.get("stepscope.training.line_sampler")
    if sampler is not None:
        sampler.follow()
    launch = session.unnamed
    if launch is None or session.ledger is None:
        return
    _share_key(launch)
    if not launch.unique:
        looks = (
            "nodes of this job look like runs of their own"
            if launch.of_node
            else ("launches of this job look like one run")
        )
        complain(
            "launch",
            f"{looks}, because its nodes share no unique text: set STEPSCOPE_LAUNCH to one, or start "
            "torchrun with --rdzv-id",
        )
        launch.unique = launch.of_node
    _name_run(session.ledger)


def look_around(phase: str, steps: float, recorded: float) -> float:
    """Notes the tools that are on, and begins or ends a profile window, if it is time.

    Returns at how many recorded steps to look again, if nobody asks for it earlier.
    """
    tools.note()
    if session.windows is None:
        if session.ledger is None or not (os.environ.get(PROFILE) or session.ledger.asks_for_window()):
            return NEVER
        try:
            from stepscope.training.windows import Windows  # most runs have none

            session.windows = Windows(session, complain)
        except Exception as error:  # noqa: BLE001 - as in unknown_component()
            complain("windows", f"profile windows are off: {type(error).__name__}: {error}")
            return NEVER
    return session.windows.look(phase, int(steps), recorded)


recorder = make_recorder(start_run, first_step, name_devices, unknown_component, look_around)


def _start(
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> None:
    launched = read_ranks(os.environ)
    if rank is None and world_size is None:
        launched = ranks_of_torch(launched)
    if rank is not None and world_size is None:
        world_size = max(launched.world_size, rank + 1)
    ranks = Ranks(
        launched.rank if rank is None else rank,
        launched.local_rank if local_rank is None else local_rank,
        launched.world_size if world_size is None else world_size,
        launched.attempt,
        launched.variable if rank is None and world_size is None else None,
    )
    launch = read_launch(os.environ, ranks, check_run_name(run) if run else None)
    launch.key += session.again
    _share_key(launch)
    label = launch.run if launch.unique else ""
    directory = ledger_directory()
    try:
        session.ledger = ledger = create_ledger(directory, label, ranks, launch, _began())
    except OSError as error:
        complain(
            "ledger", f"no ledger in {directory} ({error.strerror or error}): training continues unrecorded"
        )
        return
    finally:
        session.settled = True  # not before there is a ledger: other threads ask without the lock
        session.parents_ledger = None
    session.unnamed = None if launch.unique else launch
    session.ranks = (ranks.rank, ranks.world_size)
    os.environ[WORKER_OF] = ledger.path
    recorder.attach(ledger.memory)
    if os.environ.get(PROFILE):
        ledger.look_at(1.0)
    _watch_process()
    if os.environ.get("STEPSCOPE_STACKS") == "1":
        _answer_requests(ledger.path)


def _began() -> float | None:
    """Returns when this rank's part of the run began, in seconds since the epoch; None: now.

    That is the start of its process: imports and loading weights delay the first step, too. A second run of
    a process begins now, and so does one in a prompt or a notebook, where a person was at work before.
    """
    is_interactive = hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules
    return None if session.again or is_interactive else process_start()


def _share_key(launch: Launch) -> None:
    """Asks the other ranks for a key, if the launcher gave none."""
    if not launch.unique and (key := shared_key()):
        launch.key, launch.unique = key + session.again, True


def _name_run(ledger: Ledger) -> None:
    launch, session.unnamed = session.unnamed, None
    if launch is not None:
        ledger.name_run(launch.run, launch)


def _name_framework() -> None:
    if session.ledger is not None and session.framework_given is not None:
        session.ledger.name_framework(*session.framework_given)
        return
    for module_name, framework in FRAMEWORKS.items():
        module = sys.modules.get(module_name)
        if module is not None and session.ledger is not None:
            session.ledger.name_framework(framework, str(getattr(module, "__version__", "")))
            return


def _answer_requests(ledger: str) -> None:
    """Lets `stepscope stacks` ask for the Python stacks of this process."""
    try:
        from stepscope.training.stack_request import answer_requests

        answer_requests(ledger)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        complain("stacks", f"`stepscope stacks` will get no stack of this process: {error}")


_watched = False


def _watch_process() -> None:
    """Registers the functions that the end of the process and a fork call, once."""
    global _watched
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # it ends the processes that it forks without atexit
        util.Finalize(None, finish, exitpriority=-1)
    if not _watched:
        _watched = True
        atexit.register(finish)
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """Stops recording steps in a forked child; a loader worker may still claim a worker slot."""
    recorder.detach(False)
    session.lock = allocate_lock()  # another thread of the parent may have held it
    session.unnamed = None
    if session.ledger is not None:
        session.parents_ledger, session.ledger = session.ledger, None
    for forget in session.forgets:
        forget()
