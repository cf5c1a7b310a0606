"""Records profile windows of this process: begins, ends and writes them when a step has ended.

The recorder asks only at the steps that `look` has named, so a step outside windows costs one comparison. A
profiler is attached only during a window. A window has training steps only: evaluation ends it. Nothing here
raises into training: a window that fails is listed with its reason.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import pairwise
from math import inf
from socket import gethostname
from threading import get_ident, get_native_id

from stepscope.training import layout, window_request
from stepscope.training.window_files import (
    LINE,
    MOST_BYTES,
    MOST_LISTED,
    MOST_TRACES,
    TRACE,
    WindowFolder,
    window_name,
)
from stepscope.training.window_plans import LONGEST, OPERATORS, PYTHONS, VARIABLE, Plan, parse_plans
from stepscope.training.window_request import Answer, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from stepscope.training.ledger import Ledger
    from stepscope.training.window_lines import WindowLines

    class Session(Protocol):
        """The state of this process's run."""

        ledger: Ledger | None
        ranks: tuple[int, int]
        profiler: Profiler | None
        captures: Callable[[], bool]

    class Profiler(Protocol):
        """The profiler of a framework, or of Python. All functions but `why_not` may raise any exception."""

        ending: str  # of the files that it writes

        def why_not(self) -> str:
            """Returns why it cannot be used now; "" if it can."""

        def start(self, kind: str = OPERATORS) -> None:
            """Begins to record what a window of this kind has."""

        def wait(self) -> None:
            """Waits until what the steps have launched is computed, unless `stop` does."""

        def stop(self) -> None: ...

        def forget(self) -> None:
            """Drops what it has recorded, after `stop`."""

        def write(self, path: str) -> list[dict[str, Any]]:
            """Writes what it has recorded into an empty file, after `stop`. Returns events to add."""

        def knows_rank(self) -> bool:
            """Returns whether what it writes says the rank."""


NO_HOOKS = (
    "the hooks of PyTorch, JAX or TensorFlow are not on in this process: start it with `stepscope run`, or "
    "with STEPSCOPE_INSTRUMENT=1"
)
NEVER = layout.NEVER
# Steps, in the time of which one must end: otherwise training pauses, or is over. LONGEST seconds at least.
PATIENCE = 10
LIMIT = f"{MOST_TRACES} traces and {MOST_BYTES >> 20} MB"
OLDEST = f"its trace was removed: a rank keeps at most {LIMIT}, and the oldest go first"


class _Open:
    """The window that is being recorded."""

    def __init__(self, plan: Plan, profiler: Profiler, last: float, listed: dict[str, Any]) -> None:
        self.plan, self.profiler = plan, profiler
        self.last = last  # step; inf: it ends after some time
        self.listed = listed
        self.began = self.patience = 0.0  # moment, and seconds without a step after which it ends
        self.thread = get_ident()
        self.may_be_on = False  # the profiler
        self.lines: WindowLines | None = None
        self.marks: list[int] = []  # the begin, and the end of each step


class Windows:
    """The windows of this process. `complain` prints a line once, by what it is about."""

    def __init__(self, session: Session, complain: Callable[[str, str], None]) -> None:
        self._session, self._complain = session, complain
        self._ledger: Ledger | None = None
        self._pid = 0
        self._folder: WindowFolder | None = None
        self._listed: list[dict[str, Any]] = []
        self._earlier = 0  # windows of earlier runs: their files stay
        self._forget()

    def _forget(self) -> None:
        self._open: _Open | None = None
        self._plans: list[Plan] = []
        self._earlier += len(self._listed)
        self._listed = []
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._request = 0  # the number of the latest request
        self._ended = False  # whether a window ended since the latest step did

    def look(self, phase: str, done: int, recorded: float) -> float:
        """Begins or ends a window after a step of this phase, of which `done` have ended.

        Returns at how many `recorded` steps to look again.
        """
        try:
            self._begin_run()
            if self._session.captures():  # a profiler would wait for the GPU, which ends that with an error
                if self._open is not None and phase == "train":
                    self._open.marks.append(time.time_ns())
                return recorded + 1
            # Not where another one ends: the step may be in a scope of C++ that PyTorch's profiler has seen
            # begin, as of Dynamo. At its end, a new profiler would write into what the one before has freed.
            may_begin = phase == "train" and self._open is None and not self._ended
            self._ended = False
            if self._open is not None:
                self._step_ended(phase, done)
            if may_begin:
                self._read_request(done)
                self._begin_due(done)
            if self._open is not None or (not may_begin and (self._plans or self._new_request())):
                return recorded + 1
            return min(recorded + min((self._wait(plan, done) for plan in self._plans), default=inf), NEVER)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            if self._open is not None:
                with suppress(Exception):
                    _stop(self._open)
            self._forget()
            self._complain("windows", f"profile windows are off: {type(error).__name__}: {error}")
            return NEVER

    def end(self, reason: str = "the run ended") -> None:
        """Ends the window that is open, between two steps. Never raises."""
        if self._open is not None and self._pid == os.getpid():
            self._ended = True
            try:
                self._close(reason)
            except Exception as error:  # noqa: BLE001 - as above
                self._complain("windows", f"the last profile window is lost: {type(error).__name__}: {error}")

    def by_the_script(self) -> None:
        """Ends the window that is open, because the script starts its own profiler."""
        self.end("the script started its own profiler")

    def end_if_idle(self) -> None:
        """Ends the window that is open if no step ends for long: it would grow until the process ends.

        Hooks call it, because only the thread that began a window can end it. Never raises.
        """
        window = self._open
        if window is None or window.thread != get_ident() or self._session.captures():
            return
        if time.time_ns() - window.marks[-1] > 1e9 * window.patience:
            self.end(f"training paused for {window.patience:.0f} s")

    # -- when ------------------------------------------------------------------------------------------

    def _begin_run(self) -> None:
        """Reads the plans, at the first step of each run. A forked process forgets those of its parent."""
        if self._ledger is self._session.ledger and self._pid == os.getpid():
            return
        self._forget()
        self._ledger, self._pid = self._session.ledger, os.getpid()
        try:
            plans = parse_plans(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else []
        except ValueError as error:
            self._complain(VARIABLE, f"{VARIABLE} is ignored: {error}")
            return
        self._plans = [plan for plan in plans if not plan.ranks or self._session.ranks[0] in plan.ranks]
        for plan in self._plans:
            if plan.date is not None:
                plan.at = max(0.0, plan.date - time.time() + self._since_first_step())

    def _since_first_step(self) -> float:
        assert self._ledger is not None
        return time.perf_counter() - self._ledger.counters[layout.COUNTER_FIRST_STEP]

    def _wait(self, plan: Plan, done: int) -> float:
        return plan.wait(done, self._since_first_step())

    def _begin_due(self, done: int) -> None:
        for plan in [plan for plan in self._plans if self._wait(plan, done) <= 0]:
            last = plan.take(done)
            if plan.request and self._valid_request() is None:
                continue  # it was withdrawn
            if self._open is not None:
                self._skip(plan, done, "another window was open")
            elif last < done:
                self._skip(plan, done, "its steps were over before it could begin")
            elif reason := self._why_not(plan):
                self._skip(plan, done, reason)
            else:
                self._start(plan, done, last)
        self._plans = [plan for plan in self._plans if plan.first < inf or plan.at < inf]

    def _why_not(self, plan: Plan) -> str:
        profiler = self._profiler(plan)
        return NO_HOOKS if profiler is None else profiler.why_not()

    def _profiler(self, plan: Plan) -> Profiler | None:
        if plan.kind not in PYTHONS:
            return self._session.profiler
        from stepscope.training.python_profiler import python_profiler  # few windows need it

        python_profiler.end_if_idle = self.end_if_idle
        return python_profiler

    def _step_ended(self, phase: str, done: int) -> None:
        window = self._open
        assert window is not None
        if phase != "train":
            if len(window.marks) > 1:
                self._close("an evaluation began")
            else:
                self._begin_again(window)
            return
        complete = done > window.last
        reason = "" if complete or window.last == inf else f"it lasted {window.plan.seconds:g} s"
        ends = complete or time.perf_counter() - window.began >= window.plan.seconds
        if ends:
            window.profiler.wait()
        window.marks.append(time.time_ns())
        if ends:
            self._close(reason)

    def _begin_again(self, window: _Open) -> None:
        """Drops a window into which an evaluation fell before its first step: it begins after that."""
        try:
            self._open = None
            _stop(window)
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C
            self._give_up(window, error)
            return
        window.profiler.forget()
        window.plan.first = 0.0
        if window.plan not in self._plans:
            self._plans.append(window.plan)
        self._listed.remove(window.listed)
        self._write_list()

    # -- requests --------------------------------------------------------------------------------------

    def _new_request(self) -> Request | None:
        request = self._valid_request()
        return request if request is not None and request.number != self._request else None

    def _valid_request(self) -> Request | None:
        assert self._ledger is not None
        try:
            return window_request.read_request(self._ledger.memory)
        except ValueError as error:
            window_request.drop_request(self._ledger.memory)
            self._complain("request", f"refused {error}")
            return None

    def _read_request(self, done: int) -> None:
        request = self._new_request()
        if request is None:
            return
        self._request = request.number
        self._plans = [plan for plan in self._plans if not plan.request]
        first = max(request.first, done)
        plan = Plan("", first, request.steps, request.number)
        plan.kind = request.kind
        if reason := self._why_not(plan):
            self._answer(request.number, window_request.REFUSED, text=reason)
            return
        self._plans.append(plan)
        self._answer(request.number, window_request.WAITS, first, first + request.steps - 1)

    def _answer(self, number: int, state: int, first: int = 0, last: int = 0, text: str = "") -> None:
        if number and self._ledger is not None:
            window_request.write_answer(self._ledger.memory, Answer(number, state, first, last, text))

    # -- one window ------------------------------------------------------------------------------------

    def _start(self, plan: Plan, done: int, last: float) -> None:
        before, listed = time.perf_counter(), _begun(plan, done)
        profiler = self._profiler(plan)
        assert profiler is not None
        window = _Open(plan, profiler, last, listed)
        try:
            self._list(listed)
            window.may_be_on = True
            profiler.start(plan.kind)
            window.lines = None if plan.kind in PYTHONS else _lines()
            window.began = time.perf_counter()
            window.patience = max(LONGEST, PATIENCE * self._since_first_step() / done)
            window.marks.append(time.time_ns())
            self._open = window
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C
            self._give_up(window, error)
            return
        listed["pause_seconds"] = time.perf_counter() - before
        self._answer(plan.request, window_request.RECORDS, done, int(last) if last < inf else done)

    def _close(self, reason: str) -> None:
        """Writes the window. `reason`: why it is shorter than planned."""
        window = self._open
        assert window is not None
        before = time.perf_counter()
        listed, marks = window.listed, window.marks
        first, steps = listed["first"], len(marks) - 1
        listed |= {"last": first + steps - 1, "end": time.time(), "reason": reason}
        listed["step_seconds"] = (marks[-1] - marks[0]) / 1e9
        try:
            self._open = None
            _stop(window)
            if not steps:
                raise ValueError(f"{reason or 'it ended'} before its first step was complete")
            listed["trace"], listed["bytes"] = self._write_trace(window)
            listed["state"] = "written"
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C
            self._give_up(window, error)
            return
        listed["pause_seconds"] += time.perf_counter() - before
        gone = set(self._files().remove_oldest(f"rank-{self._session.ranks[0]}."))
        for each in self._listed:
            if each["trace"] in gone:
                each |= {"state": "removed", "reason": OLDEST}
        self._write_list()
        assert self._ledger is not None
        folder = self._files().path
        if window.profiler.ending == TRACE:
            self._ledger.name_traces(folder, first + steps)
        path = os.path.join(folder, listed["trace"])
        self._answer(window.plan.request, window_request.WRITTEN, first, listed["last"], path)

    def _give_up(self, window: _Open, error: BaseException) -> None:
        """Leaves no profiler on. Raises what is no failure of the window, such as KeyboardInterrupt."""
        self._open = None
        with suppress(Exception):
            if window.may_be_on:
                _stop(window)
        window.profiler.forget()
        self._fail(window.plan, window.listed, _said(error))
        if not isinstance(error, Exception):
            raise error

    def _write_trace(self, window: _Open) -> tuple[str, int]:
        """Returns the name of the trace and its bytes."""
        folder, profiler, listed = self._files(), window.profiler, window.listed
        number = self._earlier + self._listed.index(listed)
        name = window_name(self._session.ranks[0], listed["first"], listed["last"], os.getpid(), number)
        thread = {"pid": os.getpid(), "tid": get_native_id()}
        step = {"ph": "X", "cat": "user_annotation", **thread}
        line = {"ph": "i", "cat": LINE, "s": "t", **thread}
        events = [
            {**step, "name": f"ProfilerStep#{listed['first'] + number}", "ts": begin, "dur": end - begin}
            for number, (begin, end) in enumerate(pairwise(window.marks))
        ]
        if window.lines is not None:
            events += [{**line, "name": place, "ts": at} for at, place in window.lines.samples]
        try:
            events += profiler.write(folder.unfinished(name))
            world = None if profiler.knows_rank() else self._session.ranks
            return f"{name}{profiler.ending}", folder.finish(name, profiler.ending, events, world)
        finally:
            folder.forget(name)

    def _skip(self, plan: Plan, done: int, reason: str) -> None:
        listed = _begun(plan, done)
        self._fail(plan, listed | {"end": listed["start"]}, reason, "skipped")

    def _fail(self, plan: Plan, listed: dict[str, Any], reason: str, state: str = "failed") -> None:
        said = "was skipped" if state == "skipped" else state
        listed |= {"state": state, "reason": reason, "trace": ""}
        self._answer(plan.request, window_request.REFUSED, listed["first"], text=reason)
        self._complain(reason, f"the profile window at step {listed['first']} {said}: {reason}")
        with suppress(OSError):  # the same, most likely
            self._list(listed)

    def _list(self, listed: dict[str, Any]) -> None:
        """Adds a window to the list, or what is new of it. Raises OSError."""
        if listed not in self._listed:
            self._listed.append(listed)
            del self._listed[:-MOST_LISTED]
        self._write_list()

    def _write_list(self) -> None:
        assert self._ledger is not None
        rank = self._session.ranks[0]
        identity = {"run": self._ledger.run, "node": gethostname(), "rank": rank, "pid": os.getpid()}
        name = f"rank-{rank}.{os.getpid()}" + (f"-{self._earlier}" if self._earlier else "")
        self._files().write_list(name, {**identity, "windows": self._listed})

    def _files(self) -> WindowFolder:
        """Returns the folder of this run. Raises OSError."""
        if self._folder is None:
            self._folder = WindowFolder(self._ledger.run if self._ledger is not None else "")
        return self._folder


def _begun(plan: Plan, done: int) -> dict[str, Any]:
    begun = {"plan": plan.text, "first": done, "last": None, "start": time.time(), "end": None}
    return begun | {"pause_seconds": 0.0, "trace": "", "bytes": 0, "state": "open", "reason": ""}


def _lines() -> WindowLines | None:
    try:
        from stepscope.training.window_lines import sample_lines  # few processes have windows

        return sample_lines()
    except Exception:  # noqa: BLE001 - a window does without lines
        return None


def _stop(window: _Open) -> None:
    if window.lines is not None:
        window.lines.stop()
    window.profiler.stop()
    window.may_be_on = False


def _said(error: BaseException) -> str:
    """Returns the words of an error: those of a ValueError are for the reader as they are.

    Those of an OSError name no file, so that a full disk is one line, however many windows it costs.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}".rstrip(": ")
