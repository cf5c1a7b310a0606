"""Counting samples: thresholds on the right side of every bound, and the grid against a brute-force count."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.sampling.sample import GpuSample, GpuUse, HostUse, RunSample, Sample
from stepscope.exporter.sampling.sample_tally import BOUNDS, GRID, LEAST_USE, SampleTally

percents = st.integers(0, 100).map(lambda percent: percent / 100)


def sample(
    cpu: list[float] | None = None, io_wait: list[float] | None = None, gpus: list[float] | None = None
) -> Sample:
    samples = {
        str(index): GpuSample(value, memory_used_bytes=value * 80e9, memory_total_bytes=80e9)
        for index, value in enumerate(gpus or [])
    }
    return Sample(time=0.0, cpu_utilization_ratio=cpu or [], cpu_io_wait_ratio=io_wait or [], gpus=samples)


def tally(*samples: Sample) -> SampleTally:
    counted = SampleTally()
    for each in samples:
        counted.add(each, RunSample(gpus=dict.fromkeys(each.gpus, GpuUse("node"))))
    return counted


def starved(counted: SampleTally, above: float, below: float, cause: str = "cpu") -> int:
    return counted.starved[cause].counts()[GRID.index(above)][GRID.index(below)]


def test_every_default_threshold_of_the_heuristics_is_a_bound() -> None:
    assert {0.1, 0.5, 0.7, 0.9} <= set(BOUNDS)
    assert {0.1, 0.5, 0.9} <= set(GRID)
    assert BOUNDS[-1] == 1.0
    assert len(BOUNDS) == 50


def test_one_pinned_core_of_192_and_one_idle_gpu_of_8_is_a_starved_sample() -> None:
    counted = tally(sample(cpu=[0.1] * 191 + [0.91], gpus=[1.0] * 7 + [0.09]))
    assert starved(counted, 0.9, 0.1) == 1


@pytest.mark.parametrize("core", [0.9, 45 / 50, 1 - 0.1, 0.3 * 3])
def test_a_core_at_exactly_the_threshold_is_not_above_it(core: float) -> None:
    counted = tally(sample(cpu=[core], gpus=[0.0]))
    assert starved(counted, 0.9, 0.1) == 0
    assert starved(counted, 0.8, 0.1) == 1


@pytest.mark.parametrize("gpu", [0.1, 10 / 100, 1 - 0.9])
def test_a_gpu_at_exactly_the_threshold_is_not_below_it(gpu: float) -> None:
    counted = tally(sample(cpu=[1.0], gpus=[gpu]))
    assert starved(counted, 0.9, 0.1) == 0
    assert starved(counted, 0.9, 0.2) == 1
    assert counted.low.counts()[:2] == [0, 1]


@pytest.mark.parametrize("percent", range(0, 101, 2))
def test_a_sample_on_a_bound_is_counted_in_the_bucket_of_that_bound(percent: int) -> None:
    counted = tally(sample(gpus=[percent / 100]))
    assert counted.gpu["0"].counts.index(1) == max(0, percent // 2 - 1)
    assert counted.gpu_memory["0"].counts.index(1) == max(0, percent // 2 - 1)


def test_the_mean_of_cores_is_counted_on_its_bound_though_its_sum_is_rounded() -> None:
    cores = [0.7] * 192
    assert sum(cores) / 192 != 0.7  # else this proves nothing
    counted = tally(sample(cpu=cores))
    assert counted.cpu.counts[BOUNDS.index(0.7)] == 1


def test_readings_that_are_missing_are_not_counted() -> None:
    counted = tally(
        sample(),
        sample(cpu=[nan, 0.95], gpus=[nan, 0.05]),
        sample(cpu=[nan], gpus=[nan]),
        sample(gpus=[0.05]),
        sample(cpu=[1.0]),
    )
    assert counted.samples == 5
    assert starved(counted, 0.9, 0.1) == 1
    assert counted.low.counts()[0] == 2
    assert sum(counted.cpu.counts) == 2
    assert sum(counted.gpu["0"].counts) == 1


@given(
    st.lists(
        st.tuples(
            st.lists(percents, min_size=1, max_size=4),
            st.lists(percents, min_size=1, max_size=4),
            st.lists(percents, min_size=1, max_size=4),
        ),
        max_size=12,
    )
)
def test_the_starved_grid_equals_a_count_by_brute_force(
    samples: list[tuple[list[float], list[float], list[float]]],
) -> None:
    counted = tally(*(sample(*parts) for parts in samples))
    for above in GRID:
        for below in GRID:
            by_cpu = sum(max(cpu) > above and min(gpu) < below for cpu, _, gpu in samples)
            by_io = sum(max(io) > above and min(gpu) < below for _, io, gpu in samples)
            assert starved(counted, above, below, "cpu") == by_cpu
            assert starved(counted, above, below, "io") == by_io
    low = [sum(min(gpu) < below for _, _, gpu in samples) for below in GRID]
    assert counted.low.counts() == low


@given(st.lists(percents, max_size=30))
def test_histograms_count_samples_at_or_below_each_bound(values: list[float]) -> None:
    counted = tally(*(sample(cpu=[value], io_wait=[1 - value]) for value in values))
    for index, bound in enumerate(BOUNDS):
        assert sum(counted.cpu.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(counted.cpu.counts) == sum(counted.io_wait.counts) == len(values)
    assert counted.cpu.sum == pytest.approx(sum(values))


@given(st.lists(st.lists(percents, max_size=3), max_size=8))
def test_counts_survive_being_written_and_read(samples: list[list[float]]) -> None:
    before = tally(*(sample(cpu=[0.95], io_wait=[0.5], gpus=gpus) for gpus in samples))
    after = SampleTally.from_bytes(before.to_bytes(), list(before.gpu))
    assert after.to_bytes() == before.to_bytes()
    assert after.samples == len(samples)
    assert after.starved["cpu"].counts() == before.starved["cpu"].counts()
    assert {gpu: h.value() for gpu, h in after.gpu.items()} == {
        gpu: h.value() for gpu, h in before.gpu.items()
    }


def test_counts_of_other_gpus_than_announced_are_refused() -> None:
    with pytest.raises(ValueError, match="length"):
        SampleTally.from_bytes(tally(sample(gpus=[0.5])).to_bytes(), ["0", "1"])


def counted_with(host: HostUse, cpu: list[float]) -> SampleTally:
    tally = SampleTally()
    sample = Sample(
        time=0.0, cpus=("0", "1", "2", "3"), cpu_utilization_ratio=cpu, cpu_io_wait_ratio=[0.0] * 4
    )
    sample.gpus = {"0": GpuSample(utilization_ratio=0.0)}
    tally.add(sample, RunSample(gpus={"0": GpuUse("processes")}, host=host))
    return tally


def test_only_the_cores_that_the_run_may_use_count() -> None:
    cpu = [1.0, 0.5, 0.1, 1.0]
    of_run, of_node = counted_with(HostUse(cpus=("1", "2")), cpu), counted_with(HostUse(), cpu)
    assert of_run.cpu.sum == pytest.approx(0.3)
    assert of_node.cpu.sum == pytest.approx(0.65)
    above_half = GRID.index(0.5)
    assert (
        of_run.starved["cpu"].counts()[above_half][0],
        of_node.starved["cpu"].counts()[above_half][0],
    ) == (0, 1)


@pytest.mark.parametrize(("cores", "counts"), [(0.0, 0), (0.099, 0), (LEAST_USE, 1), (1.0, 1), (nan, 1)])
def test_a_pinned_core_is_no_cause_if_the_run_itself_does_next_to_nothing(cores: float, counts: int) -> None:
    host = HostUse(cpus=("0", "1", "2", "3"), cpu_cores=cores)
    assert counted_with(host, [1.0] * 4).starved["cpu"].counts()[GRID.index(0.9)][0] == counts
