"""Runs `stepscope run` for real, as a child of the test."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.ranks import launcher
from tests.support.waiting import SECONDS, wait_until

RUN = [sys.executable, "-m", "stepscope", "run"]
TWO_RANKS = launcher(2)


def two_ranks(script: Path, recording: Path, *flags: str) -> str:
    """Runs a script of PyTorch as two ranks under `stepscope run`, and returns what was written on stderr."""
    ended = ran(
        [*RUN, "--listen", "127.0.0.1:0", "--out", str(recording), *flags, "--", *TWO_RANKS, str(script)],
        env=environment_of_ranks(),
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def environment_of_ranks() -> dict[str, str]:
    """Returns this environment without what is set for Stepscope, for ranks with one thread each."""
    return {**unobserved(), "OMP_NUM_THREADS": "1"}


class Observed:
    """A running `stepscope run FLAGS -- python -c SCRIPT` that samples each 100 ms."""

    def __init__(self, directory: Path, script: str, *flags: str, **environment: str) -> None:
        self.directory = directory
        self.errors = directory.parent / f"{directory.name}.stderr"
        self.output = directory.parent / f"{directory.name}.stdout"
        command = [*RUN, "--interval", "100ms", "--listen", "127.0.0.1:0", "--out", str(directory), *flags]
        with open(self.errors, "wb") as errors, open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*command, "--", sys.executable, "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=directory.parent,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> "Observed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves no process behind, whatever the test came to."""
        family = [*self.exporters(), *self._children()]
        self.process.kill()
        for process in family:
            process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        return self.errors.read_text()

    @property
    def printed(self) -> str:
        return self.output.read_text()

    @property
    def address(self) -> str:
        """HOST:PORT of its exporter, once it has said so."""
        wait_until(lambda: "/report (live)" in self.said, "the start")
        found = re.search(r"http://(\S+)/report", self.said)
        assert found is not None
        return found[1]

    def until_printed(self, text: str) -> None:
        wait_until(lambda: text in self.printed, f"{text!r} on stdout")

    def until_said(self, text: str) -> None:
        wait_until(lambda: text in self.said, f"{text!r} on stderr")

    def until_samples(self, count: int = 1) -> None:
        """Waits until the recording holds that many samples."""
        wait_until(lambda: self._recorded() >= count, f"{count} recorded samples")

    def exporters(self) -> list[psutil.Process]:
        """Its exporter processes, also when their parent is gone."""
        mark = f"--recording.dir={self.directory}"
        return [process for process in psutil.process_iter() if _is_alive_with(process, mark)]

    def exporter(self) -> psutil.Process:
        wait_until(lambda: len(self.exporters()) == 1, "an exporter")
        return self.exporters()[0]

    def training(self) -> psutil.Process:
        """The command's process."""
        found: list[psutil.Process] = []

        def look() -> bool:
            for child in self._children():
                with suppress(psutil.Error):  # it has just ended
                    if "exit-with-parent" not in str(child.cmdline()):
                        found.append(child)
            return bool(found)

        wait_until(look, "the command")
        return found[0]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(SECONDS)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def _recorded(self) -> int:
        from tests.support.recording import Seen

        if not list(self.directory.glob("*/samples-*")):
            return 0
        return len(Seen(self.directory).read().ticks())


def _is_alive_with(process: psutil.Process, argument: str) -> bool:
    try:
        return argument in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
