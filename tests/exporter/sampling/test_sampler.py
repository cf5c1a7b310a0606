"""The sampler: a schedule without drift, missed ticks counted, nothing stale while it is stuck."""

import logging
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.sampler import Clock, Sampler, Schedule

from tests.support.waiting import SECONDS, wait_until


class SetClock(Clock):
    """Stands at the first of `now`; waiting takes its real time."""

    def __init__(self, now: list[float]) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now[0]


def counts(sampler: Sampler) -> list[float]:
    return [family.samples[()] for family in sampler.families]


def test_late_ticks_do_not_put_off_those_behind_them() -> None:
    schedule = Schedule(0.5, now=100.0)
    for tick in range(1000):
        deadline = 100.0 + tick * 0.5
        assert schedule.wait_seconds(deadline) == 0.0
        assert schedule.tick(deadline + 0.3) == 0  # always late, never missed


def test_deadlines_that_passed_while_a_tick_took_long_are_missed_and_not_made_up_for() -> None:
    schedule = Schedule(0.5, now=100.0)
    assert schedule.tick(100.0) == 0
    assert schedule.tick(102.2) == 3  # 100.5, 101.0 and 101.5; it stands for 102.0
    assert schedule.wait_seconds(102.2) == pytest.approx(0.3)


@given(st.lists(st.integers(0, 40), max_size=50))
def test_ticks_taken_and_missed_add_up_to_the_deadlines_that_passed(lateness: list[int]) -> None:
    schedule, now, taken, missed = Schedule(1.0, now=0.0), 0.0, 0, 0
    for tenths in lateness:
        now = max(now, now + schedule.wait_seconds(now)) + tenths / 10
        missed += schedule.tick(now)
        taken += 1
    assert taken + missed == (int(now) + 1 if lateness else 0)


def test_each_tick_hands_a_sample_to_every_sink_and_is_counted() -> None:
    first: list[Sample] = []
    second: list[Sample] = []
    registry = Registry([], sinks={"first": first.append, "second": second.append})
    sampler = Sampler(registry, 0.01)
    assert not sampler.ready
    sampler.start()
    wait_until(lambda: len(second) >= 3)
    assert sampler.stop()
    assert sampler.ready
    assert sampler.fresh()
    assert counts(sampler)[0] == len(first) == len(second)
    assert first == second
    registry.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), SystemExit(1)])
def test_a_tick_that_fails_is_missed_and_the_sampler_goes_on(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    registry, failing = Registry([]), [True]
    collect = registry.collect

    def refuse(sample: Sample) -> None:
        if failing:
            raise error
        collect(sample)

    registry.collect = refuse  # type: ignore[method-assign]
    sampler = Sampler(registry, 0.01)
    with caplog.at_level(logging.ERROR):
        sampler.start()
        wait_until(lambda: sampler._missed_count >= 3)
        assert not sampler.fresh()
        failing.clear()
        wait_until(sampler.fresh)
        assert sampler.stop()
    assert [message for message in caplog.messages if "a sample could not be taken" in message]
    assert len(caplog.messages) == 1
    assert counts(sampler)[1] >= 3
    registry.close()


def test_a_stuck_sampler_is_not_fresh_until_it_ticks_again() -> None:
    going_on, stuck, now = Event(), Event(), [1000.0]
    going_on.set()

    def sink(_: Sample) -> None:
        if not going_on.is_set():
            stuck.set()
            going_on.wait(SECONDS)

    registry = Registry([], patience=SECONDS, sinks={"sink": sink})
    sampler = Sampler(registry, 0.01, SetClock(now))
    sampler.start()
    wait_until(sampler.fresh)
    going_on.clear()
    assert stuck.wait(SECONDS)
    now[0] += 3.9
    assert sampler.fresh()  # a few ticks late is no reason for a gap
    now[0] += 0.2
    assert not sampler.fresh()
    going_on.set()
    wait_until(sampler.fresh)
    assert sampler.stop()
    assert counts(sampler)[1] > 300  # the 4.1 s of a clock that the test turned
    registry.close()
