"""Processes of other users that see only what a systemd unit or a pod would let them see."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.support.compose import REPOSITORY
from tests.support.exporter_process import ANY_PORT, ExporterProcess
from tests.support.processes import ran
from tests.support.waiting import SECONDS

_DEVICES_OF_A_CONTAINER = ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
UNDER_FILTER = Path(__file__).with_name("under_filter.py")


@cache
def missing_for_sandboxes() -> str:
    """Returns why there are no sandboxes here, or nothing."""
    if os.geteuid() != 0:
        return "only root can become other users"
    for program in ("bwrap", "setpriv"):
        if shutil.which(program) is None:
            return f"needs {program}"
    tried = ran(["bwrap", "--ro-bind", "/", "/", "true"])
    return tried.stderr.strip()


needs_sandboxes = pytest.mark.skipif(bool(missing_for_sandboxes()), reason=missing_for_sandboxes())


@dataclass(frozen=True)
class Sandbox:
    """What a process may do. The whole file system is read-only but for `writable`.

    `mounted` maps a path to the path that the process sees there, `hidden` directories are empty.
    """

    uid: int
    umask: int = 0o022
    capabilities: Sequence[str] = ()
    mounted: Mapping[str, Path] = field(default_factory=dict)
    read_only: Sequence[str] = ()  # of `mounted`
    hidden: Sequence[str] = ()
    devices: bool = True
    filter: Mapping[str, object] = field(default_factory=dict)  # of system calls: see under_filter.py

    def words(self) -> list[str]:
        """Returns what to put before a command."""
        bwrap = ["bwrap", *_root()]
        bwrap += ["--dev-bind", "/dev", "/dev"] if self.devices else _DEVICES_OF_A_CONTAINER
        hidden = {*self.hidden, *_closed_to_others(), *self._parents_of_mount_points()}
        for path in sorted(hidden):
            bwrap += ["--tmpfs", path]
        for path in (*_needed(), *self.mounted):
            for parent in reversed(Path(path).parents):
                if hidden & {str(above) for above in parent.parents} or not parent.exists():
                    bwrap += ["--perms", "0755", "--dir", str(parent)]
        for path in _needed():
            bwrap += ["--ro-bind", path, path]
        for path, source in self.mounted.items():
            bwrap += ["--ro-bind" if path in self.read_only else "--bind", str(source), path]
        bwrap += ["--remount-ro", "/"]
        keep = ",".join(["-all", *(f"+{name}" for name in self.capabilities)])
        setpriv = [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.uid}",
            "--clear-groups",
            "--no-new-privs",
        ]
        setpriv += [f"--inh-caps={keep}", f"--ambient-caps={keep}", f"--bounding-set={keep}"]
        facts = json.dumps({"umask": self.umask, **self.filter})
        return [*bwrap, *setpriv, sys.executable, str(UNDER_FILTER), facts]

    def _parents_of_mount_points(self) -> list[str]:
        """Returns directories in which this machine lacks a mount point, so that one can be made."""
        lacking = [Path(path).parent for path in self.mounted if not os.path.exists(path)]
        return [str(parent) for parent in lacking if parent.is_dir() and parent != Path("/")]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return ran([*self.words(), *command])


def _root() -> list[str]:
    """Returns mounts of all of this machine, read-only, at a root in which mount points can be made."""
    mounts = ["--tmpfs", "/"]
    for entry in os.scandir("/"):
        if entry.is_symlink():
            mounts += ["--symlink", os.readlink(entry), entry.path]
        elif entry.is_dir():
            mounts += ["--ro-bind", entry.path, entry.path]
    return mounts


def _needed() -> list[str]:
    return [sys.base_prefix, sys.prefix, str(REPOSITORY)]


def _closed_to_others() -> list[str]:
    """Returns directories above Python and this repository that other users cannot enter."""
    ancestors = {ancestor for path in _needed() for ancestor in Path(path).parents}
    return sorted(str(one) for one in ancestors if not one.stat().st_mode & stat.S_IXOTH)


class SandboxedExporter(ExporterProcess):
    """An exporter in a sandbox: signals go to it and not to bwrap, its parent."""

    def __init__(
        self,
        sandbox: Sandbox,
        *flags: object,
        environment: Mapping[str, str] | None = None,
        listen: str = ANY_PORT,
    ) -> None:
        super().__init__(*flags, environment=environment, listen=listen)
        self.command = [*sandbox.words(), *self.command]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        (exporter,) = psutil.Process(self.process.pid).children()
        exporter.send_signal(number)
        return self.process.wait(SECONDS)
