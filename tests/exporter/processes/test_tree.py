"""Process trees: of real processes, and of fixture trees for what this machine cannot show."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from stepscope.exporter.processes.tree import LOOK_SECONDS, REREAD_SECONDS, Namespaces, ProcessTrees

from tests.support.descriptors import no_descriptors

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(procfs: Path, processes: Mapping[int, int]) -> None:
    """Writes processes with their parents; the name of each looks like the end of a name."""
    for pid, parent in processes.items():
        (procfs / str(pid)).mkdir(parents=True, exist_ok=True)
        stat = f"{pid} (a) b) S {parent} " + "0 " * 48
        (procfs / str(pid) / "stat").write_text(stat)


def write_status(procfs: Path, pid: int, *own_pids: int) -> None:
    (procfs / str(pid)).mkdir(parents=True, exist_ok=True)
    (procfs / str(pid) / "status").write_text(
        "Name:\tpython\nNSpid:\t" + "\t".join(map(str, own_pids)) + "\n"
    )


def test_the_child_of_a_real_process_belongs_to_its_tree_and_a_sibling_does_not() -> None:
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], **piped) as parent:  # type: ignore[call-overload]
        child = int(parent.stdout.readline())
        whole, parts = ProcessTrees().of([parent.pid]), ProcessTrees().of([parent.pid, child])
        parent.stdin.close()
    assert whole == {parent.pid: {parent.pid, child}}
    assert parts == {parent.pid: {parent.pid}, child: {child}}  # each has a ledger: the child is its own


def test_grandchildren_belong_to_the_tree_and_two_runs_share_nothing(tmp_path: Path) -> None:
    write(tmp_path, {1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 21: 20})
    assert ProcessTrees(tmp_path).of([10, 20]) == {10: {10, 11, 12}, 20: {20, 21}}


def test_a_new_child_is_seen_at_the_next_look_and_not_before(tmp_path: Path) -> None:
    clock = Clock()
    trees = ProcessTrees(tmp_path, clock)
    write(tmp_path, {10: 1})
    assert trees.of([10]) == {10: {10}}
    write(tmp_path, {11: 10})
    clock.now += LOOK_SECONDS / 2
    assert trees.of([10]) == {10: {10}}
    clock.now += REREAD_SECONDS
    assert trees.of([10]) == {10: {10, 11}}


def test_a_new_child_is_seen_soon_although_it_took_long_to_read_all_processes_of_the_node(
    tmp_path: Path,
) -> None:
    clock, stopwatch = (
        Clock(),
        iter((0.0, 1.0, 1.0, 1.002, 2.0, 2.02, 3.0, 3.0)).__next__,
    )  # seconds with a core
    trees = ProcessTrees(tmp_path, clock, stopwatch)
    write(tmp_path, {10: 1})
    assert trees.of([10]) == {10: {10}}
    for child, pause in ((11, LOOK_SECONDS), (12, LOOK_SECONDS), (13, 20.0)):  # 0.1 % of a core
        write(tmp_path, {child: 10})
        clock.now += pause - 0.1
        assert child not in trees.of([10])[10]
        clock.now += 0.2
        assert child in trees.of([10])[10]


def test_a_pid_that_another_process_got_leaves_the_tree(tmp_path: Path) -> None:
    clock = Clock()
    trees = ProcessTrees(tmp_path, clock)
    write(tmp_path, {1: 0, 10: 1, 11: 10})
    assert trees.of([10]) == {10: {10, 11}}
    write(tmp_path, {11: 1})
    clock.now += LOOK_SECONDS + 1
    assert trees.of([10]) == {10: {10}}


@pytest.mark.parametrize("call", ["listdir", "open"])
def test_a_moment_without_file_descriptors_ends_no_process(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    trees = ProcessTrees(tmp_path, clock)
    write(tmp_path, {1: 0, 10: 1, 11: 10})
    assert trees.of([10]) == {10: {10, 11}}
    clock.now += REREAD_SECONDS + 1
    with monkeypatch.context() as patched:
        no_descriptors(patched, call)
        assert trees.of([10]) == {10: {10, 11}}


def test_without_a_procfs_a_tree_is_its_root_alone(tmp_path: Path) -> None:
    assert ProcessTrees(tmp_path / "missing").of([10]) == {10: {10}}


def test_only_the_procfs_of_the_own_namespace_names_this_process(tmp_path: Path) -> None:
    assert Namespaces().own
    (tmp_path / "self").symlink_to("4711")
    assert not Namespaces(tmp_path).own


def test_the_holder_of_a_ledger_is_read_from_the_locks_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  WRITE 1 fe:00:2154756 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 24755 00:1b:49156 0 0\n"
        "3: POSIX  ADVISORY  WRITE 24760 00:1b:49156 3 3\n"  # a data-loading worker's
        "3: -> POSIX  ADVISORY  WRITE 24761 00:1b:49156 0 0\n"  # waits for the lock
        "4: POSIX  ADVISORY  READ 24999 00:1b:49157 0 0\n"  # of a user who may read a ledger
    )
    assert Namespaces(tmp_path).lock_holders() == {(os.makedev(0, 0x1B), 49156): 24755}


def test_a_pid_inside_a_container_is_translated_if_only_one_process_has_it(tmp_path: Path) -> None:
    me = os.getuid()
    write_status(tmp_path, 4711, 4711, 8)
    write_status(tmp_path, 4712, 4712, 9)
    (tmp_path / "sys").mkdir()
    assert Namespaces(tmp_path).find(8, me) == 4711
    assert Namespaces(tmp_path).find(8, me + 1) is None
    write_status(tmp_path, 4800, 4800, 8)  # of another container
    assert Namespaces(tmp_path).find(8, me) is None


def test_a_pid_inside_a_container_is_translated_although_its_files_are_root_s(tmp_path: Path) -> None:
    write_status(tmp_path, 4711, 4711, 8)
    with (tmp_path / "4711" / "status").open("a") as status:
        status.write("Uid:\t1001\t1001\t1001\t1001\n")
    assert Namespaces(tmp_path).find(8, 1001) == 4711
