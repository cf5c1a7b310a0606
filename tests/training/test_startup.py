"""The start of Python under STEPSCOPE_INSTRUMENT: which processes are hooked, when, and what stays."""

import sys
from pathlib import Path

import pytest
import stepscope_startup
from stepscope.commands.run.hooks import STARTUP

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.small_torch import environment_of

HOOKED = "any(type(finder).__name__ == 'AfterImport' for finder in sys.meta_path)"


def python(*words: str, path: str = "", errors: str = "", **environment: str) -> str:
    """Returns what a Python prints that starts as under `stepscope run`, and has these errors."""
    clean = unobserved()
    hooks = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": f"{STARTUP}:{path}" if path else str(STARTUP)}
    ended = ran([sys.executable, "-W", "error", *words], env={**clean, **hooks, **environment})
    assert ended.stderr == errors
    return ended.stdout


def hooked(**environment: str) -> bool:
    return python("-c", f"import sys; print({HOOKED})", **environment) == "True\n"


def test_a_script_is_hooked() -> None:
    assert hooked()


@pytest.mark.parametrize(
    "environment", [{"STEPSCOPE_INSTRUMENT": "0"}, {"STEPSCOPE": "off"}, {"STEPSCOPE": "False"}]
)
def test_the_environment_removes_everything(environment: dict[str, str]) -> None:
    assert not hooked(**environment)


def package(folder: Path) -> Path:
    """Makes a package that imports itself in circles, as torch does, and returns its folder."""
    inside = folder / "circular"
    inside.mkdir()
    (inside / "__init__.py").write_text("from circular import part\ncomplete = True\n")
    (inside / "part.py").write_text("import circular\nassert not hasattr(circular, 'complete')\n")
    return folder


IMPORTS = """
import importlib, sys, stepscope_startup
stepscope_startup.AfterImport({"circular": lambda: print("complete", sys.modules["circular"].complete)})
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import circular",
        "from circular import part",
        "import circular.part",
        "importlib.import_module('circular')",
        "importlib.import_module('circular.part')",
        "__import__('circular'); import circular",
        "importlib.util.find_spec('circular'); import circular",
    ],
)
def test_a_function_is_called_once_when_its_module_is_complete(tmp_path: Path, statement: str) -> None:
    script = f"import importlib.util{IMPORTS}{statement}\nassert {HOOKED} is True"
    assert python("-c", script, path=str(package(tmp_path))) == "complete True\n"


def test_a_module_imported_before_is_hooked_at_once(tmp_path: Path) -> None:
    assert python("-c", f"import circular{IMPORTS}", path=str(package(tmp_path))) == "complete True\n"


def test_the_module_and_its_loader_stay_what_they_are(tmp_path: Path) -> None:
    shown = "print(type(circular.__loader__).__name__, vars(circular.__spec__.loader).keys())"
    here = str(package(tmp_path))
    bare = python("-c", f"import circular; {shown}", path=here)
    assert python("-c", f"{IMPORTS}import circular; {shown}", path=here) == f"complete True\n{bare}"


def test_a_module_whose_import_failed_is_hooked_when_it_succeeds(tmp_path: Path) -> None:
    (package(tmp_path) / "circular" / "part.py").write_text("1 / 0")
    again = """
try:
    import circular
except ZeroDivisionError:
    print("failed", "circular" in sys.modules)
sys.modules["circular.part"] = sys
import circular"""
    assert python("-c", f"{IMPORTS}{again}", path=str(tmp_path)) == "failed False\ncomplete True\n"


# Who is hooked: processes that may train, and no others.

CHILDREN = """
import multiprocessing, sys
import torch
from shown import show
from torch.utils.data._utils.worker import _worker_loop

if __name__ == "__main__":
    show("main")
    context = multiprocessing.get_context(sys.argv[1])
    for target, arguments in ((show, ("child",)), (_worker_loop, ())):
        child = context.Process(target=target, args=arguments)
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_of_multiprocessing_is_hooked_unless_it_is_a_loader_worker(
    tmp_path: Path, method: str
) -> None:
    path = environment_of(tmp_path)
    (tmp_path / "train.py").write_text(CHILDREN)
    printed = python(str(tmp_path / "train.py"), method, path=path)
    assert printed == "main True\nchild True\nworker False\n"


LAUNCHERS = [
    "torchrun",
    "accelerate",
    "deepspeed",
    "pip",
    "stepscope",
    "torch/_inductor/compile_worker/__main__.py",
]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_programs_that_never_train_are_not_hooked(tmp_path: Path, name: str) -> None:
    path = environment_of(tmp_path)
    program = tmp_path / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("import torch; from shown import show; show('launcher')")
    assert python(str(program), path=path) == "launcher False\n"


def test_a_launcher_called_as_a_module_is_not_hooked_but_what_it_starts_is(tmp_path: Path) -> None:
    path = environment_of(tmp_path)
    (tmp_path / "torch" / "distributed").mkdir()
    (tmp_path / "torch" / "distributed" / "run.py").write_text(
        "from shown import show; show('launcher')\n"
        "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    )
    rank = "import torch; from shown import show; show('rank')"
    printed = python("-u", "-m", "torch.distributed.run", "-Wdefault", "-c", rank, path=path)
    assert printed == "launcher False\nrank True\n"


@pytest.mark.parametrize("package", ["multiprocessing", "multiprocess", "joblib.externals.loky.backend"])
def test_the_resource_tracker_of_multiprocessing_is_not_hooked(package: str, tmp_path: Path) -> None:
    path = environment_of(tmp_path)
    code = f"from shown import show; import torch; show('tracker') # from {package}.resource_tracker"
    assert python("-c", code, path=path) == "tracker False\n"


# What the user has stays.


def test_the_users_own_sitecustomize_runs_and_is_the_module_of_that_name(tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text("print('own', __name__)")
    shown = "import sys, sitecustomize; print(sitecustomize.__file__, 'startup' in str(sys.path))"
    assert python("-c", shown, path=str(tmp_path)) == f"own sitecustomize\n{own} False\n"


def test_without_a_sitecustomize_of_the_user_there_is_none() -> None:
    assert python("-c", "import sys; print('sitecustomize' in sys.modules)") == "False\n"


def test_a_python_in_which_stepscope_is_not_installed_is_hooked_by_the_folder_alone() -> None:
    """The interpreter that this environment was made of."""
    base = f"{sys.base_prefix}/bin/python3.{sys.version_info[1]}"
    command = [base, "-c", f"import sys; print({HOOKED})"]
    environment = {"PYTHONPATH": str(STARTUP), "STEPSCOPE_INSTRUMENT": "1"}
    ended = ran(command, env=environment, check=True)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


def test_an_error_in_the_users_sitecustomize_is_reported_by_python_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    command = [sys.executable, "-c", f"import sys; print({HOOKED})"]
    bare, ours = (
        ran(command, env=environment, check=True)
        for environment in (
            {"PYTHONPATH": str(tmp_path)},
            {"PYTHONPATH": f"{STARTUP}:{tmp_path}", "STEPSCOPE_INSTRUMENT": "1"},
        )
    )
    assert (bare.stderr, bare.stdout, ours.stdout) == (ours.stderr, "False\n", "True\n")


def test_a_module_of_the_user_called_stepscope_stays_and_the_hooks_say_why_they_do_not_load(
    tmp_path: Path,
) -> None:
    (tmp_path / "stepscope.py").write_text("mine = True")
    (tmp_path / "torch.py").touch()
    (tmp_path / "train.py").write_text("import torch, stepscope; print(stepscope.mine)")
    errors = (
        "stepscope: torch is not hooked: ModuleNotFoundError: No module named 'stepscope.training'; "
        "'stepscope' is not a package\n"
    )
    assert python(str(tmp_path / "train.py"), errors=errors) == "True\n"


def test_a_notebook_is_hooked_when_it_asks_and_once(tmp_path: Path) -> None:
    path = environment_of(tmp_path)
    code = """
import torch, stepscope
from shown import hooked, show
show("before")
stepscope.instrument()
stepscope.instrument()
show("after")
print(len(hooked))"""
    off = {"STEPSCOPE_INSTRUMENT": "0"}
    folders = f"{Path(stepscope_startup.__file__).parent}:{path}"
    assert python("-c", code, path=folders, **off) == "before False\nafter True\n1\n"
    assert python("-c", code, path=folders, STEPSCOPE="off", **off) == "before False\nafter False\n0\n"


def test_a_hook_that_fails_is_one_line_and_the_script_goes_on(tmp_path: Path) -> None:
    path = environment_of(tmp_path)
    (tmp_path / "shown.py").write_text("def hook(): raise AttributeError('gone in this version')")
    errors = "stepscope: torch is not hooked: AttributeError: gone in this version\n"
    code = "import torch; import torch.utils; print('trained')"
    assert python("-c", code, path=path, errors=errors) == "trained\n"
