"""Starts a process in milliseconds: forks it from one that has already imported what it needs.

`python -m trials.forks MODULE` imports the module, then forks a child per line of stdin, which calls the
module's `forked` with the values of that line.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests.support.environment import unobserved


class Forks:
    """The process that forks. The context's end closes its stdin, which ends it and all its children."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> "Forks":
        inherited = unobserved()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trials.forks", self._module],
            cwd=Path(__file__).parents[1],
            env=inherited,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def start(self, *values: object) -> int:
        """Forks a child that calls `forked(*values)`. Returns its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(values), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def end(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a forked process and waits until it is gone, with its locks."""
    os.kill(pid, number)
    while is_alive(pid):
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Returns whether the forked process is still there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _main(name: str) -> None:
    module = import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _call(module.forked, json.loads(line))
        print(pid, flush=True)
    os.killpg(0, signal.SIGKILL)


def _call(forked: object, values: list[object]) -> None:
    """Calls `forked` in the child, and ends the child."""
    assert callable(forked)
    try:
        forked(*values)
    except BaseException:  # noqa: BLE001 - the child must not return into the loop that forks
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
