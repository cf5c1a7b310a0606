"""The CPU, memory and limits of runs: of real processes, and of a host made of files."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path

import pytest
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.collectors.run_processes import RETENTION_SECONDS, TICKS, RunProcessesCollector
from stepscope.exporter.sampling.sample import RunSample, Sample

from tests.support.descriptors import no_descriptors

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
BUSY = """
import os
if {user}: os.setuid({user})
os.sched_setaffinity(0, {{{core}}})
print(flush=True)
while True: pass
"""
HOLDS = """
import mmap, tempfile
own = bytearray({mebibytes} << 20)
with tempfile.TemporaryFile() as file:
    file.truncate({mebibytes} << 20)
    mapped = mmap.mmap(file.fileno(), 0)
    mapped[:] = bytes({mebibytes} << 20)
print(flush=True)
input()
"""
FORKS = """
import os
for _ in range(3):
    if not os.fork():
        for _ in range(10**7): pass
        os._exit(0)
    os.wait()
print(flush=True)
input()
"""


def families(collector: RunProcessesCollector) -> dict[str, dict[tuple[str, ...], float]]:
    return {family.name.removeprefix("stepscope_run_"): dict(family.samples) for family in collector.families}


class Host:
    """A host of files, on which the processes of a run use the cores."""

    def __init__(self, directory: Path) -> None:
        self.procfs, self.cgroups = directory / "proc", directory / "cgroup"
        self.collector = RunProcessesCollector(self.procfs, self.cgroups)
        self.now = 1000.0
        self.runs = {"run": frozenset({10})}

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self,
        pid: int,
        cpu: float = 0.0,
        cores: str = "0-1",
        core: int = 0,
        waited: float = 0.0,
        memory: str = "",
    ) -> None:
        ticks = round(cpu * TICKS)
        fields = ["S", "1", *"0" * 7, "3", "2", str(ticks), *"0" * 7, "5", *"0" * 16, str(core), *"0" * 13]
        self.write(self.procfs / str(pid) / "stat", f"{pid} (a) b) {' '.join(fields)}")
        self.write(self.procfs / str(pid) / "status", f"Name:\tx\n{memory}Cpus_allowed_list:\t{cores}\n")
        self.write(self.procfs / str(pid) / "cgroup", "0::/pod\n")
        self.write(self.procfs / str(pid) / "schedstat", f"{round(cpu * 1e9)} {round(waited * 1e9)} 7\n")

    def disks(self, pid: int, read: int, written: int, cancelled: int = 0) -> None:
        lines = f"read_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: {cancelled}\n"
        self.write(self.procfs / str(pid) / "io", lines)

    def cgroup(self, **files: str) -> None:
        self.write(self.cgroups / "cgroup.controllers", "cpu memory")
        self.write(self.cgroups / "pod" / "cgroup.events", "populated 1")
        for name, text in files.items():
            self.write(self.cgroups / "pod" / name.replace("__", "."), text)

    def ticks(self, seconds: float, *busy: float, memory: float = nan) -> Sample:
        """Lets time pass with the cores this busy on a node with so much memory; returns the last sample."""
        sample = Sample(0.0)
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            cpus = tuple(map(str, range(len(busy))))
            sample = Sample(self.now, cpus=cpus, cpu_utilization_ratio=list(busy), memory_total_bytes=memory)
            sample.runs = {label: RunSample(pids=pids) for label, pids in self.runs.items()}
            self.collector.collect(sample)
        return sample

    def published(self, name: str) -> dict[tuple[str, ...], float]:
        return families(self.collector)[name]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_run_may_use_the_cores_of_any_of_its_processes(host: Host) -> None:
    host.runs = {"run": frozenset({10, 11}), "other": frozenset({12})}
    for pid, cores in ((10, "0-1"), (11, "3"), (12, "2")):
        host.process(pid, cores=cores)
    sample = host.ticks(0.5, 0, 0, 0, 0)
    assert sample.runs["run"].host.cpus == ("0", "1", "3")
    assert host.published("cpus") == {("run",): 3, ("other",): 1}
    assert host.published("cpu_info") == {("run", "0-1,3"): 1, ("other", "2"): 1}


def test_a_cpuset_cuts_the_cores_and_a_limit_the_use_of_them(host: Host) -> None:
    host.cgroup(cpuset__cpus__effective="1-3", cpu__max="150000 100000")
    host.process(10, cores="0-7")
    host_use = host.ticks(0.5, *[0.0] * 8).runs["run"].host
    assert host_use.cpus == ("1", "2", "3")
    assert host_use.cpu_limit_cores == host_use.allowed_cores == 1.5
    assert host.published("cpu_limit_cores") == {("run",): 1.5}


def test_cores_that_the_node_lacks_are_not_the_run_s(host: Host) -> None:
    host.process(10, cores="0-127")  # of a virtual machine that could get as many
    host.ticks(0.5, 0, 0)
    host_use = host.ticks(20, 1.0, 1.0).runs["run"].host
    assert (host_use.cpus, host_use.allowed_cores) == (("0", "1"), 2)
    assert host_use.other_cpu_seconds > 0


def test_cores_with_other_numbers_in_a_container_are_the_run_s(host: Host) -> None:
    host.process(10, cores="1-2")
    assert host.ticks(0.5, 0, 0).runs["run"].host.cpus == ("1", "2")


def test_the_rest_of_what_the_run_s_cores_did_was_for_others(host: Host) -> None:
    host.process(10, cpu=1.0)
    host.ticks(0.5, 0, 0, 1.0)
    host.process(10, cpu=2.0)
    host.ticks(10, 0.75, 0.25, 1.0)  # core 2 is not the run's
    assert host.published("cpu_seconds_total") == {("run",): 2.0}
    assert host.published("other_cpu_seconds_total") == {("run",): pytest.approx(9.0, abs=0.6)}


def test_a_short_run_is_known_although_a_look_at_its_processes_costs_much(host: Host) -> None:
    now = 0.0

    def a_second_later() -> float:  # each look costs a second: one in 1000 s
        nonlocal now
        now += 1.0
        return now

    host.collector = RunProcessesCollector(host.procfs, host.cgroups, a_second_later)
    counted = []
    for second in range(1, 31):
        host.process(10, cpu=float(second))
        host.ticks(1, 1.0, 0.0)
        counted.append(host.published("cpu_seconds_total")[("run",)])
    assert all(seconds > 0.6 * second for second, seconds in enumerate(counted, 1) if second > 3), counted
    assert len(set(counted)) < 10


def test_what_was_used_while_no_sample_was_taken_is_not_counted(host: Host) -> None:
    host.process(10)
    host.ticks(4.5, 1.0, 0.0)
    before = host.published("other_cpu_seconds_total")
    host.now += 3600
    host.ticks(0.5, 1.0, 1.0)
    assert host.published("other_cpu_seconds_total") == before


def test_the_counters_of_its_cgroup_begin_when_the_run_is_first_seen(host: Host) -> None:
    host.process(10)
    stat = "nr_periods {}\nnr_throttled {}\nthrottled_usec {}"
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    host.cgroup(
        cpu__max="100000 100000",
        cpu__stat=stat.format(100, 50, 1_000_000),
        memory__events="oom_kill 2",
        cpu__pressure=pressure.format(5_000_000),
    )
    host.ticks(0.5, 0, 0)
    host.cgroup(
        cpu__stat=stat.format(140, 60, 3_000_000),
        memory__events="oom_kill 3",
        cpu__pressure=pressure.format(6_500_000),
    )
    host.ticks(20, 0, 0)
    assert host.published("cpu_periods_total") == {("run",): 40}
    assert host.published("cpu_throttled_periods_total") == {("run",): 10}
    assert host.published("cpu_throttled_seconds_total") == {("run",): 2.0}
    assert host.published("oom_kills_total") == {("run",): 1}
    assert host.published("pressure_waiting_seconds_total") == {("run", "cpu"): 1.5}
    assert host.published("major_page_faults_total") == {("run",): 5}  # 2 of children that ended


@pytest.mark.parametrize(("throttled_usec", "waited"), [(0, 3.0), (2_000_000, 1.0), (9_000_000, 0.0)])
def test_time_for_which_the_limit_stopped_the_run_is_no_wait_for_others(
    host: Host, throttled_usec: int, waited: float
) -> None:
    host.cgroup(cpu__max="100000 100000", cpu__stat="throttled_usec 0")
    host.process(10, waited=5.0)
    host.ticks(0.5, 0, 0)
    host.cgroup(cpu__stat=f"throttled_usec {throttled_usec}")
    host.process(10, waited=8.0)
    host.ticks(20, 0, 0)
    assert host.published("main_threads_waited_seconds_total") == {("run",): pytest.approx(waited)}


def test_without_limits_and_cgroups_their_metrics_are_absent(host: Host) -> None:
    host.process(10)
    (host.procfs / "10" / "cgroup").write_text("")
    host_use = host.ticks(20, 0, 0).runs["run"].host
    absent = ("cpu_limit_cores", "cpu_periods_total", "cpu_throttled_seconds_total", "memory_limit_bytes")
    assert not any(host.published(name) for name in absent)
    assert host.published("memory_bytes") == host.published("oom_kills_total") == {}
    assert host_use.allowed_cores == 2


def test_a_kernel_that_counts_no_waits_for_a_core_knows_of_none(host: Host) -> None:
    host.process(10)
    host.write(host.procfs / "10" / "schedstat", "0 0 0\n")
    host.ticks(10, 1.0, 1.0)
    assert host.published("cpu_seconds_total")
    assert not host.published("main_threads_ran_seconds_total")
    assert not host.published("main_threads_waited_seconds_total")


def test_memory_that_is_no_files_is_summed_with_what_is_swapped_out(host: Host) -> None:
    host.runs = {"run": frozenset({10, 11, 12})}
    host.process(10, memory="VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 400 kB\nVmSwap:\t 20 kB\n")
    host.process(11, memory="RssAnon:\t 7 kB\nVmSwap:\t 0 kB\n")
    host.process(12)  # a kernel thread's status has none of these
    host.ticks(0.5, 0, 0, memory=1e9)
    assert host.published("anonymous_memory_bytes") == {("run",): 527 * 1024}
    host.process(11, memory="RssAnon:\t 507 kB\nVmSwap:\t 0 kB\n")
    host.ticks(32, 0, 0, memory=1e9)
    assert host.published("anonymous_memory_bytes") == {("run",): 1027 * 1024}


@pytest.mark.parametrize(
    ("limit", "node", "capacity"), [("5000", 1e9, 5000), ("max", 1e9, 1e9), ("5000", nan, 5000)]
)
def test_a_run_may_use_what_its_cgroup_or_its_node_has(
    limit: str, node: float, capacity: float, host: Host
) -> None:
    host.cgroup(memory__max=limit, memory__current="5")
    host.process(10)
    host.ticks(0.5, 0, 0, memory=node)
    assert host.published("memory_capacity_bytes") == {("run",): capacity}


def test_of_a_node_without_a_known_size_and_a_limit_the_capacity_is_unknown(host: Host) -> None:
    host.process(10)
    host.ticks(0.5, 0, 0)
    assert host.published("memory_capacity_bytes") == host.published("anonymous_memory_bytes") == {}


def test_processes_out_of_sight_leave_everything_unknown(host: Host) -> None:
    host_use = host.ticks(20, 1.0, 1.0).runs["run"].host
    assert host_use.cpus == ()
    assert isnan(host_use.cpu_seconds)
    assert isnan(host_use.allowed_cores)
    assert not any(families(host.collector).values())


def test_counters_of_a_run_that_ended_stay_for_the_last_scrape_and_gauges_go(host: Host) -> None:
    host.cgroup(memory__current="5")
    host.process(10, cpu=3.0)
    host.ticks(0.5, 0, 0)
    host.runs = {}
    host.ticks(10, 0, 0)
    assert host.published("cpu_seconds_total") == {("run",): 3.0}
    assert host.published("memory_bytes") == host.published("cpus") == {}
    host.ticks(RETENTION_SECONDS, 0, 0)
    assert host.published("cpu_seconds_total") == {}


def test_an_exporter_that_starts_again_counts_what_the_run_used_before_only_once(host: Host) -> None:
    def start() -> None:
        host.collector.kept.close()
        host.collector = RunProcessesCollector(host.procfs, host.cgroups)
        host.collector.kept.keep_in(host.procfs / "run_processes.kept")
        look()

    def look() -> None:
        sample = host.ticks(3, 0.5, 0.5)
        host.collector.kept.save(sample)

    def uses(cpu: float, read: int) -> None:
        host.process(10, cpu=cpu)
        host.disks(10, read, 2 * read)

    uses(100.0, 5000)
    start()
    start()
    uses(101.0, 5001)
    look()
    published = families(host.collector)
    names = ("cpu_seconds", "main_threads_ran_seconds", "disk_read_bytes", "disk_written_bytes")
    assert [published[f"{name}_total"]["run",] for name in names] == [101, 101, 5001, 10002]


def test_what_a_run_reads_and_writes_is_counted_on_when_its_processes_are_started_again(host: Host) -> None:
    def bytes_of_run() -> list[float]:
        host.ticks(3, 0.5, 0.5)
        return [host.published(f"disk_{name}_bytes_total")["run",] for name in ("read", "written")]

    host.process(10)
    host.disks(10, 5000, 9000)
    assert bytes_of_run() == [5000, 9000]
    host.disks(10, 5000, 9000, cancelled=4000)
    assert bytes_of_run() == [5000, 9000]
    host.runs = {"run": frozenset({11})}
    host.process(11)
    host.disks(11, 300, 20)
    assert bytes_of_run() == [5300, 9020]
    (host.procfs / "11" / "io").unlink()  # not for this user for a moment
    assert bytes_of_run() == [5300, 9020]
    host.disks(11, 301, 21)
    assert bytes_of_run() == [5301, 9021]


def test_what_a_process_read_that_its_parent_waited_for_is_counted_once(host: Host) -> None:
    host.runs = {"run": frozenset({1, 10})}
    for pid, read in ((1, 100), (10, 50)):
        host.process(pid)
        host.disks(pid, read, 0)
    host.ticks(3, 0.5, 0.5)
    host.runs = {"run": frozenset({1})}
    host.disks(1, 100 + 50 + 7, 0)
    host.ticks(3, 0.5, 0.5)
    assert host.published("disk_read_bytes_total") == {("run",): 157}


@pytest.mark.parametrize("file", ["stat", "schedstat", "status", "cgroup"])
def test_a_moment_without_file_descriptors_counts_no_process_again(
    host: Host, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.process(10, cpu=100.0)
    host.ticks(3, 0.5, 0.5)
    with monkeypatch.context() as patched:
        no_descriptors(patched, only=file)
        with pytest.raises(OSError, match="Too many open files"):
            host.ticks(3, 0.5, 0.5)
    host.process(10, cpu=101.0)
    host.ticks(3, 0.5, 0.5)
    assert host.published("cpu_seconds_total") == {("run",): 101}
    assert host.published("main_threads_ran_seconds_total") == {("run",): 101}


def test_neighbours_are_named_once_they_use_the_run_s_cores(host: Host) -> None:
    host.process(10)
    host.process(20, core=1)
    host.process(30, core=5, cores="4-5")  # busy too, but on other cores
    host.ticks(40, 0.0, 1.0, 0, 0, 0, 1.0)
    for pid, core in ((20, 1), (30, 5)):
        host.process(pid, cpu=30.0, core=core)
    host.ticks(20, 0.0, 1.0, 0, 0, 0, 1.0)
    user = host.published("neighbour_cpu_seconds_total")
    assert list(user) == [("run", "root" if os.getuid() == 0 else os.getlogin())]
    assert sum(user.values()) == pytest.approx(20, abs=6)  # no more than was used of the run's cores


def test_what_neighbours_used_stays_while_the_run_is_started_again(host: Host) -> None:
    host.process(10)
    host.process(20, core=1)
    host.ticks(40, 0.0, 1.0)
    host.process(20, cpu=30.0, core=1)
    host.ticks(20, 0.0, 1.0)
    (before,) = host.published("neighbour_cpu_seconds_total").values()
    runs, host.runs = host.runs, {}
    host.ticks(20, 0.0, 1.0)
    host.runs = runs
    host.ticks(20, 0.0, 1.0)
    host.process(20, cpu=31.0, core=1)
    host.ticks(20, 0.0, 1.0)
    (after,) = host.published("neighbour_cpu_seconds_total").values()
    assert after > before


def test_no_neighbour_is_blamed_for_its_past_after_a_moment_without_file_descriptors(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.process(10)
    host.process(20, cpu=1000.0, core=1)  # has become quiet: the kernel itself uses its core
    host.process(30, core=1)
    host.ticks(40, 0.0, 1.0)
    with monkeypatch.context() as patched:
        no_descriptors(patched, only="/20/stat")
        host.ticks(16, 0.0, 1.0)
    host.ticks(40, 0.0, 1.0)
    assert host.published("neighbour_cpu_seconds_total") == {}


def test_quiet_neighbours_are_not_looked_for(host: Host) -> None:
    host.process(10)
    host.process(20, core=1)
    host.ticks(40, 0.0, 0.05)
    assert host.published("neighbour_cpu_seconds_total") == {}


@pytest.fixture
def started() -> Iterator[Callable[..., int]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(script: str) -> int:
        command = (sys.executable, "-c", script)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _watched(pid: int, until: Callable[[RunProcessesCollector], bool]) -> RunProcessesCollector:
    """Samples a real process every 0.1 s."""
    cpu, collector = CpuCollector(PROC), RunProcessesCollector(PROC, CGROUPS)
    while not until(collector):
        sample = Sample(time.time(), interval=0.5, runs={"run": RunSample(pids=frozenset({pid}))})
        cpu.collect(sample)
        collector.collect(sample)
        time.sleep(0.1)
    return collector


def test_the_cpu_time_of_real_children_that_ended_is_counted(started: Callable[..., int]) -> None:
    pid = started(FORKS)
    collector = _watched(pid, lambda collector: bool(families(collector)["cpu_seconds_total"]))
    assert families(collector)["cpu_seconds_total"]["run",] > 0.1  # three loops of 10 million rounds


def test_the_memory_of_a_real_process_is_seen_and_that_of_its_files_is_not(
    started: Callable[..., int],
) -> None:
    """128 MiB of its own, and a file of 128 MiB that it maps."""
    pid = started(HOLDS.format(mebibytes=128))
    collector = _watched(pid, lambda collector: bool(families(collector)["anonymous_memory_bytes"]))
    assert 128 << 20 <= families(collector)["anonymous_memory_bytes"]["run",] < 200 << 20


def test_a_sleeping_run_next_to_a_real_busy_loop_uses_nothing_and_waits_for_nothing(
    started: Callable[..., int],
) -> None:
    core = min(os.sched_getaffinity(0))
    started(BUSY.format(core=core, user=0))
    pid = started(f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True); input()")
    collector = _watched(
        pid, lambda collector: families(collector)["other_cpu_seconds_total"].get(("run",), 0) > 1
    )
    found = families(collector)
    before = found["main_threads_waited_seconds_total"]["run",]
    assert found["cpu_seconds_total"]["run",] < 0.5
    collector = _watched(pid, lambda collector: bool(families(collector)["cpu_seconds_total"]))
    assert families(collector)["main_threads_waited_seconds_total"]["run",] == pytest.approx(before, abs=0.2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may start a process of another user")
def test_a_real_neighbour_of_another_user_is_named_and_the_run_waits(started: Callable[..., int]) -> None:
    core = min(os.sched_getaffinity(0))
    started(BUSY.format(core=core, user=65534))
    pid = started(BUSY.format(core=core, user=0))

    def named(collector: RunProcessesCollector) -> bool:
        return ("run", "nobody") in families(collector)["neighbour_cpu_seconds_total"]

    found = families(_watched(pid, named))
    assert found["main_threads_waited_seconds_total"]["run",] > 0.2
    assert found["other_cpu_seconds_total"]["run",] > 0.2
