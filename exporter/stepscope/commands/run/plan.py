"""Checks the arguments of `stepscope run`, and takes its port and directory, before anything is started."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.commands.run.listener import Listener, listen
from stepscope.common.errors import UserError, did_you_mean
from stepscope.common.masking import masked
from stepscope.common.shared_files import try_hold
from stepscope.common.users import user_name
from stepscope.report.shell import shell_command
from stepscope.runs.recording.files import IGNORED, RUNS, holds_recording, new_directory, open_lock
from stepscope.training.launch import Launch, read_launch
from stepscope.training.layout import NAME_BYTES
from stepscope.training.ranks import read_ranks

if TYPE_CHECKING:
    from stepscope.report.price_list import Machine


@dataclass(frozen=True)
class Plan:
    """One observed run. All paths are absolute."""

    launch: Launch  # of this process and of all that the command starts
    node: str
    command: tuple[str, ...]
    directory: Path
    listener: Listener
    command_line: str  # as you type it in a shell, without secrets; "" if it must not be stored
    interval: float  # seconds
    scan_interval: float  # seconds
    external_urls: Sequence[str] = ()
    price: float | None = None  # of this node, in dollars per hour
    machines: Sequence[Machine] = ()  # the price list of right-sizing
    lines: bool = True  # whether to sample the lines of Python
    docs_url: str = ""  # of a copy of docs/, for the report
    typed: Sequence[str] = ()  # the whole command, for the report; () if it must not be stored
    stacks: bool = False  # whether its processes write their stacks on request
    steps: int | None = None  # of training, that each rank makes
    status_line: bool = True
    profile_findings: bool = False  # whether a finding asks for profile windows
    windows: str = ""  # the steps to profile, as STEPSCOPE_PROFILE has them; "": those of the environment


@contextmanager
def planned(arguments: Namespace) -> Iterator[Plan]:
    """Yields the plan. Its port and its directory belong to this run until the end. Raises UserError."""
    command = _command(arguments.words)
    machines = _machines(arguments.prices)
    name = _name(arguments.name, os.environ.get("STEPSCOPE_RUN"), command)
    launch = read_launch(os.environ, read_ranks(os.environ), name)
    listener = listen(arguments.listen)
    with listener.socket, recording_directory(arguments.out, launch.run) as directory:
        names = {each.name for each in fields(Plan)} - {"command", "command_line", "typed"}
        flags = {name: value for name, value in vars(arguments).items() if name in names}
        yield Plan(
            launch=launch,
            node=socket.gethostname().partition(".")[0],
            command=command,
            directory=directory,
            listener=listener,
            command_line=shell_command(command) if arguments.command_line else "",
            machines=machines,
            typed=arguments.typed if arguments.command_line else (),
            windows=";".join(arguments.profile),
            **flags,
        )


def _machines(file: Path | None) -> Sequence[Machine]:
    if file is None:
        return ()
    from stepscope.report.price_list import read_price_list  # with numpy: `run` starts fast without

    return read_price_list(file)


def _name(flag: str | None, variable: str | None, command: Sequence[str]) -> str:
    """Returns a name that ledger, recording and exporter all write in the same way."""
    given, what = (flag, "--name") if flag else (variable, "STEPSCOPE_RUN")
    if not given:
        name = "".join(
            character if character.isprintable() else "_" for character in name_of(masked(command))
        )
        return name.encode()[: NAME_BYTES - 1].decode(errors="ignore")
    if not given.isprintable():
        raise UserError(f"{what} {given!r}: must have only printable characters")
    if len(given.encode()) >= NAME_BYTES:
        raise UserError(f"{what}: must be shorter than {NAME_BYTES} bytes, not {len(given.encode())}")
    return given


def name_of(command: Sequence[str]) -> str:
    """Returns a run's name from its command: the script's, the module's, otherwise the program's."""
    for before, word in zip(("", *command), command, strict=False):
        if before == "-m" and Path(command[0]).name.startswith("python"):
            return word
        if word.endswith(".py") and not any(map(str.isspace, word)):  # not `bash -c "... train.py"`
            return Path(word).stem
    return Path(command[0]).name


def _command(words: Sequence[str]) -> tuple[str, ...]:
    command = tuple(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UserError("no command given: put it after --, as in `stepscope run -- python train.py`")
    program = command[0]
    (shown,) = masked([program])
    if program.endswith(".py") and Path(program).is_file() and not _is_program(program):
        fix = shell_command(["stepscope", "run", "--", "python", *command])
        raise UserError(f"{shown} is a Python script and no program: use `{fix}`")
    if shutil.which(program) is None:
        if os.access(program, os.X_OK) and Path(program).is_file():
            raise UserError(f"{shown} is not on PATH: use `./{shown}`")
        if Path(program).is_file():
            raise UserError(f"{shown} cannot be executed: run `chmod +x {shown}`, or its interpreter")
        # A machine has thousands of programs: one of them is always a little like any name.
        hint = did_you_mean(program, _programs(), "check its name, or give its path", likeness=0.8)
        raise UserError(f"command not found: {shown}; {hint}")
    return command


def _is_program(script: str) -> bool:
    """Returns whether the system can execute a script: by its first line, which names an interpreter."""
    path = shutil.which(script)
    if path is None:
        return False
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True  # the system may still execute what this user cannot read


def _programs() -> set[str]:
    """Returns the names of the files in the directories of PATH."""
    names: set[str] = set()
    for directory in os.get_exec_path():
        with suppress(OSError):
            names.update(os.listdir(directory))
    return names


@contextmanager
def recording_directory(given: Path | None, name: str) -> Iterator[Path]:
    """Makes the directory and yields its absolute path. Raises UserError if it cannot be used safely."""
    shown = given or RUNS
    try:
        if given is not None and given.exists() and not given.is_dir():
            raise UserError(f"{given} is not a directory: choose another with --out")
        directory = _new(name) if given is None else _make(given.absolute())
        with tempfile.TemporaryFile(dir=directory):
            pass
        if directory.stat().st_mode & stat.S_IWOTH:  # others could replace what is written by links
            raise UserError(
                f"every user can write to {directory}: use a directory inside, --out {directory}/RUN"
            )
        lock = open_lock(directory)
    except OSError as error:
        raise UserError(
            f"cannot write to {shown}: {error.strerror}; choose another directory with --out"
        ) from error
    try:
        _claim(lock, directory)
        yield directory
    finally:
        os.close(lock)


def _claim(lock: int, directory: Path) -> None:
    with suppress(OSError):  # a file system without locks
        if not try_hold(lock):
            raise UserError(f"another run records in {directory}: choose another directory with --out")
    if holds_recording(directory):
        raise UserError(f"{directory} already has a recording: choose another directory with --out")


def _new(name: str) -> Path:
    """Makes a directory below stepscope-runs. Runs that start in the same second get different ones."""
    is_new = not RUNS.exists()
    _make(RUNS.absolute(), 0o775)
    if is_new:
        with suppress(OSError):
            ignored = os.open(RUNS / IGNORED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(ignored, "w") as file:
                file.write("*\n")
    found = RUNS.lstat()
    planted = stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_IWOTH
    if planted and found.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"{RUNS} was made by user {user_name(found.st_uid)} for every user: choose another with --out"
        )
    if RUNS.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise UserError(f"every user can rename what is in {RUNS}: run `chmod o-w {RUNS}`, or add --out")
    while True:
        directory = new_directory(name)
        try:
            directory.mkdir(0o755)
        except FileExistsError:  # another run was faster
            continue
        return directory


def _make(directory: Path, mode: int = 0o755) -> Path:
    """Makes the directory and its missing parents, never writable by every user, whatever the umask."""
    missing = list(takewhile(lambda path: not path.exists(), [directory, *directory.parents]))
    for path in reversed(missing):
        path.mkdir(mode, exist_ok=True)
    return directory
