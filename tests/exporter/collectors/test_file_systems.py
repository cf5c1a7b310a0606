"""The space where a run works: of a process made of files, whose working directory is a real one."""

import os
from pathlib import Path
from threading import Event

import pytest
from stepscope.exporter.collectors.file_systems import FileSystemsCollector, writable_mount
from stepscope.exporter.sampling.sample import RankProcess, RunSample, Sample

from tests.support.waiting import wait_until

MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / {work} rw,relatime shared:2 - nfs server:/work rw
24 22 0:22 / /data ro,relatime - squashfs /dev/loop0 ro
25 22 0:23 / /a\\040b rw - ext4 /dev/vdb rw
26 22 0:24 / /broken rw,relatime shared:3 - ext4 /dev/vdc ro,errors=remount-ro
"""


class Node:
    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        self.procfs = directory / "proc"
        self.now = 0.0
        self.collector = FileSystemsCollector(self.procfs, lambda: self.now)

    def process(self, pid: int, folder: Path) -> None:
        (self.procfs / str(pid)).mkdir(parents=True)
        (self.procfs / str(pid) / "cwd").symlink_to(folder)
        (self.procfs / str(pid) / "mountinfo").write_text(MOUNTS.format(work=self.work))

    def tick(self, *pids: int, after: float = 60.0) -> dict[tuple[str, ...], float]:
        """Takes a sample and, after the thread has asked, one that publishes what it found."""
        for seconds in (after, 0.0):
            self.now += seconds
            ranks = [RankProcess(pid, rank, None, 4, 0) for rank, pid in enumerate(pids)]
            self.collector.collect(Sample(self.now, runs={"run": RunSample(ranks)} if pids else {}))
            self.collector.wait()
        assert self.collector.free.samples.keys() == self.collector.size.samples.keys()
        return dict(self.collector.size.samples)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_file_system_of_the_working_directory_has_its_space_once_per_run(node: Node) -> None:
    node.process(10, node.work)
    node.process(11, node.work)
    space = os.statvfs(node.work)
    assert node.tick(10, 11) == {("run", str(node.work)): space.f_frsize * space.f_blocks}


def test_a_process_that_has_ended_or_is_hidden_costs_only_its_own(node: Node) -> None:
    node.process(11, node.work)
    assert set(node.tick(10, 11)) == {("run", str(node.work))}


def test_a_mount_with_an_odd_name_costs_no_other_file_system(node: Node) -> None:
    node.process(10, node.work)
    with (node.procfs / "10" / "mountinfo").open("a") as mounts:
        mounts.write("26 22 0:24 / /home/eve/a\x0cb\x1cc rw - fuse.sshfs eve: rw\n")
    assert set(node.tick(10)) == {("run", str(node.work))}


def test_a_run_that_has_ended_has_none(node: Node) -> None:
    node.process(10, node.work)
    node.tick(10)
    assert node.tick(after=0.5) == {}


def test_a_file_system_is_asked_every_minute(node: Node) -> None:
    node.process(10, node.work)
    node.tick(10)
    (node.procfs / "10" / "cwd").unlink()
    assert node.tick(10, after=59.5)
    assert node.tick(10, after=1) == {}


def test_while_a_file_system_does_not_answer_ticks_go_on_and_nothing_stale_is_published(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.process(10, node.work)
    node.tick(10)
    answers, answer, statvfs = Event(), Event(), os.statvfs

    def hanging(path: Path) -> os.statvfs_result:
        answers.set()
        answer.wait()
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hanging)
    sample = Sample(node.now, runs={"run": RunSample([RankProcess(10, 0, None, 4, 0)])})
    node.now += 60
    node.collector.collect(sample)
    answers.wait()
    assert node.collector.free.samples
    node.now += 100
    node.collector.collect(sample)
    assert not node.collector.free.samples
    answer.set()
    node.collector.wait()
    assert node.tick(10)


def test_a_file_system_that_does_not_answer_costs_no_other_run_its_values(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.process(10, node.work)
    node.process(11, node.work)
    runs = {f"run-{pid}": RunSample([RankProcess(pid, 0, None, 1, 0)]) for pid in (10, 11)}
    answer, statvfs = Event(), os.statvfs

    def hanging(path: Path) -> os.statvfs_result:
        if path.parts[-2] == "10":
            answer.wait()
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hanging)

    def published() -> set[str]:
        node.collector.collect(Sample(node.now, runs=runs))
        return {run for run, _ in node.collector.free.samples}

    def asking() -> list[str]:
        return [run for run, (thread, _) in node.collector._asking.items() if thread.is_alive()]

    for _ in range(3):
        node.now += 60
        wait_until(lambda: published() == {"run-11"} and asking() == ["run-10"])
        node.now += 59
        assert published() == {"run-11"}
    answer.set()
    node.collector.wait()


@pytest.mark.parametrize(
    ("folder", "mount"),
    [
        ("/", "/"),
        ("/work/a", "/work"),
        ("/workshop", "/"),
        ("/data/x", None),
        ("/broken/x", None),
        ("/a b/c", "/a b"),
    ],
)
def test_the_mount_of_a_folder_is_the_nearest_above_unless_it_is_read_only(
    folder: str, mount: str | None, tmp_path: Path
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.format(work="/work"))
    assert writable_mount(tmp_path / "mountinfo", folder) == mount
