"""`stepscope hooks`: shows, installs and removes stepscope_startup.pth in a Python, this one or another.

A Python runs the .pth files in its site-packages at its start, also with -E and -I. Installing Stepscope
installs ours; where other people use the same environment, it can be removed without Stepscope.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.whole_file import write_whole
from stepscope.runs.malformed import MALFORMED

FILE = "stepscope_startup.pth"
MODULE = "stepscope_startup"
OLDEST = (3, 11)
EXAMPLES = """\
examples:
  stepscope hooks status                                does this Python load the hooks?
  stepscope hooks install --python /opt/conda/bin/python
  stepscope hooks remove                                keep Stepscope, without hooks in this environment

The hooks load only in processes with STEPSCOPE_INSTRUMENT=1 in their environment. `stepscope run` sets it,
and needs no installation. The exit status of `status` is 1 if the hooks would not load.
"""

# What the file holds where the Python can import the module, as installed by pip, and where it cannot.
LINE = f'import os; os.environ.get("STEPSCOPE_INSTRUMENT") and __import__("{MODULE}").start()\n'
LINE_ELSEWHERE = (
    "import os, sys; folder = {folder!r}; "
    'os.environ.get("STEPSCOPE_INSTRUMENT") and os.path.isfile(folder + "/{module}.py") and '
    '(sys.path.insert(0, folder), __import__("{module}"), sys.path.remove(folder), '
    'sys.modules["{module}"].start())\n'
)

_LOOK = """
import importlib.machinery, json, site, sys, sysconfig
importable = importlib.machinery.PathFinder.find_spec({module!r}) is not None
loads = {module!r} in sys.modules
folders = site.getsitepackages() + [site.getusersitepackages()]
print(json.dumps([sys.version_info[:2], sysconfig.get_path("purelib"), folders, importable, loads]))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter's description of itself."""

    path: str
    version: tuple[int, int]
    folder: Path  # where pip installs packages
    files: tuple[Path, ...]  # ours, in all folders of packages
    importable: bool  # whether it has our module without our help
    loads: bool  # whether the hooks load at its start

    @property
    def name(self) -> str:
        return f"{self.path} (Python {self.version[0]}.{self.version[1]})"


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope hooks`."""
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("status", "install", "remove"), help="what to do")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="the interpreter that trains (default: the one of this command)",
    )


def run(arguments: Namespace) -> int:
    """Does it, and prints what is so now. Raises UserError if it cannot."""
    python = look(arguments.python)
    if arguments.action == "remove":
        _remove(python)
        return 0
    if arguments.action == "install":
        _install(python)
        python = look(arguments.python)
    return _print_status(python)


def look(path: str) -> Python:
    """Asks the interpreter. Raises UserError if it does not answer or is too old."""
    environment = {name: value for name, value in os.environ.items() if name != "STEPSCOPE"}
    try:
        answer = subprocess.run(
            [path, "-E", "-c", _LOOK.format(module=MODULE)],  # -E: `stepscope run` sets PYTHONPATH
            env={**environment, "STEPSCOPE_INSTRUMENT": "1", "STEPSCOPE_LINES": "0"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        version, folder, folders, importable, loads = json.loads(answer.splitlines()[-1])
        python = Python(
            path,
            (version[0], version[1]),
            Path(folder),
            tuple(dict.fromkeys(file for one in folders if (file := Path(one) / FILE).is_file())),
            importable,
            loads,
        )
    except (OSError, subprocess.SubprocessError, *MALFORMED) as error:
        raise UserError(f"--python {path}: does not answer as Python 3 does; give an interpreter") from error
    if python.version < OLDEST:
        raise UserError(f"{python.name} is too old: the hooks need Python {OLDEST[0]}.{OLDEST[1]} or later")
    return python


def _install(python: Python) -> None:
    ours = str(Path(__file__).parents[2])
    line = LINE if python.importable else LINE_ELSEWHERE.format(folder=ours, module=MODULE)
    file = python.folder / FILE
    try:
        write_whole(file, line)
        file.chmod(0o644)  # for all users of the environment, whatever the umask
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; ask the owner of the folder") from error


def _remove(python: Python) -> None:
    try:
        for file in python.files:
            file.unlink()
            print(f"removed {file}")
    except OSError as error:
        raise UserError(f"cannot remove {file}: {error.strerror}; ask the owner of the folder") from error
    if not python.files:
        print(f"{python.name}: the hooks are not installed, so there is nothing to remove")


def _print_status(python: Python) -> int:
    if not python.files:
        print(f"{python.name}: the hooks are not installed")
        return 1
    print(f"{python.name}: the hooks are installed by {', '.join(map(str, python.files))}")
    if not python.loads:
        print(f"but they do not load: run `stepscope hooks install --python {python.path}` again")
        return 1
    if os.environ.get("STEPSCOPE_INSTRUMENT"):
        print("they load in processes with STEPSCOPE_INSTRUMENT=1, as it is set here")
    else:
        print("they load in processes with STEPSCOPE_INSTRUMENT=1, which is not set here")
    return 0
