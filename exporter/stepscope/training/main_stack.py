"""Reads the stack of the main thread, or of one that trains, from another thread, in one call of C code.

Python code that walks another thread's frames can lose the interpreter lock between two of them, and then
reads memory that is gone. One call of C code that keeps the lock sees a stack that cannot change. CPython has
a few such calls, and each of them crashes in some version. So every version is read in the way that holds:

- 3.13: `faulthandler.dump_traceback` writes the stacks of all threads, of at most 100.
- 3.11 and 3.12: `_Py_DumpTraceback` writes that of one thread, which must live. 3.11 lists a thread that C
  code starts before its state is complete: `faulthandler`, which walks the list, crashes there.
- 3.14: `RemoteUnwinder` copies this process's memory by a system call, which fails at a wrong address: of the
  main thread only. `faulthandler` of 3.14 asks threads that have ended for their names, and crashes there.

None of them looks at another interpreter or makes a frame object. They see the innermost 100 frames.
"""

from __future__ import annotations

import os
import sys
from _thread import _local, get_ident, get_native_id
from _weakref import ref

from stepscope.common.shared_files import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Any, Protocol

    class Stack(Protocol):
        """A stack that is read again and again."""

        def read(self) -> Hashable:
            """Returns the stack of now, as it came. Equal ones have equal frames. Raises OSError."""

        def frames(self, stack: Any) -> Sequence[Frame]:
            """Returns the frames of what `read` returned, innermost first."""

        def check(self) -> None:
            """Raises OSError if the program has closed what `read` needs."""

        def close(self) -> None:
            """Gives back what `read` needs."""


Frame = tuple[str, int, str]  # file, line, function

BEFORE_3_15 = 0x030F0000
HIGH_DESCRIPTORS = (1000, 200)  # tried in this order, as far as the process's limit allows
PIECE = 1 << 16
REWIND_AT = 1 << 18  # bytes
NOT_ASCII = "Python 3.14 cannot read a stack with names of files or functions that are not ASCII"


class NotSafeError(RuntimeError):
    """Why no stack can be read in this Python."""


def is_main_interpreter() -> bool:
    """Returns whether this code runs in the main interpreter. It alone is sampled."""
    try:
        from _thread import _is_main_interpreter  # type: ignore[attr-defined]
    except ImportError:  # before Python 3.12
        interpreters = __import__("_xxsubinterpreters")
        return bool(interpreters.get_current() == interpreters.get_main())
    return bool(_is_main_interpreter())


def stack_of_this_thread() -> Callable[[], Stack]:
    """Returns a function that opens the stack of the present thread, for another one. Raises NotSafeError."""
    name, version = sys.implementation.name, f"{sys.version_info.major}.{sys.version_info.minor}"
    if name != "cpython" or sys.hexversion >= BEFORE_3_15:
        raise NotSafeError(f"not tried with {name} {version}")
    if "t" in sys.abiflags:
        raise NotSafeError("this Python has no interpreter lock to stop the main thread by")
    try:
        if version == "3.14":
            if get_native_id() != os.getpid():
                raise NotSafeError("Python 3.14 shows the stack of the main thread only")
            stack = Unwound(__import__("_remote_debugging").RemoteUnwinder)
            return lambda: stack
        if version in ("3.11", "3.12"):
            write, heading = _dump_of_this_thread(), b""
        else:
            from faulthandler import dump_traceback as write

            heading = b"hread 0x%016x (" % get_ident()
    except (ImportError, AttributeError, OSError) as error:
        raise NotSafeError(f"this Python {version} was built without what reads a stack: {error}") from error
    return lambda: Dumped(write, heading)


_functions: list[Any] = []  # found once: a forked process looks for nothing


def _dump_of_this_thread() -> Callable[[int], object]:
    """Returns a function that writes the stack of the present thread to a descriptor. Raises OSError.

    After the end of the thread it writes nothing.
    """
    if not _functions:
        import _ctypes  # without `ctypes`, which takes longer to import than all of this package

        class Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "P"

        class Dump(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI  # which keeps the interpreter lock
            _restype_ = None

        class State(_ctypes.CFuncPtr):
            _flags_ = Dump._flags_
            _restype_ = Pointer

        here = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        dump, state = (_ctypes.dlsym(here, name) for name in ("_Py_DumpTraceback", "PyThreadState_Get"))
        _functions.extend((Dump(dump), State(state), Pointer))
    dump, state, pointer = _functions
    return _DumpOfThread(dump, pointer(state()))


class _DumpOfThread:
    """Writes the stack of the thread that makes it. Python forgets what a thread holds before its state."""

    def __init__(self, dump: Any, thread: object) -> None:
        self._dump, self._thread = dump, thread
        self._ended: list[object] = []
        self._local = _local()
        self._local.held = held = _Held()
        self._watched = ref(held, self._ended.append)

    def __call__(self, fd: int) -> None:
        if not self._ended:
            self._dump(fd, self._thread)  # no call in between: the thread cannot end meanwhile


class _Held:
    pass


class Dumped:
    """A stack that C code writes as text, here to a file in memory.

    The file's descriptor is a high number: if a program closes all of them, no later file of its own gets
    this one soon.
    """

    def __init__(self, write: Callable[[int], object], heading: bytes) -> None:
        self._write = write
        self._heading = heading  # of the main thread's part; b"": there are no others
        self._file = Descriptor(_high(os.memfd_create("stepscope-stack", os.MFD_CLOEXEC)))
        self._at = 0

    def read(self) -> bytes:
        """Returns the lines of the main thread; b"" if there are none."""
        fd = self._file.fd
        self._write(fd)
        text = os.pread(fd, PIECE, self._at)
        while len(text) % PIECE == 0 and (more := os.pread(fd, PIECE, self._at + len(text))):
            text += more
        self._at += len(text)
        if self._at > REWIND_AT:
            os.ftruncate(fd, 0)
            self._at = os.lseek(fd, 0, os.SEEK_SET)
        if self._heading:
            text = text.partition(self._heading)[2].partition(b"\n\n")[0]
        return text

    def frames(self, stack: bytes) -> list[Frame]:
        """Reads lines `  File "NAME", line NUMBER in FUNCTION`. What is not ASCII is escaped in them."""
        found = []
        for line in stack.decode("ascii", "replace").split("\n"):
            if line.startswith('  File "'):
                name, _, rest = line[8:].partition('", line ')
                number, _, function = rest.partition(" in ")
                found.append((_unescaped(name), int(number) if number.isdigit() else 0, _unescaped(function)))
        return found

    def check(self) -> None:
        if not self._file.is_ours():
            raise OSError("the program closed the descriptor of the stack")

    def close(self) -> None:
        self._file.close()


class Unwound:
    """A stack that Python 3.14 copies out of this process's memory."""

    def __init__(self, unwinder: Any) -> None:
        self._of = unwinder
        self._unwinder: Any = None

    def read(self) -> tuple[Frame, ...]:
        if self._unwinder is None:  # it reads all mappings of the process: once is enough
            unwinder = self._of(os.getpid())
            unwinder.get_stack_trace()  # raises an error here if it always does: in a container, for example
            self._unwinder = unwinder
        try:
            threads = self._unwinder.get_stack_trace()
        except UnicodeDecodeError:
            raise OSError(NOT_ASCII) from None
        except (RuntimeError, OSError):  # more calls than it follows
            return ()
        frames = threads[0].frame_info if threads else ()
        return tuple([(frame.filename, frame.lineno, frame.funcname) for frame in frames[:100]])

    def frames(self, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        if any("\0" in file + function for file, _, function in stack):
            raise OSError(NOT_ASCII)
        return stack

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def _high(fd: int) -> int:
    """Moves a descriptor to a high number, if the process may have one."""
    import fcntl

    for least in HIGH_DESCRIPTORS:
        try:
            moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:
            continue
        os.close(fd)
        return moved
    return fd


def _unescaped(text: str) -> str:
    first, *parts = text.split("\\")
    return first + "".join(map(_character, parts))


def _character(part: str) -> str:
    digits = {"x": 2, "u": 4, "U": 8}.get(part[:1], 0)
    try:
        return chr(int(part[1 : 1 + digits], 16)) + part[1 + digits :]
    except (ValueError, OverflowError):
        return "\\" + part
