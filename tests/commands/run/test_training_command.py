"""The process of the command that is observed: how it ended, and who asked it to."""

import subprocess
import sys

from tests.support.waiting import SECONDS

QUICKER = """
import os, signal
from pathlib import Path
from stepscope.commands.run.training_command import TrainingCommand
from stepscope.common.signals import OBSERVER
command = TrainingCommand(["true"], os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, OBSERVER))
command.start()
os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
os.kill(os.getpid(), signal.SIGINT)
status = command.wait(lambda: None, lambda: None)
own = Path("/proc/self/comm").read_text().strip()
print(status, command.ended_by == signal.SIGINT, command.stopped_by == own)
"""


def test_who_asked_is_known_although_the_command_ended_before_its_observer_looked() -> None:
    done = subprocess.run([sys.executable, "-c", QUICKER], capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("0 True True\n", "")
