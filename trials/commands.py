"""`stepscope COMMAND` as a process that starts in milliseconds: numpy and pyarrow are imported already."""

import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import stepscope.commands.exporter
import stepscope.commands.report
import stepscope.runs.recording.writer  # noqa: F401 - imported once here, and not in every process
from stepscope.commands.cli import main
from stepscope.rules import all_rules

from trials.forks import Forks, end, is_alive

all_rules()  # imports their modules, once here as well

SECONDS = 60.0  # how long anything may take before it counts as never happening


@dataclass(frozen=True)
class Command:
    """A running command. What it prints is in `log`."""

    pid: int
    log: Path

    def kill(self) -> None:
        """Kills it with SIGKILL and waits until it is gone."""
        end(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends it with SIGTERM, and waits."""
        end(self.pid, signal.SIGTERM)

    def is_alive(self) -> bool:
        """Returns whether it runs."""
        return is_alive(self.pid)

    def status(self) -> int | None:
        """Waits for its end. Returns its exit status, or None if a signal ended it."""
        deadline = time.monotonic() + SECONDS
        while self.is_alive():
            assert time.monotonic() < deadline, f"it does not end; it printed: {self.log.read_text()[-500:]}"
            time.sleep(0.002)
        status = _status_file(self.log)
        return int(status.read_text()) if status.exists() else None


class Commands(Forks):
    """Starts commands. What they print is in files in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(__name__)
        self._folder = folder
        self._number = 0

    def __enter__(self) -> "Commands":
        super().__enter__()
        return self

    def run(self, *words: str, open_files: int = 0) -> Command:
        """Starts `stepscope WORDS`, under a limit of open files if there is one."""
        self._number += 1
        log = self._folder / f"log-{self._number}"
        return Command(self.start(words, str(log), open_files), log)


def forked(words: list[str], log: str, open_files: int) -> None:
    """Runs the command, with its exit status."""
    if open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (sys.stdout, sys.stderr):
        os.dup2(descriptor, standard.fileno())
    status = main(words)
    sys.stdout.flush()
    _status_file(Path(log)).write_text(str(status))
    os._exit(status)


def _status_file(log: Path) -> Path:
    return log.with_suffix(".status")
