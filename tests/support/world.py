"""Worlds: folders that take long to make, made once per tree for all processes and calls of pytest."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORLDS = ROOT / ".pytest_cache" / "worlds"
SIMULATING = ("common", "demo", "exporter", "runs", "training")
# What a simulated run is made of: after a change of a rule or of the report, none is played again.
PLAYED = (
    "exporter/stepscope/__init__.py",
    *(f"exporter/stepscope/{package}/**/*.py" for package in SIMULATING),
    "requirements.lock",
    *(f"tests/support/{name}.py" for name in ("backfill", "demo")),
)
RULED = (*PLAYED, "rules/**/*.yml")
EVALUATED = (*PLAYED, "exporter/**/*.py", "tests/support/as_debugger.py", "tests/support/scenarios.py")


def world(name: str, made_of: tuple[str, ...], make: Callable[[Path], object]) -> Path:
    """Returns the folder `name` as `make` fills it, and again if what it is `made_of` or the server changed.

    Do not change what is in it: take a `copy` of what changes itself, such as the storage of a server.
    """
    made = WORLDS / name / _key(made_of)
    with _lock(made.parent):
        if not made.exists():
            growing = made.with_name("growing")
            for old in made.parent.iterdir():
                if old.is_dir():
                    _let_write(old, True)
                    shutil.rmtree(old)
            growing.mkdir()
            make(growing)
            _let_write(growing, False)
            growing.rename(made)
    return made


def copy(made: Path, folder: Path) -> Path:
    """Copies a world, to be written in. Its files are links: replace them, do not change them."""
    shutil.copytree(made, folder, copy_function=_link, dirs_exist_ok=True)
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


def _let_write(folder: Path, may: bool) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200 if may else path.stat().st_mode & ~0o222)


@cache
def _key(made_of: tuple[str, ...]) -> str:
    """Returns the hash of the files and of the server."""
    whole = sha256()
    for file in sorted({file for pattern in made_of for file in ROOT.glob(pattern)}):
        whole.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    if server := shutil.which("prometheus"):
        whole.update(subprocess.run([server, "--version"], capture_output=True, check=True).stdout)
    return whole.hexdigest()[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
