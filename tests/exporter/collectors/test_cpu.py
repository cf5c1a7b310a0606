"""The cpu collector on hosts made of files: exact ratios, and every way in which /proc/stat lets one down."""

import random
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.sampling.sample import Sample

IDLE_HOST: dict[str, tuple[int, ...]] = {"0": (0,) * 10, "1": (0,) * 10}


class Host:
    """A /proc/stat and a collector that reads it."""

    def __init__(self, procfs: Path) -> None:
        procfs.mkdir(parents=True, exist_ok=True)
        self.stat = procfs / "stat"
        self.collector = CpuCollector(procfs)

    def tick(self, cores: dict[str, tuple[int, ...]]) -> Sample:
        """Writes these counters of each core, in the order of proc(5), and collects."""
        lines = [f"cpu{name} {' '.join(map(str, ticks))}" for name, ticks in cores.items()]
        total = " ".join(str(sum(column)) for column in zip(*cores.values(), strict=True))
        self.stat.write_text("\n".join([f"cpu  {total}", *lines, "intr 279755 0 0 1", "ctxt 573326", ""]))
        return self.collect()

    def collect(self) -> Sample:
        sample = Sample(time=0.0)
        self.collector.collect(sample)
        return sample


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def core(
    user: int = 0, idle: int = 0, io_wait: int = 0, steal: int = 0, guest: int = 0, system: int = 0
) -> tuple[int, ...]:
    return (user, 0, system, idle, io_wait, 0, 0, steal, guest, 0)


def test_every_share_of_50_ticks_is_the_double_nearest_to_it(host: Host) -> None:
    cores = {str(busy): core(user=busy, idle=50 - busy) for busy in range(51)}
    host.tick(dict.fromkeys(cores, core()))
    assert host.tick(cores).cpu_utilization_ratio == [busy / 50 for busy in range(51)]


def test_the_first_tick_gives_nothing(host: Host) -> None:
    sample = host.tick({"0": core(user=5, idle=5)})
    assert (sample.cpus, sample.cpu_utilization_ratio, sample.cpu_io_wait_ratio) == ((), [], [])
    assert all(not family.samples for family in host.collector.families)


def test_each_core_has_its_utilisation_and_its_io_wait(host: Host) -> None:
    host.tick(IDLE_HOST)
    sample = host.tick({"0": core(user=10, system=10, idle=60, io_wait=20), "1": core(idle=100)})
    assert sample.cpus == ("0", "1")
    assert sample.cpu_utilization_ratio == [0.2, 0.0]
    assert sample.cpu_io_wait_ratio == [0.2, 0.0]
    utilization, io_wait, cores = host.collector.families
    assert utilization.name == "stepscope_cpu_utilization_ratio"
    assert utilization.samples == {("0",): 0.2, ("1",): 0.0}
    assert io_wait.name == "stepscope_cpu_io_wait_ratio"
    assert io_wait.samples == {("0",): 0.2, ("1",): 0.0}
    assert (cores.name, cores.samples) == ("stepscope_cpus", {(): 2})


def test_guests_are_not_counted_twice(host: Host) -> None:
    """The kernel has 40 ticks of a guest in both user and guest."""
    host.tick({"0": core()})
    assert host.tick({"0": core(user=40, guest=40, idle=60)}).cpu_utilization_ratio == [0.4]


def test_time_stolen_by_the_hypervisor_is_busy(host: Host) -> None:
    host.tick({"0": core()})
    assert host.tick({"0": core(steal=25, idle=75)}).cpu_utilization_ratio == [0.25]


def test_an_io_wait_that_steps_back_counts_as_none(host: Host) -> None:
    host.tick({"0": core(io_wait=500)})
    sample = host.tick({"0": core(io_wait=490, user=25, idle=25)})
    assert (sample.cpu_utilization_ratio, sample.cpu_io_wait_ratio) == ([0.5], [0.0])


def test_a_core_whose_every_counter_stepped_back_gives_nothing_and_the_others_go_on(host: Host) -> None:
    host.tick({"0": core(user=500, idle=500), "1": core(user=500, idle=500)})
    sample = host.tick({"0": core(user=1, idle=1), "1": core(user=510, idle=530)})
    assert (sample.cpus, sample.cpu_utilization_ratio) == (("1",), [0.25])
    sample = host.tick({"0": core(user=11, idle=1), "1": core(user=510, idle=540)})
    assert (sample.cpus, sample.cpu_utilization_ratio) == (("0", "1"), [1.0, 0.0])


def test_a_host_whose_time_stands_still_is_a_failure_that_names_the_file(host: Host) -> None:
    host.tick(IDLE_HOST)
    with pytest.raises(ValueError, match=f"{host.stat}: no core's time has advanced"):
        host.tick(IDLE_HOST)


def test_a_core_that_goes_offline_leaves_and_comes_back_with_its_second_sample(host: Host) -> None:
    host.tick(IDLE_HOST)
    sample = host.tick({"1": core(user=50)})
    assert (sample.cpus, sample.cpu_utilization_ratio) == (("1",), [1.0])
    assert host.collector.utilization.samples == {("1",): 1.0}
    sample = host.tick({"0": core(user=7, idle=3), "1": core(user=50, idle=50)})
    assert (sample.cpus, sample.cpu_utilization_ratio) == (("1",), [0.0])
    sample = host.tick({"0": core(user=7, idle=53), "1": core(user=60, idle=90)})
    assert (sample.cpus, sample.cpu_utilization_ratio) == (("0", "1"), [0.0, 0.2])


def test_a_host_whose_cores_were_all_exchanged_begins_anew(host: Host) -> None:
    host.tick({"0": core()})
    assert host.tick({"1": core(user=5)}).cpus == ()
    assert host.tick({"1": core(user=10)}).cpu_utilization_ratio == [1.0]


def test_192_cores_each_keep_their_own_ratio(host: Host) -> None:
    draw = random.Random(192)
    before = {str(number): tuple(draw.randrange(10**9) for _ in range(10)) for number in range(192)}
    busy = {name: draw.randrange(51) for name in before}
    host.tick(before)
    after = {
        name: (user + busy[name], nice, system, idle + 50 - busy[name], *rest)
        for name, (user, nice, system, idle, *rest) in before.items()
    }
    sample = host.tick(after)
    assert sample.cpus == tuple(map(str, range(192)))
    assert sample.cpu_utilization_ratio == [ticks / 50 for ticks in busy.values()]


def test_the_last_core_is_read_where_no_other_line_follows(host: Host) -> None:
    host.stat.write_text("cpu  1 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\n")
    host.collect()
    host.stat.write_text("cpu  1 0 0 0 0 0 0 0\ncpu0 3 0 0 1 0 0 0 0\n")
    assert host.collect().cpu_utilization_ratio == [0.75]


def test_after_a_failed_tick_no_ratio_spans_the_gap(host: Host) -> None:
    host.tick({"0": core()})
    host.stat.write_text("garbage")
    with pytest.raises(ValueError, match="stat"):
        host.collect()
    assert host.tick({"0": core(user=100)}).cpus == ()
    assert host.tick({"0": core(user=100, idle=50)}).cpu_utilization_ratio == [0.0]


counters = st.tuples(*[st.integers(0, 2**63)] * 10)


@given(before=counters, after=counters)
def test_ratios_are_within_0_and_1_whatever_the_counters_do(
    tmp_path_factory: pytest.TempPathFactory, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    host = Host(tmp_path_factory.getbasetemp() / "bounds")
    host.tick({"0": before, "1": core()})
    sample = host.tick({"0": after, "1": core(idle=1)})
    for busy, waiting in zip(sample.cpu_utilization_ratio, sample.cpu_io_wait_ratio, strict=True):
        assert 0.0 <= busy <= 1.0
        assert 0.0 <= waiting <= 1.0
        assert busy + waiting <= 1.0 + 2**-52  # each is rounded by itself


@given(spent=st.tuples(*[st.integers(0, 500)] * 8).filter(any), factor=st.integers(1, 1000))
def test_ratios_do_not_depend_on_how_long_the_interval_was(
    tmp_path_factory: pytest.TempPathFactory, spent: tuple[int, ...], factor: int
) -> None:
    host = Host(tmp_path_factory.getbasetemp() / "scale")
    host.tick({"0": (0,) * 10})
    short = host.tick({"0": (*spent, 0, 0)})
    longer = host.tick({"0": (*(ticks * (factor + 1) for ticks in spent), 0, 0)})
    assert longer.cpu_utilization_ratio == short.cpu_utilization_ratio
    assert longer.cpu_io_wait_ratio == short.cpu_io_wait_ratio


@given(spent=st.tuples(*[st.integers(0, 10_000)] * 8).filter(any), guest=st.integers(0, 10_000))
def test_the_definition_is_the_one_of_psutil(
    tmp_path_factory: pytest.TempPathFactory, spent: tuple[int, ...], guest: int
) -> None:
    host = Host(tmp_path_factory.getbasetemp() / "psutil")
    user, *others = spent
    host.tick({"0": (0,) * 10})
    with patch.object(psutil, "PROCFS_PATH", str(host.stat.parent)):
        psutil.cpu_percent(percpu=True)
        sample = host.tick({"0": (user + guest, *others, guest, 0)})
        percent = psutil.cpu_percent(percpu=True)
    assert percent == [
        pytest.approx(sample.cpu_utilization_ratio[0] * 100, abs=0.0501)
    ]  # psutil rounds to 0.1
