"""A recording of several nodes that were taken for a time, as exporters of a cluster leave it."""

from pathlib import Path

from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.recording import START, sample

INTERVAL = 5.0  # seconds between samples: the fewer, the faster the test


def rented_nodes(directory: Path, nodes: int, seconds: float, name: str = "published") -> Path:
    """Records so many nodes with 2 cores each, over a run of so many seconds. No step is recorded."""
    for node in range(nodes):
        writer = RecordingWriter(directory, f"node-{node}", INTERVAL, name)
        for tick in range(int(seconds // INTERVAL)):
            writer.sample(sample(tick, gpus=(), interval=INTERVAL))
            writer.catch_up()
        writer.close()
    RunFile(name, START, START + seconds, "python train.py", 0, INTERVAL, {"stepscope": "1"}).write(directory)
    return directory
