"""`stepscope crosscheck` with the rules of a demo that runs faster than the clock."""

from pathlib import Path

import numpy as np
import pytest
from stepscope.commands.cli import main
from stepscope.measurements.scraped import Labels, Points
from stepscope.prometheus.crosscheck.readings import Readings
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Server
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options

CALLED = frozenset({("run", "resnet")})


class Counting(Server):
    """A counter that gains 6 a second, scraped each second."""

    closed_on_the_left = True

    def __init__(self) -> None:
        pass

    def points(self, selector: str, start: Milliseconds, end: Milliseconds) -> dict[Labels, Points]:
        times = np.arange(start, end + 1, 1000, dtype=np.int64)
        return {CALLED: (times, times.astype(np.float64) * 0.006)}


def test_a_window_of_a_minute_is_six_seconds_of_the_server_and_looks_like_a_minute() -> None:
    readings = Readings(Counting(), "resnet", Grid(600_000, 15_000, 2), speed=10)
    ((times, values),) = readings.at(1).over("some_total", 60).values()
    assert times[-1] == 615_000
    assert times[-1] - times[0] == 60_000
    assert values[-1] - values[0] == pytest.approx(36)


def test_a_recording_is_not_checked_with_the_rules_of_a_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RULES).write_text(render(Options(speed=10))[RULES])
    assert main(["crosscheck", "--recording", "run", "--rules", str(tmp_path / RULES)]) == 2
    assert "--rules were rendered with --speed" in capsys.readouterr().err
