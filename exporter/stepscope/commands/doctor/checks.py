"""The checks of one node: each is a function that looks at one thing and changes nothing."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stepscope.commands.hooks import look
from stepscope.common.errors import UserError, describe
from stepscope.common.status import Status
from stepscope.common.users import user_name
from stepscope.exporter.nvidia.nvml import LibraryMissingError, Nvml, NvmlError
from stepscope.exporter.processes.used import read_main_thread
from stepscope.training.layout import FILE_BYTES
from stepscope.training.ledger_files import ledger_directory
from stepscope.training.off import is_off

SHARED = 0o1777  # like /tmp


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, its state, what is so, and the fix; "": there is nothing to fix."""

    name: str
    status: Status
    found: str
    fix: str = ""


class Result(NamedTuple):
    """A check without its name."""

    status: Status
    found: str
    fix: str = ""


works, broken = partial(Result, Status.HEALTHY), partial(Result, Status.FOUND)
unknown = partial(Result, Status.NOT_ENOUGH_DATA)


@dataclass(frozen=True)
class Node:
    """The places to look at; tests name others."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    nvml_library: Path | None = None
    ledgers: Path = Path(ledger_directory())
    python: str = sys.executable


def of_node(node: Node) -> Iterator[Check]:
    """Yields the checks of a node. A check that fails itself is reported, and the others continue."""
    for check in (gpus, processes, cgroups, pressure, ledgers, hooks):
        name = "GPUs" if check is gpus else check.__name__
        try:
            yield Check(name, *check(node))
        except OSError as error:
            yield Check(name, Status.FAILED, describe(error), "run `stepscope doctor` as root")


def gpus(node: Node) -> Result:
    nvml = Nvml(node.nvml_library)
    try:
        nvml.start()
        count, driver = nvml.count(), nvml.driver_version()
        nvml.stop()
    except LibraryMissingError:
        return unknown(
            "NVIDIA's driver has no library here, so GPU rules report not enough data",
            "none without a GPU; in a container, NVIDIA's runtime, NVIDIA_DRIVER_CAPABILITIES=utility",
        )
    except NvmlError as error:
        return broken(
            f"NVML does not answer: {error}",
            "see whether `nvidia-smi` answers; a reboot loads a driver that was updated",
        )
    if not count:
        return broken(
            f"driver {driver} sees no GPU", "give the process or container its devices, /dev/nvidia*"
        )
    return works(f"NVML reads {count} of driver {driver}")


def processes(node: Node) -> Result:
    """Looks at the processes of other users, which /proc may hide (mount option hidepid)."""
    try:
        (node.procfs / "1" / "stat").read_text()
    except OSError:
        return broken(
            "/proc hides processes of other users: what they use of GPUs and cores is not measured",
            "run the exporter as root, or in the group of /proc's mount option gid=",
        )
    if read_main_thread(node.procfs, "self") is None:
        return unknown(
            "this kernel does not count waits for a core, so NoisyNeighbour and pauses are not judged",
            "use a kernel with CONFIG_SCHED_INFO, as those of distributions",
        )
    found = "processes of all users and their waits for cores can be read"
    with suppress(OSError):
        try:
            os.readlink(node.procfs / "1" / "cwd")
        except PermissionError:
            found += "; only root sees on which disks other users' runs work (DiskFilling), and their traffic"
    return works(found)


def cgroups(node: Node) -> Result:
    root = node.sysfs / "fs" / "cgroup"
    unified = root / "cgroup.controllers"
    there = unified.read_text().split() if unified.exists() else [path.name for path in root.glob("*")]
    missing = [name for name in ("cpu", "memory") if name not in there]
    if missing:
        return broken(
            f"no {' and no '.join(missing)} controller in {root}: limits and throttling are not measured",
            "mount the host's /sys/fs/cgroup into the container, or enable these controllers",
        )
    version = 2 if unified.exists() else 1
    return works(f"version {version}: limits, throttling and memory of runs")


def pressure(node: Node) -> Result:
    try:
        (node.procfs / "pressure" / "cpu").read_text()
    except OSError as error:
        return unknown(
            f"the kernel counts no waits of all tasks ({describe(error)})", "start the kernel with psi=1"
        )
    return works("waits for cores, memory and I/O are counted")


def ledgers(node: Node) -> Result:
    directory = node.ledgers
    if is_off():
        return unknown("STEPSCOPE is off: nothing is recorded", "unset STEPSCOPE")
    if not directory.exists():
        if os.access(directory.parent, os.W_OK | os.X_OK):
            return works(f"{directory} will be made by the first training process")
        return broken(
            f"{directory} does not exist, and cannot be made: training continues unrecorded",
            f"mkdir -m 1777 {directory}, or set STEPSCOPE_LEDGER_DIR for training and exporter",
        )
    if not directory.is_dir() or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return broken(
            f"{directory} cannot be read and written by user {user_name(os.geteuid())}",
            f"chmod 1777 {directory}: all users' training processes write there",
        )
    free = shutil.disk_usage(directory).free
    if free < FILE_BYTES:
        return broken(
            f"{directory} has {free / 2**20:.1f} MiB left, and a rank takes {FILE_BYTES / 2**20:.1f}",
            "make room, or enlarge it: in a container --shm-size, on Kubernetes the volume's sizeLimit",
        )
    if directory.stat().st_mode & 0o7777 != SHARED:
        return broken(
            f"{directory} is not shared: other users' runs are not recorded",
            f"chmod 1777 {directory}, unless only one user trains",
        )
    return works(f"{directory} has room for {free // FILE_BYTES} ranks")


def hooks(node: Node) -> Result:
    try:
        python = look(node.python)
    except UserError as error:
        return broken(str(error), "give the interpreter that trains with --python")
    if python.loads:
        return works(f"they load in {python.name}, with STEPSCOPE_INSTRUMENT=1")
    if python.files:
        said = f"they are installed in {python.name}, but do not load"
        return broken(said, f"stepscope hooks install --python {python.path}")
    return unknown(
        f"{python.name} has none: only `stepscope run` sees the steps of an unmodified script",
        f"stepscope hooks install --python {python.path}",
    )
