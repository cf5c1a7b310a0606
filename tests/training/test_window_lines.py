"""The samples of lines in a profile window: they are of this thread, and end with it and before a fork."""

import os
import threading
import time
from pathlib import Path

import pytest
from stepscope.training import window_lines
from stepscope.training.window_lines import WindowLines, sample_lines

HERE = Path(__file__)


def sampled(least: int = 3) -> WindowLines:
    lines = sample_lines()
    assert lines is not None
    while len(lines.samples) < least:
        time.sleep(0.005)  # this line
    return lines


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(HERE.read_text().splitlines(), 1) if text in line)


def test_samples_have_the_line_of_this_thread_in_the_order_of_time() -> None:
    before = time.time_ns()
    samples = sampled().stop()
    assert len(samples) >= 3
    assert samples == sorted(samples, key=lambda each: each[0])
    assert before < samples[0][0] <= samples[-1][0] < time.time_ns()
    sleeping = [place for _, place in samples if place.endswith(f"{HERE.name}:{line_of('# this line')}")]
    assert len(sleeping) > len(samples) / 2


def test_nothing_is_sampled_after_the_end_and_a_second_window_is_sampled_again() -> None:
    threads = threading.active_count()
    first = sampled()
    samples = first.stop()
    assert first.stop() == samples
    assert sampled().stop()
    assert threading.active_count() == threads


def test_a_fork_ends_the_samples_and_the_window_keeps_those_before_it() -> None:
    lines = sampled()
    child = os.fork()
    if not child:
        os._exit(bool(window_lines._sampling))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(lines.stop()) >= 3


def test_nothing_is_sampled_if_that_is_switched_off_or_this_is_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[WindowLines | None] = []
    thread = threading.Thread(target=lambda: found.append(sample_lines()))
    thread.start()
    thread.join()
    monkeypatch.setenv("STEPSCOPE_LINES", "0")
    assert [*found, sample_lines()] == [None, None]


def test_a_stack_that_cannot_be_read_costs_only_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise OSError("no more descriptors")

    monkeypatch.setattr(window_lines, "stack_of_this_thread", lambda: failing)
    lines = sample_lines()
    assert lines is not None
    assert lines.stop() == []
