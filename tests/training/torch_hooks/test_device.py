"""Times on the GPU, with a stub of the event API of torch.cuda."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.pytorch import needs_torch

pytestmark = needs_torch

FORWARD, BACKWARD, COMMUNICATION = 1, 2, 4


class Gpu:
    """A stream whose clock is `now` milliseconds, and which has done all work up to `done`."""

    def __init__(self) -> None:
        self.now = self.done = 0.0
        self.capturing = False
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now

            def query(self) -> bool:
                assert not gpu.capturing, "CUDA would end the capture with an error"
                return self.at <= gpu.done

            def elapsed_time(self, end: Any) -> float:
                assert end.query(), "would wait for the GPU"
                return float(end.at - self.at)

        self.cuda = SimpleNamespace(
            Event=Event, is_initialized=lambda: True, is_current_stream_capturing=lambda: self.capturing
        )
        self.steps = 0
        self.seconds: dict[int, float] = defaultdict(float)
        from stepscope.training.frameworks.torch_hooks import device  # imports torch

        self.every, self.most_unread = device.STEPS, device.MOST_UNREAD
        self.device = device.DeviceTimes(self.cuda, self.count)

    def count(self, component: int, seconds: float) -> None:
        self.seconds[component] += seconds

    def step(self) -> None:
        for component, milliseconds in ((FORWARD, 3), (BACKWARD, 5), (COMMUNICATION, 2), (-1, 1)):
            if self.device.measures:
                self.device.begins(component)
            self.now += milliseconds
        self.steps += 1
        if self.device.measures or self.steps % self.every == 0:
            self.device.step_ended(self.steps)


def test_one_of_twenty_steps_is_measured_and_stands_for_all() -> None:
    gpu = Gpu()
    for _ in range(10 * gpu.every):
        gpu.step()
        gpu.done = gpu.now
    steps = 9 * gpu.every
    assert gpu.seconds == pytest.approx({FORWARD: steps * 0.003, BACKWARD: steps * 0.005, 4: steps * 0.002})


def test_events_are_read_only_when_they_are_done_and_never_kept_for_ever() -> None:
    gpu = Gpu()
    for _ in range(20 * gpu.every + 1):
        gpu.step()
    assert not gpu.seconds
    assert len(gpu.device._unread) == gpu.most_unread
    gpu.done = gpu.now
    for _ in range(gpu.every):
        gpu.step()
    assert gpu.seconds[FORWARD] == pytest.approx(gpu.most_unread * gpu.every * 0.003)


def test_nothing_is_recorded_while_a_graph_is_captured(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = Gpu()
    gpu.capturing = True
    for _ in range(3 * gpu.every):
        gpu.step()
        gpu.done = gpu.now
    assert not gpu.seconds
    assert capsys.readouterr().err == ""


def test_no_event_is_asked_while_a_graph_is_captured(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = Gpu()
    for _ in range(gpu.every + 1):
        gpu.step()
    assert len(gpu.device._unread) == 1
    gpu.capturing, gpu.done = True, gpu.now
    for _ in range(gpu.every):
        gpu.step()
    assert not gpu.seconds
    assert capsys.readouterr().err == ""


def test_an_error_of_the_driver_ends_it_for_good_and_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = Gpu()
    for _ in range(gpu.every):
        gpu.step()

    def refuse(**_: object) -> None:
        raise RuntimeError("CUDA error")

    gpu.cuda.Event = refuse
    for _ in range(5 * gpu.every):
        gpu.step()
    assert not gpu.seconds
    assert capsys.readouterr().err.count("time on the GPU is no longer timed: RuntimeError: CUDA error") == 1
