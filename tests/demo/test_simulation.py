"""A simulated node: the same again for the same seed, exact at any speed, and never taken for a real one."""

from itertools import chain
from threading import Event

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from stepscope.demo.node import SimulatedClock

from tests.support.demo import START, simulated


def test_a_seed_gives_the_same_samples_again_and_another_seed_others() -> None:
    seen = []
    for seed in (1, 1, 2):
        with simulated("cpu-bottleneck", seed) as node:
            seen.append(repr(node.go(20).samples))
    assert seen[0] == seen[1] != seen[2]


def test_samples_are_exactly_an_interval_apart_and_hold_the_whole_node() -> None:
    with simulated("healthy") as node:
        samples = node.go(10).samples
    assert [sample.time - START for sample in samples] == [tick / 2 for tick in range(20)]
    assert all(len(sample.gpus) == 8 for sample in samples)
    assert [len(sample.cpus) for sample in samples] == [0] + [32] * 19  # the first one has no before
    assert [*chain(*samples[-1].gpu_processes.values())] == list(range(4001, 4009))


def test_a_run_of_a_minute_is_counted_for_a_minute_and_then_ends_in_good_order() -> None:
    with simulated("healthy", duration=60) as node:
        node.go(90)
        text = node.exporter.scrape("openmetrics").decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert families["stepscope_samples"].samples[0].value == 120
    assert families["stepscope_run_end_time_seconds"].samples[0].value == START + 60
    assert not any(node.samples[-1].gpu_processes.values())
    assert all(gpu.utilization_ratio == 0 for gpu in node.samples[-1].gpus.values())


def test_ranks_that_hang_live_on_and_their_gpus_look_busy_at_low_power() -> None:
    with simulated("stall") as node:
        node.go(8 * 60)
        busy = node.samples[-1].gpus["0"]
        node.go(60)
        hanging = node.samples[-1].gpus["0"]
    assert hanging.utilization_ratio == 1
    assert hanging.power_watts < busy.power_watts / 2
    assert all(node.samples[-1].gpu_processes.values())
    assert node.simulation.stalled


def test_the_build_info_says_which_scenario_is_simulated() -> None:
    with simulated("thermal") as node:
        text = node.go(1).exporter.scrape("text").decode()
    (line,) = (each for each in text.splitlines() if each.startswith("stepscope_exporter_build_info{"))
    assert 'simulated="thermal"' in line
    assert 'model="Simulated H100 80GB"' in text


def test_time_passes_a_hundred_times_as_fast_and_misses_no_tick_when_it_is_late() -> None:
    clock, stopping = SimulatedClock(START, speed=100), Event()
    assert not clock.real
    for _ in range(4):
        assert not clock.wait(stopping, 0.5)
    assert clock.time() == START + 2
    stopping.set()
    assert clock.wait(stopping, 0.5)
    assert clock.time() == START + 2


def test_at_another_speed_moments_are_published_by_their_simulated_age() -> None:
    with simulated("healthy", speed=10) as node:
        node.go(30)
        behind = node.clock.lag()
        text = node.exporter.scrape("openmetrics").decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    published = families["stepscope_run_start_time_seconds"].samples[0].value
    # The last tick published it: half a simulated second and some real time before `behind` was read.
    assert abs(published - (START + behind)) < 60
    assert published > START + 1000  # and nowhere near the simulated moment
