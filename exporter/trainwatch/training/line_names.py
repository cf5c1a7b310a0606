"""Names what a thread executes: the user's own line, and the function of a library that it called.

The user's own is the main module, and every file outside the standard library, of `site-packages` and
`dist-packages`, and of Trainwatch. Only names and line numbers are used, never source text.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

MOST_FILES = 10_000  # remembered; generated code may have a new name each time
MOST_TEXTS = 1_000
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", f".zip{os.sep}")
# The characters of each field: together they fit into line_layout.TEXT_BYTES unless they are not ASCII.
_PLACE, _FUNCTION, _LIBRARY = 60, 32, 40
_LINE_NUMBER = 8


class LineNames:
    """Knows which files are the user's own. Places are relative to the working directory at its start."""

    def __init__(self) -> None:
        ours = os.path.dirname(os.path.dirname(__file__))
        library = os.path.dirname(os.__file__) + os.sep
        self._ours = (ours + os.sep, f"{ours}_startup.py")
        self._libraries = (library, *self._ours)
        # The main module of a process that multiprocessing started is a line of multiprocessing's.
        self._main_is_own = not any("multiprocessing" in word for word in sys.orig_argv[1:])
        self._here = os.getcwd().rstrip(os.sep) + os.sep
        self._known: dict[str, bool] = {}
        self._texts: dict[object, tuple[str, list[CodeType]]] = {}

    def of(self, frame: FrameType | None) -> str:
        """Returns the fields of line_layout.FIELDS for the innermost frame of a thread."""
        innermost, called = frame, None
        while frame is not None and not self._is_own(frame):
            if not frame.f_code.co_filename.startswith(self._ours):  # a hook between the user and the library
                called = frame
            frame = frame.f_back
        if frame is None:
            return f"\n\n{_library(innermost) if innermost is not None else ''}\n\n"
        caller = frame.f_back
        while caller is not None and not self._is_own(caller):
            caller = caller.f_back
        # By instructions: to find their lines takes longer. Code compares equal if only its file differs.
        key = tuple((id(f.f_code), f.f_lasti) if f is not None else None for f in (frame, called, caller))
        known = self._texts.get(key)
        if known is None:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            codes = [f.f_code for f in (frame, called, caller) if f is not None]  # keep their ids
            known = self._texts[key] = self._text(frame, called, caller), codes
        return known[0]

    def _text(self, frame: FrameType, called: FrameType | None, caller: FrameType | None) -> str:
        fields = [*self._place_and_function(frame), "" if called is None else _library(called)]
        return "\n".join(fields + (["", ""] if caller is None else self._place_and_function(caller)))

    def _is_own(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        own = self._known.get(name)
        if own is None:
            if len(self._known) >= MOST_FILES:
                self._known.clear()
            own = self._known[name] = self._find(name)
        return own or (self._main_is_own and frame.f_globals.get("__name__") == "__main__")

    def _find(self, name: str) -> bool:
        if name.startswith("<"):  # made by exec, as in dataclasses; a notebook's cells are the user's own
            return name.startswith("<ipython")
        path = name if os.path.isabs(name) else self._here + name
        return not (path.startswith(self._libraries) or any(part in path for part in _PACKAGES))

    def _place_and_function(self, frame: FrameType) -> list[str]:
        return [self._place(frame), _function(frame.f_code)[:_FUNCTION]]

    def _place(self, frame: FrameType) -> str:
        """Returns `file:line`, of a file elsewhere with its folder's name only."""
        name = frame.f_code.co_filename
        if name.startswith(self._here):
            name = name[len(self._here) :]
        elif os.path.isabs(name):
            name = os.sep.join(name.split(os.sep)[-2:]).lstrip(os.sep)
        line = frame.f_lineno or frame.f_code.co_firstlineno
        return f"{_end(_clean(name), _PLACE - _LINE_NUMBER, os.sep)}:{line}"


def _library(frame: FrameType) -> str:
    code = frame.f_code
    if code.co_filename.startswith("<frozen importlib"):
        return "import"
    module = frame.f_globals.get("__name__")
    name = f"{module}.{_function(code)}" if isinstance(module, str) else _function(code)
    return _end(_clean(name), _LIBRARY, ".")


def _end(name: str, size: int, separator: str) -> str:
    """Returns the last parts of a name that together have at most `size` characters."""
    if len(name) <= size:
        return name
    end = name[-size:]
    return end.partition(separator)[2] or end


def _function(code: CodeType) -> str:
    name: str = getattr(code, "co_qualname", code.co_name)  # from Python 3.11
    return _clean(name.replace("<locals>.", ""))


def _clean(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "_" for c in text)
