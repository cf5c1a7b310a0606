"""Hooks training scripts that do not know of Stepscope, from the start of their Python.

stepscope_startup.pth next to it calls `start` if STEPSCOPE_INSTRUMENT is set; under `stepscope run`,
stepscope/training/startup/sitecustomize.py does. It is outside the package `stepscope`, because that
takes 5 ms to import and its name may be the user's own. Imports only what Python has imported already.
Nothing here raises into the script: what fails is reported once and left out.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType

# What to call, without arguments, once a module is completely imported.
_HOOKS = "stepscope.training.frameworks"
_LIGHTNING = "trainer.connectors.logger_connector.logger_connector"
HOOKS = {
    "torch": f"{_HOOKS}.torch_hooks:install",
    "transformers.trainer_callback": f"{_HOOKS}.published:install_transformers",
    f"lightning.pytorch.{_LIGHTNING}": f"{_HOOKS}.published:install_lightning",
    f"pytorch_lightning.{_LIGHTNING}": f"{_HOOKS}.published:install_pytorch_lightning",
    "accelerate.accelerator": f"{_HOOKS}.published:install_accelerate",
    "deepspeed.runtime.engine": f"{_HOOKS}.published:install_deepspeed",
    "tensorflow": f"{_HOOKS}.tensorflow_hooks:install",
    "keras": f"{_HOOKS}.keras_hooks:install",
    "keras.src.engine.training": f"{_HOOKS}.keras_2_hooks:install",  # of Keras 2
    "tf_keras.src.engine.training": f"{_HOOKS}.keras_2_hooks:install_tf_keras",
    "jax": f"{_HOOKS}.jax_hooks:install",
    "optax": f"{_HOOKS}.jax_hooks:install_optax",
    "horovod.torch.mpi_ops": f"{_HOOKS}.horovod_hooks:install_torch",
    "horovod.torch.functions": f"{_HOOKS}.horovod_hooks:install_torch_functions",
    "horovod.torch.optimizer": f"{_HOOKS}.horovod_hooks:install_torch_optimizer",
    "horovod.tensorflow.mpi_ops": f"{_HOOKS}.horovod_hooks:install_tensorflow",
    "mpi4py.MPI": f"{_HOOKS}.mpi_hooks:install",
    "multiprocessing.util": "stepscope.training.last_exception:watch_children",
}

# What to call at the start, under STEPSCOPE_LINES.
LINE_SAMPLER = "stepscope.training.line_sampler:start"

INSTRUMENT, LINES, ALL = "STEPSCOPE_INSTRUMENT", "STEPSCOPE_LINES", "STEPSCOPE"  # environment variables
LEDGERS, WORDS = "STEPSCOPE_LEDGER_DIR", "startup"  # environment variable, and its folder of words
STARTED = "STEPSCOPE_STARTED"  # environment variable of what a hooked Python starts
NO_LINES = "no_lines"  # a word: why lines are not sampled
EXCEPTION, EXCEPTIONS = "exception", 64  # the first part of words, and how many there can be

# Programs, and modules after -m, that start trainings or do something else, but never train themselves.
_NEVER_TRAIN = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch._inductor.compile_worker"),
    *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli", "horovodrun"),
    *("deepspeed", "ds", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("stepscope", "pip", "pip3", "ensurepip", "venv"),
)
_COMPILE_WORKER = os.path.join("torch", "_inductor", "compile_worker", "__main__.py")

was_started = False  # whether a hooked Python started this one: its main module may be a library's
_started = False
_hooking = False


def start() -> None:
    """Hooks this process, if the environment asks for it and the process may train. Never raises."""
    global _started
    if _started or not is_wanted(os.environ):
        return
    _started = True
    leave_word("python")
    try:
        program = _program()
        if "multiprocessing.spawn" in program or "multiprocessing.forkserver" in program:
            AfterImport({"multiprocessing.process": _wait_for_work})
        elif not _never_trains(program):
            _begin()
        elif sys.argv[0] != "-c":
            sys.meta_path.append(_Ourselves())
            _at_exception("note_killed")
    except Exception as error:  # noqa: BLE001 - nothing may raise into the script
        _not_hooked("this process", error)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment asks for hooks and switches nothing off."""
    return _is_on(environment.get(INSTRUMENT, "")) and _is_on(environment.get(ALL) or "on")


def hook() -> None:
    """Installs the hooks of `HOOKS`: now if the module is imported, otherwise after its import. Only once."""
    global _hooking
    if not _hooking:
        _hooking = True
        AfterImport({module: _Call(function) for module, function in HOOKS.items()})


class AfterImport:
    """Calls a function once, with the module, after its import is complete. Also if it is imported already.

    It is a finder that lets the others find the module, and changes only the loader's `exec_module` for this
    import: the module and its loader stay what they are.
    """

    def __init__(self, functions: dict[str, Callable[[], object]]) -> None:
        self._functions = functions
        self._finding: set[str] = set()
        for name in list(functions):
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is not None and not getattr(spec, "_initializing", False):
                self._imported(name)
        if self._functions:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._functions or name in self._finding:
            return None
        self._finding.add(name)  # another finder of this kind may ask all finders, as this one does
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    self._watch(name, spec)
                    return spec
        finally:
            self._finding.discard(name)
        return None

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or isinstance(loader, type):  # shared by all modules of its kind
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == name:  # the loader of a zip file is shared, too
                if loader.__dict__.get("exec_module") is exec_module:
                    del loader.exec_module
                self._imported(name)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:
            _not_hooked(name, f"its loader {type(loader).__name__} cannot be watched")

    def _imported(self, name: str) -> None:
        function = self._functions.pop(name, None)
        if not self._functions and self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            if function is not None:
                function()
                leave_word(name)
        except Exception as error:  # noqa: BLE001 - nothing may raise into the script
            _not_hooked(name, error)


def exception_word() -> str:
    """Returns the word of the exception that ends this process."""
    return f"{EXCEPTION}-{os.getpid() % EXCEPTIONS}"


def leave_word(word: str, text: str = "", again: bool = False) -> None:
    """Leaves a file for `stepscope run`, which then knows why it saw no steps. Only the first one counts.

    The words are `python` (of a process that loaded the hooks), an imported module of `HOOKS`, `failed` and
    `no_lines`. `exception-N` is of a process that an exception ended. With `again`, only the last one counts.
    """
    try:
        # The folder is there under `stepscope run`. Elsewhere another user may have put anything there.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(os.path.join(os.environ[LEDGERS], WORDS), flags)
        try:
            if os.fstat(folder).st_uid == os.geteuid():
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                flags |= os.O_TRUNC if again else os.O_EXCL
                file = os.open(word, flags, 0o644, dir_fd=folder)
                try:
                    os.write(file, text.encode("utf-8", "replace"))
                finally:
                    os.close(file)
        finally:
            os.close(folder)
    except (KeyError, OSError):
        pass


def complain(text: str) -> None:
    """Prints one line on stderr. Never raises."""
    try:  # noqa: SIM105 - contextlib takes long to import
        print(f"stepscope: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # stderr is full, closed, or gone
        pass


def _not_hooked(what: str, error: object) -> None:
    reason = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error
    text = f"{what} is not hooked: {reason}"
    leave_word("failed", text)
    complain(text)


# -- may this process train? ---------------------------------------------------------------------------


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "off", "0", "false", "no")


def _program() -> str:
    """Returns the script's path, the module after -m or the code after -c; "" for a prompt."""
    if not sys.argv or not sys.argv[0]:
        return ""
    return sys.orig_argv[-len(sys.argv)]


def _never_trains(program: str) -> bool:
    if sys.argv[0] == "-c":
        return "resource_tracker" in program  # also of multiprocess and loky
    return os.path.basename(program) in _NEVER_TRAIN or program.endswith(_COMPILE_WORKER)


def _wait_for_work() -> None:
    """Lets the process that multiprocessing starts begin when it knows its work: workers get no hooks."""
    process = sys.modules["multiprocessing.process"].BaseProcess
    bootstrap = process._bootstrap

    def begin(self: object, *arguments: object, **keywords: object) -> object:
        process._bootstrap = bootstrap
        work = getattr(getattr(self, "_target", None), "__module__", "")
        try:
            _begin(trains=work != "torch.utils.data._utils.worker")
        except Exception as error:  # noqa: BLE001 - nothing may raise into the script
            _not_hooked("this process", error)
        return bootstrap(self, *arguments, **keywords)

    process._bootstrap = begin


# -- hooks ---------------------------------------------------------------------------------------------


def _begin(trains: bool = True) -> None:
    global was_started
    was_started = STARTED in os.environ
    os.environ[STARTED] = "1"
    sys.meta_path.append(_Ourselves())
    if trains:
        hook()
        _keep_exception()
    if _is_on(os.environ.get(LINES, "")):
        try:
            _Call(LINE_SAMPLER)()
        except Exception as error:  # noqa: BLE001 - nothing may raise into the script
            leave_word(NO_LINES, f"of process {os.getpid()}: {type(error).__name__}: {error}")


def _keep_exception() -> None:
    """Keeps the exception that ends the script, and lets Python print it as without hooks."""

    def at_end() -> None:
        if getattr(sys, "last_value", None) is not None:  # also if the script has replaced the hook
            try:  # noqa: SIM105 - contextlib takes long to import
                _Call("stepscope.training.last_exception:note_last")()
            except Exception:  # noqa: BLE001 - nothing may raise into the script
                pass

    _at_exception("note_printed")
    atexit.register(at_end)


def _at_exception(function: str) -> None:
    """Gives the exception that ends this process to a function of last_exception, before Python prints it."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:  # noqa: SIM105 - contextlib takes long to import
            _Call(f"stepscope.training.last_exception:{function}")(error)
        except Exception:  # noqa: BLE001 - nothing may raise into the script
            pass
        before(kind, error, trace)

    sys.excepthook = excepthook


class _Call:
    """Imports a function of our package and calls it."""

    def __init__(self, function: str) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> None:
        module, _, function = self._function.partition(":")
        __import__(module)
        getattr(sys.modules[module], function)(*arguments)


class _Ourselves:
    """The last finder: finds our package next to this file, if the script's Python has no `stepscope`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "stepscope":
            return None
        return _on_path(name, [os.path.dirname(os.path.abspath(__file__))])


def _on_path(name: str, path: list[str]) -> ModuleSpec | None:
    finder = next(finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder")
    return finder.find_spec(name, path)
