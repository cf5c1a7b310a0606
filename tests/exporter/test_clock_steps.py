"""A clock that is set by an hour, as NTP does: every value stays, except moments that begin after it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from stepscope.demo.node import INTERVAL
from stepscope.exporter.exporter import Exporter
from stepscope.runs.model import NodeSamples
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.live import LiveRecording

from tests.support.demo import Node, simulated
from trials.simulated_node import kill

HOUR = 3600.0


def set_clock(node: Node, seconds: float) -> None:
    """Sets the clock of the node; the simulation goes on."""
    node.clock.step(seconds)
    node.simulation.start += seconds


def shown(seconds: float) -> dict[str, float]:
    """Returns what a node shows whose clock is set while it trains, and one of whose ranks is killed."""
    with simulated("healthy", run="run") as node:
        node.go(75)
        set_clock(node, seconds)
        node.go(45)
        kill(node.simulation, node.simulation.runs[0], 3)
        node.go(20)
        lines = node.exporter.scrape("text").decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {
        name: float(value) for name, value in found.items() if name.startswith(("stepscope_r", "stepscope_a"))
    }


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, -90.0])
def test_no_value_of_a_run_changes_when_the_clock_is_set(seconds: float) -> None:
    """An age may begin one look late."""
    right, found = shown(0.0), shown(seconds)
    assert found == pytest.approx(right, abs=INTERVAL)


def test_the_times_of_a_recording_go_on_when_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = Exporter([], node="node", recording=LiveRecording(tmp_path))
    exporter.tick()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - HOUR)
    exporter.tick()
    exporter.close()
    (samples,) = RecordingDirectory(tmp_path).read()
    assert isinstance(samples, NodeSamples)
    assert np.all(np.diff(samples.times) > 0)
