"""The exporter reads while training writes at full speed."""

import signal
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.reader import StepRecord
from stepscope.training import layout

from tests.support.training_script import go_on, only_ledger, training, wait_for_line
from tests.support.waiting import wait_until

# Durations and components are sums of powers of two, so that all sums are exact.
FULL_SPEED = """
import select
stepscope.start()
hold()
recorded = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for i in range(64_000):
        d = (i % 64 + 1) / 1024
        stepscope.record_step("train", 1.0, 1.0 + d, d / 2, d / 4, d / 8)
    recorded += 64_000
sys.stdin.readline()
say(recorded)
hold()
"""


def test_no_record_is_ever_torn_and_all_sums_are_exact(ledgers: Path) -> None:
    with training(FULL_SPEED, ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            go_on(process)
            read, lost, looks = 0, 0, 0
            seconds, recorded = 0.0, 0
            while not recorded:
                if looks >= 20:  # then the process says how many it has recorded
                    go_on(process)
                    assert process.stdout is not None
                    recorded = int(process.stdout.readline())
                steps, missed = reader.new_steps()
                read, lost, looks = read + len(steps), lost + missed, looks + bool(steps)
                for step in steps:
                    expected = (step.number % 64 + 1) / 1024
                    assert step.duration == expected
                    assert step.components[:3] == (expected / 2, expected / 4, expected / 8)
                    seconds += step.duration
                totals = reader.totals()
                assert sum(totals.steps.values()) == totals.steps_recorded
                if totals.steps:
                    assert totals.component_seconds["data_wait"] == totals.phase_seconds["train"] / 2
            assert read + lost == recorded
            assert totals.steps == {"train": recorded}
            assert sum(totals.step_histogram["train"][0]) == recorded
            assert totals.phase_seconds["train"] == sum(range(1, 65)) / 1024 * recorded / 64
            assert totals.component_seconds["forward"] == totals.phase_seconds["train"] / 4
            if lost == 0:
                assert seconds == totals.phase_seconds["train"]


def test_an_overrun_of_the_ring_is_counted_as_lost_and_the_counters_stay_exact(ledgers: Path) -> None:
    count = layout.RING_RECORDS * 2 + 100
    script = f"""
    for i in range({count}):
        stepscope.record_step("train", 1.0, 1.5, 0.25)
    hold()
    for i in range(10):
        stepscope.record_step("eval", 1.0, 1.5, 0.25)
    hold()
    """
    with training(script, ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            steps, lost = reader.new_steps()
            assert len(steps) + lost == count
            assert layout.RING_RECORDS - 2 <= len(steps) < layout.RING_RECORDS
            assert steps[-1].number == count - 1
            assert {(step.duration, step.components[0]) for step in steps} == {(0.5, 0.25)}
            assert reader.totals().steps == {"train": count}
            assert reader.totals().component_seconds["data_wait"] == count / 4
            go_on(process)
            wait_for_line(process)
            more, lost = reader.new_steps()
            assert ([step.number for step in more], lost) == (list(range(10)), 0)


def test_a_killed_trainer_leaves_a_readable_ledger_that_is_not_alive(ledgers: Path) -> None:
    script = """
    with stepscope.component("checkpoint"): pass
    say()
    i = 0
    while True:
        stepscope.record_step("train", 1.0, 1.5, 0.25)
        i += 1
        if i == 5000: say("5000")
    """
    with training(script, ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            assert reader.alive()
            wait_for_line(process, "5000")
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until(lambda: not reader.alive())
            totals = reader.totals()
            assert totals.end is None
            assert "finalization" not in totals.phase_seconds
            assert totals.steps["train"] >= 5000
            assert totals.phase_seconds["train"] == totals.steps["train"] / 2
            assert totals.component_seconds["data_wait"] == totals.steps["train"] / 4
            steps, lost = reader.new_steps()
            assert len(steps) + lost == totals.steps_recorded


def test_an_exporter_that_starts_late_or_again_finds_everything(ledgers: Path) -> None:
    script = """
    for i in range(100): stepscope.record_step("train", 1.0, 1.5)
    hold()
    for i in range(50): stepscope.record_step("train", 1.0, 1.5)
    hold()
    """
    with training(script, ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as first:
            assert len(first.new_steps()[0]) == 100
        go_on(process)
        wait_for_line(process)
        with only_ledger(ledgers) as second:
            steps: list[StepRecord] = second.new_steps()[0]
            assert [step.number for step in steps] == list(range(150))
            assert second.totals().phase_seconds["train"] == pytest.approx(75.0)
