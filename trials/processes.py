"""Runs commands, several at a time, until they end, take too long, or are stopped."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ENDING = 15.0  # seconds that it may take to end


class Processes:
    """Runs commands. `stop` ends all of them, and starts no more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # after which a command is ended
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, words: Sequence[str], variables: Mapping[str, str], folder: Path) -> int:
        """Runs a command in a folder, which gets what it prints as `log`. Returns its status."""
        with (folder / "log").open("wb") as output, self._lock:
            if self._stopped:
                return -signal.SIGTERM
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            return process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return end(process)
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """Ends all commands, and starts no more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            end(process)


def end(process: subprocess.Popen[bytes]) -> int:
    """Ends a command with SIGTERM, or otherwise with SIGKILL."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
