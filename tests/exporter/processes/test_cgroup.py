"""The cgroups of a process: real ones where the machine has them, and trees of files like the kernel's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.processes.cgroup import (
    Cgroup,
    Hierarchies,
    Memory,
    Throttling,
    allowed_cores,
    cpu_limit,
    memory,
    oom_kills,
    throttling,
    waiting_seconds,
)

from tests.support.waiting import wait_until

ROOT = Path("/sys/fs/cgroup")
BUSY = "while True: pass"
PID = 7


class Node:
    """A procfs and a cgroup file system of files."""

    def __init__(self, directory: Path) -> None:
        self.procfs, self.root = directory / "proc", directory / "cgroup"
        self.root.mkdir()

    def process(self, cgroup: str) -> None:
        self.write(self.procfs / str(PID) / "cgroup", cgroup)

    def mounted(self, root: str, mount: str = "") -> None:
        """Says which part of the hierarchy is mounted."""
        point = str(self.root / mount).replace(" ", "\\040")
        self.write(self.procfs / "self" / "mountinfo", f"31 23 0:28 {root} {point} rw - cgroup2 cgroup rw\n")

    def v2(self, group: str, **files: str) -> None:
        self.write(self.root / "cgroup.controllers", "cpuset cpu io memory\n")
        self.write(self.root / group / "cgroup.events", "populated 1\n")
        for name, text in files.items():
            self.write(self.root / group / name.replace("__", "."), text + "\n")

    def v1(self, controller: str, group: str, **files: str) -> None:
        self.write(self.root / controller / "release_agent", "")
        self.write(self.root / controller / group / "notify_on_release", "0\n")
        for name, text in files.items():
            self.write(self.root / controller / group / name.replace("__", "."), text + "\n")

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def of(node: Node) -> Cgroup:
    return Hierarchies(node.procfs, node.root).of(PID)


def test_version_2_has_the_limit_its_throttling_memory_and_pressure_in_one_directory(node: Node) -> None:
    node.process("0::/pod/main\n")
    node.v2(
        "pod/main",
        cpu__max="400000 100000",
        cpu__stat="usage_usec 5\nnr_periods 100\nnr_throttled 25\nthrottled_usec 2500000",
        cpuset__cpus__effective="0-3,8",
        memory__max="1000",
        memory__current="900",
        memory__stat="anon 500\ninactive_file 300",
        memory__events="oom 2\noom_kill 1",
        cpu__pressure="some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=1",
    )
    groups = of(node)
    limit = cpu_limit(groups.cpu)
    assert limit.cores == 4
    assert limit.group is not None
    assert throttling(limit.group) == Throttling(100, 25, 2.5)
    assert allowed_cores(groups.cpuset) == frozenset({0, 1, 2, 3, 8})
    assert memory(groups.memory) == Memory(600, 1000, node.root / "pod" / "main")
    assert oom_kills(groups.memory) == 1
    assert waiting_seconds(groups.pressure) == {"cpu": 1.5}


def test_version_1_has_them_in_the_directories_of_its_controllers(node: Node) -> None:
    node.process("4:memory:/job\n3:cpuset:/job\n1:cpu,cpuacct:/job\n")
    node.v1(
        "cpu",
        "job",
        cpu__cfs_quota_us="250000",
        cpu__cfs_period_us="100000",
        cpu__stat="nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000",
    )
    node.v1("cpuset", "job", cpuset__effective_cpus="2-3")
    node.v1(
        "memory",
        "job",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="400",
        memory__stat="inactive_file 5\ntotal_inactive_file 100",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3",
    )
    groups = of(node)
    limit = cpu_limit(groups.cpu)
    assert limit.cores == 2.5
    assert limit.group is not None
    assert throttling(limit.group) == Throttling(10, 4, 1.5)
    assert allowed_cores(groups.cpuset) == frozenset({2, 3})
    assert memory(groups.memory)[:2] == (300, 1000)
    assert oom_kills(groups.memory) == 3
    assert waiting_seconds(groups.pressure) == {}


def test_a_hybrid_has_the_limit_in_version_1_and_the_pressure_in_version_2(node: Node) -> None:
    node.process("1:cpu:/job\n0::/job.slice\n")
    node.v1("cpu", "job", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    Node.write(node.root / "unified" / "job.slice" / "cgroup.events", "populated 1\n")
    Node.write(node.root / "unified" / "job.slice" / "io.pressure", "some avg10=0.00 total=2000000\n")
    groups = of(node)
    assert cpu_limit(groups.cpu).cores == 0.5
    assert waiting_seconds(groups.pressure) == {"io": 2.0}


@pytest.mark.parametrize(
    ("mounted", "path", "group"),
    [
        pytest.param("/odd\x1cpod", "/odd\x1cpod/a\x0cb", "a\x0cb", id="with odd names"),
        pytest.param("/", "/", "", id="in a container, whose own group is the root that it sees"),
        pytest.param("/docker/ab", "/docker/ab/worker", "worker", id="in a container without a namespace"),
    ],
)
def test_a_group_has_its_limit(node: Node, mounted: str, path: str, group: str) -> None:
    node.mounted(mounted)
    node.process(f"0::{path}\n")
    node.v2(group, cpu__max="400000 100000")
    assert cpu_limit(of(node).cpu).cores == 4


def test_a_group_that_has_just_freed_its_cache_uses_no_memory_and_not_less(node: Node) -> None:
    node.process("0::/pod\n")
    node.v2("pod", memory__max="1000", memory__current="200", memory__stat="anon 100\ninactive_file 300")
    assert memory(of(node).memory).used_bytes == 0


def test_the_smallest_limit_up_the_hierarchy_counts(node: Node) -> None:
    node.process("0::/slice/pod/main\n")
    node.v2("slice", cpu__max="800000 100000", memory__max="500", memory__current="450")
    node.v2("slice/pod", cpu__max="200000 100000", memory__max="max", memory__current="420")
    node.v2("slice/pod/main", cpu__max="max 100000", memory__max="600", memory__current="400")
    groups = of(node)
    assert cpu_limit(groups.cpu) == (2, node.root / "slice" / "pod")
    assert memory(groups.memory) == Memory(450, 500, node.root / "slice")


def test_of_equal_limits_the_nearest_to_the_process_counts(node: Node) -> None:
    node.process("0::/pod/main\n")
    for group in ("pod", "pod/main"):
        node.v2(group, cpu__max="200000 100000")
    assert cpu_limit(of(node).cpu).group == node.root / "pod" / "main"


def test_no_limit_and_missing_files_are_unknown_not_zero(node: Node) -> None:
    node.process("0::/pod\n")
    node.v2("pod", cpu__max="max 100000", memory__max="max", memory__current="77")
    groups = of(node)
    assert isnan(cpu_limit(groups.cpu).cores)
    assert all(map(isnan, throttling(node.root / "pod")))
    assert memory(groups.memory).used_bytes == 77
    assert isnan(memory(groups.memory).limit_bytes)
    assert isnan(oom_kills(groups.memory))
    assert allowed_cores(groups.cpuset) is None


def test_version_1_without_limits_writes_minus_one_and_nearly_2_to_the_63(node: Node) -> None:
    node.process("4:memory:/job\n1:cpu:/job\n")
    node.v1("cpu", "job", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    node.v1("memory", "job", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    groups = of(node)
    assert isnan(cpu_limit(groups.cpu).cores)
    assert isnan(memory(groups.memory).limit_bytes)


def test_the_root_of_the_machine_is_no_group_of_a_run(node: Node) -> None:
    node.process("4:memory:/\n0::/\n")
    node.v1("memory", "", memory__limit_in_bytes="1000", memory__usage_in_bytes="900")
    Node.write(node.root / "unified" / "cpu.pressure", "some avg10=0.00 total=2000000\n")
    groups = of(node)
    assert isnan(memory(groups.memory).limit_bytes)
    assert waiting_seconds(groups.pressure) == {}


@pytest.mark.parametrize(
    ("mounted", "path", "groups"),
    [
        pytest.param("/", "/../cd", [""], id="a neighbouring container, out of sight of a container"),
        pytest.param("/../../..", "/../../pod-b", ["kubepods/pod-b", "other/pod-b"], id="two pods fit"),
    ],
)
def test_a_group_that_is_not_known_has_no_limit(
    node: Node, mounted: str, path: str, groups: list[str]
) -> None:
    node.mounted(mounted)
    node.process(f"0::{path}\n")
    for group in groups:
        node.v2(group, cpu__max="400000 100000")
    assert of(node).cpu == ()


def test_a_container_with_the_host_s_hierarchy_finds_a_neighbouring_pod(node: Node) -> None:
    node.process("0::/../../pod-b/main\n")  # this process is in /kubepods/burstable/pod-a/exporter
    node.mounted("/../../../..")
    node.v2("kubepods/burstable/pod-a/exporter", cpu__max="10000 100000")
    node.v2("kubepods/burstable/pod-b/main", cpu__max="400000 100000")
    node.v2("kubepods/burstable", cpu__max="max 100000")
    assert cpu_limit(of(node).cpu) == (4, node.root / "kubepods" / "burstable" / "pod-b" / "main")


def test_a_process_that_has_ended_raises_oserror(node: Node) -> None:
    with pytest.raises(FileNotFoundError):
        of(node)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process
    process.kill()
    process.wait()


def test_a_busy_loop_is_really_throttled(busy: subprocess.Popen[bytes]) -> None:
    quota, version_2 = 20_000, (ROOT / "cgroup.controllers").exists()
    group = (ROOT if version_2 else ROOT / "cpu") / f"stepscope-test-{os.getpid()}"
    try:
        group.mkdir()
        if version_2:
            (group / "cpu.max").write_text(f"{quota} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cgroup.procs").write_text(str(busy.pid))
    except OSError as error:
        pytest.skip(f"this user may not make a cgroup with a CPU limit: {error}")
    try:
        limit = cpu_limit(Hierarchies(Path("/proc"), ROOT).of(busy.pid).cpu)
        assert limit == (quota / 100_000, group)
        wait_until(lambda: throttling(group).throttled_periods >= 3)
        stopped = throttling(group)
        assert stopped.periods >= stopped.throttled_periods
        assert stopped.throttled_seconds > 0
    finally:
        busy.send_signal(signal.SIGKILL)
        busy.wait()
        group.rmdir()
