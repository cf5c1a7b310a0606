"""The process of the command that is observed: how it ended, and who asked it to."""

import sys

from tests.support.processes import ran

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

# `kill` fails as for a command that sudo runs. The command ends once the observer has read the signal.
ANOTHER_USERS = """
import os, signal
from stepscope.commands.run.training_command import TrainingCommand
from stepscope.common.signals import OBSERVER
command = TrainingCommand(["cat"], os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, OBSERVER))
its_input, ours = os.pipe()
os.dup2(its_input, 0)
command.start()
os.kill(os.getpid(), signal.SIGTERM)
def refuse(*_):
    os.close(ours)
    raise PermissionError(1, "Operation not permitted")
os.kill = refuse
print(command.wait(lambda: None, lambda: None), command.ended_by, repr(command.stopped_by))
"""

# As a process begins whose parent ignores how its children end.
CHILDREN_IGNORED = """
import os, signal
from stepscope.commands.run.training_command import TrainingCommand
from stepscope.common.signals import take_signals
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
take_signals("run")
command = TrainingCommand(["false"], os.environ, frozenset())
command.start()
print(command.wait(lambda: None, lambda: None))
"""


def test_who_asked_is_known_although_the_command_ended_before_its_observer_looked() -> None:
    done = ran([sys.executable, "-c", QUICKER])
    assert (done.stdout, done.stderr) == ("0 True True\n", "")


def test_a_signal_that_the_command_of_another_user_does_not_get_changes_nothing_and_is_said() -> None:
    script = [sys.executable, "-c", ANOTHER_USERS]
    done = ran(script)
    assert done.stdout == "0 None ''\n", done.stderr
    assert done.stderr.startswith("stepscope: SIGTERM was not passed on: process ")


def test_the_status_of_the_command_is_known_although_we_were_started_to_ignore_children() -> None:
    script = [sys.executable, "-c", CHILDREN_IGNORED]
    done = ran(script)
    assert (done.stdout, done.stderr) == ("1\n", "")
