"""For how long ranks could not run: of a host made of files, and of a real process that is stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope.exporter.collectors.rank_pauses import RETENTION_SECONDS, RankPausesCollector
from stepscope.exporter.sampling.sample import RankProcess, RunSample, Sample

INTERVAL = 0.5


class Host:
    """A host of files, with one rank of a run."""

    def __init__(self, directory: Path) -> None:
        self.procfs, self.cgroups = directory / "proc", directory / "cgroup"
        self.collector = RankPausesCollector(self.procfs, self.cgroups)
        self.now = 1000.0
        self.cgroup(0.0)

    def cgroup(self, throttled: float, limit: str = "50000 100000") -> None:
        group = self.cgroups / "pod"
        group.mkdir(parents=True, exist_ok=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu")
        (group / "cgroup.events").write_text("populated 1")
        (group / "cpu.max").write_text(limit)
        (group / "cpu.stat").write_text(
            f"nr_periods 9\nnr_throttled 3\nthrottled_usec {round(1e6 * throttled)}\n"
        )

    def process(self, state: str = "S", waited: float = 0.0, pid: int = 10) -> None:
        of_process = self.procfs / str(pid)
        of_process.mkdir(parents=True, exist_ok=True)
        (of_process / "stat").write_text(f"{pid} (a) T b) {state} 1 {' 0' * 48}")
        (of_process / "schedstat").write_text(f"5 {round(waited * 1e9)} 7\n")
        (of_process / "cgroup").write_text("0::/pod\n")

    def tick(self, after: float = INTERVAL, pid: int | None = 10) -> dict[str, float]:
        """Takes a sample, and returns what was published, by reason."""
        self.now += after
        rank = RankProcess(pid, 3, None, 4, 0)
        sample = Sample(self.now, INTERVAL, runs={"run": RunSample([rank])} if pid else {})
        self.collector.collect(sample)
        published = dict(self.collector.families[0].samples)
        found = {reason: seconds for (_, _, reason), seconds in published.items()}
        assert not rank.paused_seconds or rank.paused_seconds == found
        assert {labels[:2] for labels in published} <= {("run", "3")}
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_stopped_process_waits_neither_for_a_core_nor_for_its_limit(host: Host) -> None:
    for state in "SRTTtS":
        host.process(state)
        found = host.tick()
    assert found == {"stopped": 3 * INTERVAL, "no_core": 0.0, "throttled": 0.0}


def test_time_without_a_core_is_split_by_what_its_cgroup_was_throttled(host: Host) -> None:
    host.process(waited=100.0)
    assert host.tick() == {"stopped": 0.0, "no_core": 0.0, "throttled": 0.0}, "before it was seen"
    host.process(waited=100.4)
    host.cgroup(throttled=0.1)
    assert host.tick() == pytest.approx({"stopped": 0.0, "no_core": 0.3, "throttled": 0.1})
    host.process(waited=100.6)
    host.cgroup(throttled=5.0)  # on other cores of the cgroup
    assert host.tick() == pytest.approx({"stopped": 0.0, "no_core": 0.3, "throttled": 0.3})


def test_in_a_gap_without_samples_nobody_knows_whether_it_was_stopped(host: Host) -> None:
    host.process("T")
    host.tick()
    assert host.tick(after=60.0)["stopped"] == 0.0
    assert host.tick()["stopped"] == INTERVAL


def test_a_later_process_of_the_rank_goes_on_counting(host: Host) -> None:
    host.process("T")
    host.tick()
    host.tick()
    host.process("T", waited=50.0, pid=11)
    assert host.tick(pid=11) == {"stopped": INTERVAL, "no_core": 0.0, "throttled": 0.0}
    assert host.tick(pid=11)["stopped"] == 2 * INTERVAL


def test_of_two_processes_of_a_rank_at_once_the_newer_one_counts(host: Host) -> None:
    host.process(pid=10)
    host.process("T", pid=11)
    for _ in range(3):
        host.now += INTERVAL
        ranks = [RankProcess(pid, 3, None, 4, 0) for pid in (10, 11)]
        host.collector.collect(Sample(host.now, INTERVAL, runs={"run": RunSample(ranks)}))
    assert ranks[1].paused_seconds["stopped"] == 2 * INTERVAL
    assert ranks[0].paused_seconds == {}


def test_a_kernel_that_counts_no_waits_for_a_core_knows_of_no_pauses(host: Host) -> None:
    host.process()
    (host.procfs / "10" / "schedstat").write_text("0 0 0\n")
    host.tick()
    assert host.tick() == {}


def test_a_rank_out_of_sight_has_no_pauses_and_one_that_ended_keeps_them_for_the_last_scrape(
    host: Host,
) -> None:
    assert host.tick() == {}
    host.process("T")
    host.tick()
    host.tick()
    assert host.tick(pid=None)["stopped"] == INTERVAL
    assert host.tick(after=RETENTION_SECONDS + 1, pid=None) == {}


def test_a_real_process_that_is_stopped() -> None:
    collector = RankPausesCollector(Path("/proc"), Path("/sys/fs/cgroup"))
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        rank = RankProcess(child.pid, 0, 0, 1, os.geteuid())
        collector.collect(Sample(1000.0, runs={"run": RunSample([rank])}))
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        collector.collect(Sample(1000.5, runs={"run": RunSample([rank])}))
        os.kill(child.pid, signal.SIGKILL)
    assert rank.paused_seconds["stopped"] == 0.5
