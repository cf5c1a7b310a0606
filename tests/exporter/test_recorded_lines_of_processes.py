"""An exporter that records lines: only if it was asked to, and of processes that sample them."""

import os
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.runs.recording.directory import RecordingDirectory

from tests.support.exporter_process import ExporterProcess
from tests.support.training_script import EXPORTER, go_on, training, wait_for_line

TRAIN = """
stepscope.start(run="lines", rank=3, world_size=4)
def spin():
    for i in range(1000): i * i
end = time.monotonic() + 3
while time.monotonic() < end:
    with stepscope.step():
        spin()
hold()
"""
SAMPLED = {
    "STEPSCOPE_INSTRUMENT": "1",
    "STEPSCOPE_LINES": "1",
    "PYTHONPATH": f"{STARTUP}{os.pathsep}{EXPORTER}",
}


@pytest.mark.parametrize("asked", [True, False])
def test_lines_are_recorded_only_by_an_exporter_that_was_asked_to(asked: bool, tmp_path: Path) -> None:
    ledgers, recording = tmp_path / "ledgers", tmp_path / "recording"
    words = ("--ledger-dir", ledgers, "--recording.dir", recording, "--node=n1", "--sample-interval=100ms")
    with (
        ExporterProcess(*words, *(["--recording.lines"] if asked else [])) as exporter,
        training(TRAIN, ledgers, SAMPLED, file=tmp_path / "train.py") as process,
    ):
        wait_for_line(process)
        go_on(process)
        assert process.wait() == 0
        assert exporter.stop() == 0
    source = RecordingDirectory(recording)
    assert sum(map(len, source.read())) > 0
    if not asked:
        assert source.facts.threads == ()
        return
    (thread,) = source.facts.threads
    assert (thread.node, thread.rank, thread.role) == ("n1", 3, "training")
    longest = max(thread.lines, key=lambda line: line.total)
    assert (longest.phase, longest.function) == ("train", "spin")
