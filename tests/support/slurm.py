"""A real Slurm with two nodes on this machine, whose prolog and epilog are those of deploy/slurm."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.compose import REPOSITORY
from tests.support.ports import held_port
from tests.support.processes import ran
from tests.support.waiting import SECONDS

SCRIPTS = REPOSITORY / "deploy" / "slurm"
NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "sinfo", "squeue")
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(name) is None for name in PROGRAMS),
    reason="needs Debian's slurmctld, slurmd and slurm-client, and root",
)

# Without munge: every user of this machine is believed, so it listens only while the tests run.
CONFIG = """\
ClusterName=stepscope
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
PrologFlags=Alloc
Prolog={folder}/prolog.sh
TaskProlog={folder}/task-prolog.sh
Epilog={folder}/epilog.sh
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def script(name: str, folder: Path) -> Path:
    """Returns a copy of a script of deploy/slurm that keeps ledgers and runs in a folder."""
    text = (SCRIPTS / name).read_text()
    for variable in ("LEDGERS", "RUNS"):
        text = re.sub(rf"(?m)^{variable}=\S+", f"{variable}={folder / variable.lower()}", text)
    copy = folder / name
    copy.write_text(text)
    copy.chmod(0o755)
    return copy


class Slurm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers = folder / "ledgers"
        self.runs = folder / "runs"
        programs = folder / "bin"
        programs.mkdir()
        for name, command in (
            ("python", ""),
            ("stepscope", "-m stepscope"),
            ("torchrun", "-m torch.distributed.run"),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            (programs / name).chmod(0o755)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("STEPSCOPE", "SLURM"))
        }
        self.environment = kept | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY / "exporter"),
            "STEPSCOPE_LEDGER_DIR": str(self.ledgers),
            "MASTER_ADDR": "127.0.0.1",  # nobody knows the names of these nodes
        }

    def submit(self, *words: str, **environment: str) -> str:
        """Submits a job in the folder, and waits for its end and for the epilogs; returns its id."""
        job = self._asked("sbatch", "--parsable", "--output=output", *words, **environment)
        state = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        self.wait_until(
            lambda: self._asked(*state) not in ("PENDING", "RUNNING", "COMPLETING") and self.idle()
        )
        assert self._asked(*state) == "COMPLETED", (self.folder / "output").read_text()
        return job

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not true():
            logs = (path.read_text() for path in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, "".join(logs)
            time.sleep(0.2)

    def idle(self) -> bool:
        return self._asked("sinfo", "--noheader", "--Node", "--format=%t").split() == ["idle"] * len(NODES)

    def _asked(self, *words: str, **environment: str) -> str:
        told = ran(words, cwd=self.folder, env=self.environment | environment)
        return told.stdout.strip()


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A Slurm whose nodes are ready."""
    with ExitStack() as running:
        ports = [running.enter_context(held_port()) for _ in range(3)]
        host = socket.gethostname().partition(".")[0]
        config = CONFIG.format(host=host, ports=ports, folder=folder, cores=os.cpu_count())
        (folder / "slurm.conf").write_text(config)
        for name in ("prolog.sh", "task-prolog.sh", "epilog.sh"):
            script(name, folder)
        cluster = Slurm(folder)
        for daemon in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in NODES)):
            log = running.enter_context((folder / f"{daemon[-1]}.log").open("w"))
            started = subprocess.Popen(daemon, env=cluster.environment, stdout=log, stderr=log)
            running.callback(started.wait)
            running.callback(started.terminate)
        cluster.wait_until(cluster.idle)
        yield cluster
