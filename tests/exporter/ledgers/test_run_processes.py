"""The processes of runs: here of a command that holds no ledger."""

import os
import signal
import subprocess
import sys

from stepscope.exporter.ledgers.run_processes import Command, RunProcesses


def test_a_command_without_ledgers_is_a_run_with_all_that_it_has_started() -> None:
    """As of `stepscope run -- sh -c "sleep 28"`: here this test takes the place of `stepscope run`."""
    started = "print(subprocess.Popen(['sleep', '28']).pid, flush=True)"
    script = f"import subprocess, sys; {started}; sys.stdin.read()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sleep = int(process.stdout.readline())
        runs = RunProcesses(command=Command("sh-12345678", os.getpid())).of([], {})
        others = RunProcesses(command=Command("sh-12345678", 1 << 22)).of([], {})
        os.kill(sleep, signal.SIGKILL)
        process.communicate()
    assert {process.pid, sleep} <= runs["sh-12345678"].pids
    assert os.getpid() not in runs["sh-12345678"].pids
    assert others == {}
