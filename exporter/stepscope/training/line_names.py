"""Names what a thread executes: the user's own line, and the function of a library that it called.

If that function is one that runs a whole framework, such as `fit`, the framework's innermost one is
named after it: `fit: loops.epoch_loop.advance`.

The user's own is every file outside the standard library, of `site-packages` and `dist-packages`, and of
Stepscope. So is a package's main module, unless another script started it. What a framework generated is
nobody's. Only names and line numbers are used, never source text.
"""

from __future__ import annotations

import os
import sys

from stepscope.training.line_layout import GENERATED, SEPARATOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.training.main_stack import Frame

MOST_FILES = 10_000  # remembered; generated code may have a new name each time
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", f".zip{os.sep}")
# The characters of each field: together they fit into line_layout.TEXT_BYTES unless they are not ASCII.
_PLACE, _FUNCTION, _LIBRARY = 60, 32, 76
_LINE_NUMBER = 8
_WHOLE = 100  # characters of a function of a library in a whole stack
# Functions that run whatever a framework does: its innermost function says more. `_call_impl`: of a module.
_LOOPS = frozenset(
    ["train", "learn", "evaluate", "validate", "predict", "test", "generate", "fine_tune", "lr_find"]
)
_RUNNERS = frozenset(["run", "__call__", "__next__", "_call_impl", "_wrapped_call_impl"])
# multiprocess: a copy of multiprocessing, as of `datasets`
_FORKED_IN = tuple(f"{os.sep}{name}{os.sep}process.py" for name in ("multiprocessing", "multiprocess"))
_PASS_ON = frozenset(["_call_impl", "_wrapped_call_impl"])  # of a module of PyTorch: they say nothing
# Functions that decorators of frameworks put around others, such as collectives, steps and `fit`.
_AROUND = frozenset(
    [
        *("decorate_context", "_use_grad", "error_handler", "reraise_with_filtered_traceback"),
        *("inner", "inner_f", "wrapped"),
    ]
)
_IMPORT, _IMPORTLIB = "import", "<frozen importlib"
_OWN, _LIBRARYS, _NOBODYS = range(3)  # whose a file is
_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # which PyTorch itself sets
_NO_CODE = ("__init__", "<shim>")  # files of frames that CPython 3.12 and later put between those of code


class LineNames:
    """Knows which files are the user's own. Places are relative to the working directory at its start."""

    def __init__(self) -> None:
        ours = os.path.dirname(os.path.dirname(__file__))
        self._library = os.path.dirname(os.__file__) + os.sep
        self._ours = (ours + os.sep, f"{ours}_startup.py")
        # The main module of a process that multiprocessing started is a line of multiprocessing's.
        spawned = any("multiprocess" in word for word in sys.orig_argv[1:])
        import stepscope_startup  # outside this package, because it must load without it

        self._was_started = stepscope_startup.was_started
        self._typed = () if spawned else ("<string>", "<stdin>") if sys.argv[:1] == ["-c"] else ("<stdin>",)
        self._here = os.getcwd().rstrip(os.sep) + os.sep
        self._known: dict[str, int] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._words: dict[Frame, str] = {}

    def of(self, frames: Sequence[Frame]) -> str:
        """Returns the fields of line_layout.FIELDS for the frames of a thread, innermost first."""
        innermost = called = fits = own = caller = imports = None
        inner: dict[str, Frame] = {}  # the innermost frame of each package
        for frame in self._of_this_process(frames):
            if self._whose(frame[0]) == _NOBODYS:
                continue  # such as a hook, between the user and the library
            innermost = innermost or frame
            if self._is_own(frame[0]):
                if own is not None:
                    caller = frame
                    break
                own = frame
            elif own is None:
                name = _name(frame)
                is_around = name in _AROUND or name.endswith("wrapper")
                # A library made the code, such as methods of proxies: it is in no file.
                is_made = frame[0].startswith("<") and not frame[0].startswith("<frozen ")
                if called is None or not (is_around or is_made):
                    called = frame
                if name == "fit":
                    fits = fits or frame
                if frame[0].startswith(_IMPORTLIB):
                    imports = frame
                inner.setdefault(self._package(frame[0]), frame)
        if called and fits and not _is_runner(_name(called)):  # such as a search for hyperparameters
            called = fits if self._package(fits[0]) != self._package(called[0]) else called
        loop = ""
        if called and _is_runner(_name(called)):
            innermost_of = inner[self._package(called[0])]
            runner = _name(called)
            loop = f"{runner}: " if _is_loop(runner) and innermost_of is not called else ""
            called = innermost_of
        if imports:  # what it called may import more at its first call, or at the first use of a name
            loop, called = "", imports
        if own is None:
            return f"\n\n{self._function_of_library(innermost) if innermost is not None else ''}\n\n"
        library = self._function_of_library(called, _LIBRARY - len(loop)) if called else ""
        fields = [*self._place_and_function(own), loop + library]
        return "\n".join(fields + (self._place_and_function(caller) if caller else ["", ""]))

    def whole(self, frames: Sequence[Frame]) -> str:
        """Returns the functions of a thread, outermost first, as line_table.py counts them.

        An import of a library ends the stack: hundreds of modules would fill the tree.
        """
        found: list[str] = []
        for frame in reversed(self._of_this_process(frames)):
            words = self._words.get(frame)
            if words is None:
                if len(self._words) >= MOST_FILES:
                    self._words.clear()
                words = self._words[frame] = self._described(frame)
            imports = found[-1:] == [_IMPORT]
            if words and not (imports and words == _IMPORT):
                found.append(words)
                if imports and not self._is_own(frame[0]):
                    break
        return SEPARATOR.join(found)

    def _of_this_process(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Returns the frames without those of the parent, at the moment of a fork."""
        for at, frame in enumerate(frames):
            if frame[0].endswith(_FORKED_IN) and frame[2].endswith("_bootstrap"):
                return frames[:at]
        return frames

    def _described(self, frame: Frame) -> str:
        """Returns "load, data.py:14" or "torch.nn.functional.linear"; "" for what nobody has to know."""
        name, _, function = frame
        if function in _PASS_ON or self._whose(name) == _NOBODYS:
            return ""
        if not self._is_own(name):
            return self._function_of_library(frame, _WHOLE)
        place, function = self._place_and_function(frame)
        return place if function == "<module>" else f"{function}, {place}"

    def _package(self, name: str) -> str:
        """Returns the top package, or the module, of a library's file."""
        for part in (*_PACKAGES, self._library):
            name = name.rpartition(part)[2]
        return name.partition(os.sep)[0]

    def _is_own(self, name: str) -> bool:
        return self._whose(name) == _OWN

    def _whose(self, name: str) -> int:
        whose = self._known.get(name)
        if whose is None:
            if len(self._known) >= MOST_FILES:
                self._known.clear()
            whose = self._known[name] = self._find(name)
        return whose

    def _find(self, name: str) -> int:
        """Finds whose a file is. Stepscope's is nobody's: its hooks and callbacks run anywhere."""
        if name in _NO_CODE or name.startswith(self._ours):
            return _NOBODYS
        if name.startswith("<"):  # made by exec, as in dataclasses; a notebook's cells are the user's own
            return _OWN if name.startswith("<ipython") or name in self._typed else _LIBRARYS
        path = name if os.path.isabs(name) else self._here + name
        cache = os.environ.get(_CACHE)
        if any(part in path for part in GENERATED) or (cache and path.startswith(cache + os.sep)):
            return _NOBODYS
        if any(part in path for part in _PACKAGES):
            main = getattr(sys.modules.get("__main__"), "__dict__", {}).get("__file__")  # runs no code of it
            is_main = isinstance(main, str) and path == os.path.abspath(main)
            return _OWN if is_main and not self._was_started else _LIBRARYS
        return _LIBRARYS if path.startswith(self._library) else _OWN  # the former also if it runs a script

    def _place_and_function(self, frame: Frame) -> list[str]:
        return [self._place(frame), _function(frame)[:_FUNCTION]]

    def _place(self, frame: Frame) -> str:
        """Returns `file:line`, of a file elsewhere with its folder's name only."""
        name = frame[0]
        if name.startswith(self._here):
            name = name[len(self._here) :]
        elif os.path.isabs(name):
            name = os.sep.join(name.split(os.sep)[-2:]).lstrip(os.sep)
        return f"{last_parts(clean(name), _PLACE - _LINE_NUMBER, os.sep)}:{self._line(*frame)}"

    def _line(self, file: str, line: int, function: str) -> int:
        """Returns a line of that function for an instruction without one, as at the end of a `with`."""
        if len(self._lines) >= MOST_FILES:
            self._lines.clear()
        if line:
            self._lines[file, function] = line
        return line or self._lines.get((file, function), 1)

    def _function_of_library(self, frame: Frame, size: int = _LIBRARY) -> str:
        """Returns `module.function`, of a file that no package has the function alone.

        Python 3.14 says the class of a method, too, and older ones do not.
        """
        name, function = frame[0], _name(frame)
        if name.startswith(_IMPORTLIB):
            return _IMPORT
        module = ""
        if name.startswith("<frozen "):
            module = name[len("<frozen ") : -1]
        elif not name.startswith("<"):
            for part in _PACKAGES:
                name = name.rpartition(part)[2]
            if name.startswith(self._library):
                name = name[len(self._library) :]
            module = name.removesuffix(".py").removesuffix(f"{os.sep}__init__").strip(os.sep)
        words = [*module.split(os.sep), function] if module else [function]
        return _with_package(clean(".".join(words)), size)


def is_import(text: str) -> bool:
    """Returns whether the fields of a stack say that a module was being imported."""
    return text.split("\n")[2] == _IMPORT


def last_parts(name: str, size: int, separator: str) -> str:
    """Returns the last parts of a name that together have at most `size` characters."""
    if len(name) <= size:
        return name
    end = name[-size:]
    return end.partition(separator)[2] or end


def _with_package(name: str, size: int) -> str:
    """Returns a name of at most `size` characters, a long one as "torch...distributed_c10d.broadcast"."""
    if len(name) <= size:
        return name
    package = name.partition(".")[0][: size // 2]
    return f"{package}...{last_parts(name, size - len(package) - 3, '.')}"


def _is_loop(function: str) -> bool:
    return function in _LOOPS or function.partition("_")[0] == "fit"  # such as fit_one_cycle of fastai


def _is_runner(function: str) -> bool:
    return function in _RUNNERS or _is_loop(function)


def _name(frame: Frame) -> str:
    """Returns the function without its class."""
    return _function(frame).rpartition(".")[2]


def _function(frame: Frame) -> str:
    return clean(frame[2].replace("<locals>.", ""))


def clean(text: str) -> str:
    """Returns the text with `_` in place of what cannot be printed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "_" for c in text)
