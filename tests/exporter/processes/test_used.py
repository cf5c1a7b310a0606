"""What a tree of processes has used: a counter that never falls."""

import os
from math import nan
from pathlib import Path

import pytest
from stepscope.exporter.processes.used import Gains, Process, TreeCounter, user_of


@pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to the user of the test")
def test_a_process_whose_files_are_root_s_because_it_may_not_be_dumped_is_its_user_s(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for ids, user in (("1000\t1001\t1000\t1000", 1001), ("0\t0\t0\t0", 0)):
        (tmp_path / "7" / "status").write_text(f"Name:\tx\nUid:\t{ids}\nGid:\t5\t5\t5\t5\n")
        assert user_of(tmp_path, 7) == user


def process(parent: int, own: int, waited: int = 0, start: int = 0) -> Process:
    return Process(parent, start, own, waited, 0, 0, 0)


def counted(*looks: dict[int, Process]) -> list[float]:
    counter, totals = TreeCounter("cpu_ticks"), []
    for look in looks:
        counter.add(look)
        totals.append(counter.total)
    return totals


def test_all_processes_count_from_their_start() -> None:
    assert counted({1: process(0, 10), 2: process(1, 5)}, {1: process(0, 12), 2: process(1, 9)}) == [15, 21]


def test_a_child_that_its_parent_waited_for_counts_once_with_what_it_used_last() -> None:
    looks = {1: process(0, 10), 2: process(1, 5)}, {1: process(0, 10, waited=8)}
    assert counted(*looks) == [15, 18]


def test_a_child_that_nobody_waited_for_keeps_what_was_seen_of_it() -> None:
    assert counted({1: process(0, 10), 2: process(1, 5)}, {1: process(0, 11)}) == [15, 16]


def test_a_child_that_lived_between_two_looks_counts_through_its_parent() -> None:
    assert counted({1: process(0, 10)}, {1: process(0, 10, waited=7)}) == [10, 17]


def test_a_grandchild_counts_once_when_all_above_it_end_at_once() -> None:
    looks = {1: process(0, 1), 2: process(1, 2), 3: process(2, 4)}, {1: process(0, 1, waited=7)}
    assert counted(*looks) == [7, 8]  # 2 waited for 3, so 1 has both, and one more


def test_another_process_with_the_same_pid_counts_from_its_own_start() -> None:
    assert counted({1: process(0, 10, start=1)}, {1: process(0, 3, start=2)}) == [10, 13]


def test_an_empty_tree_keeps_its_total() -> None:
    assert counted({1: process(0, 10)}, {}, {2: process(0, 1, start=9)}) == [10, 10, 11]


def test_counters_gain_from_when_they_were_first_seen() -> None:
    gains = Gains()
    for values in ({"a": 100.0}, {"a": 103.0, "b": 7.0}, {"a": nan, "b": 8.0}, {"a": 105.0, "b": 1.0}):
        gains.add(values)
    assert gains.total == 3 + 2 + 1 + 1  # a was not read once; b began again at 0


def test_a_new_counter_that_belongs_to_the_run_gains_from_zero() -> None:
    gains = Gains(from_zero=True)
    gains.add({"a": 2.0})
    gains.add({"b": 3.0})
    assert gains.total == 5


def test_a_counter_that_could_not_be_read_at_first_gains_from_when_it_was() -> None:
    gains = Gains()
    for value in (nan, 100.0, 103.0):
        gains.add({"a": value})
    assert gains.total == 3
