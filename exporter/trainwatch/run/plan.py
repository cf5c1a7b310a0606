"""Checks the arguments of `trainwatch run` before anything is started."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.run.terminal import say
from trainwatch.runs.recording.files import holds_recording, new_directory
from trainwatch.web.server import bind, parse_address

DEFAULT_ADDRESS = "127.0.0.1:9870"


@dataclass(frozen=True)
class Plan:
    """One observed run. All paths are absolute; the address was free when it was checked."""

    name: str
    node: str
    command: tuple[str, ...]
    directory: Path
    address: str  # [HOST]:PORT that the exporter listens on
    interval: float  # seconds
    scan_interval: float  # seconds
    price: float | None = None  # of this node, in dollars per hour

    @property
    def reachable(self) -> str:
        """Returns the HOST:PORT at which this machine reaches the exporter."""
        host, _, port = self.address.rpartition(":")
        return f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else self.address.replace("[::]", "[::1]")

    @property
    def command_line(self) -> str:
        """Returns the command as you type it in a shell."""
        return shlex.join(self.command)


def plan_run(arguments: Namespace) -> Plan:
    """Checks the arguments without creating anything. Raises UserError."""
    command = _command(arguments.words)
    name = arguments.name or name_of(command)
    return Plan(
        name=name,
        node=socket.gethostname().partition(".")[0],
        command=command,
        directory=_directory(arguments.out, name),
        address=_address(arguments.listen),
        interval=arguments.interval,
        scan_interval=arguments.scan_interval,
        price=arguments.price,
    )


def name_of(command: Sequence[str]) -> str:
    """Returns a run's name from its command: the script's, the module's, otherwise the program's."""
    for before, word in zip(("", *command), command, strict=False):
        if before == "-m" and Path(command[0]).name.startswith("python"):
            return word
        if word.endswith(".py"):
            return Path(word).stem
    return Path(command[0]).name


def make_directory(directory: Path) -> None:
    """Makes the recording's directory. Raises UserError if it cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write to {directory}: {error.strerror}; choose another directory with --out"
        ) from error


def _command(words: Sequence[str]) -> tuple[str, ...]:
    command = tuple(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UserError("no command given: put it after --, as in `trainwatch run -- python train.py`")
    program = command[0]
    if shutil.which(program) is None:
        if os.sep in program and Path(program).exists():
            raise UserError(f"{program} cannot be executed: run `chmod +x {program}`, or its interpreter")
        raise UserError(f"command not found: {program}; check its name, or give its path")
    return command


def _directory(given: Path | None, name: str) -> Path:
    if given is None:
        return new_directory(name)
    if given.exists() and not given.is_dir():
        raise UserError(f"{given} is not a directory: choose another with --out")
    if given.is_dir() and os.access(given, os.R_OK | os.X_OK) and holds_recording(given):
        raise UserError(f"{given} already has a recording: choose another directory with --out")
    return given.absolute()


def _address(given: str | None) -> str:
    """Returns the address to serve on: the given address, the default, or a free port if that is taken."""
    if given is not None:
        try:
            return _free(given)
        except UserError as error:
            raise UserError(str(error).replace("--web.listen-address", "--listen")) from None
    try:
        return _free(DEFAULT_ADDRESS)
    except UserError:
        host, _, port = DEFAULT_ADDRESS.rpartition(":")
        address = _free(f"{host}:0")
        say(f"port {port} is taken; serving on {address} instead")
        return address


def _free(address: str) -> str:
    """Returns the address, with the system's choice for port 0. Raises UserError if it is taken."""
    with bind(parse_address(address)) as listening:
        port = listening.getsockname()[1]
    return f"{address.rpartition(':')[0]}:{port}"
