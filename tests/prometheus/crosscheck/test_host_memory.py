"""What Prometheus decides about a run's memory, against the same recording judged in numpy."""

from __future__ import annotations

from pathlib import Path

from stepscope.exporter.sampling.sample import HostUse, RunSample, Sample
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.crosscheck import COMMITTED, crosscheck
from tests.support.prometheus import needs_prometheus

pytestmark = needs_prometheus

START, INTERVAL, RUN = 1_700_000_000.0, 0.5, "train-12345678"
SAMPLES = 3600
SWAPS = range(1000, 2000)  # samples in which a process waits for memory
CAPACITY = 64e9


def record(directory: Path) -> None:
    """A run of 30 minutes whose memory grows by a point a minute."""
    writer = RecordingWriter(directory, "node-a", INTERVAL, RUN)
    waited = 0.0
    for number in range(SAMPLES):
        waited += (0.4 if number in SWAPS else 0.0) * INTERVAL
        sample = Sample(START + INTERVAL * number, cpus=("0",), cpu_utilization_ratio=[0.5])
        host = HostUse(
            anonymous_memory_bytes=CAPACITY * (0.2 + 0.01 * number * INTERVAL / 60),
            memory_capacity_bytes=CAPACITY,
            waiting_seconds={"memory": waited},
        )
        sample.runs = {RUN: RunSample(host=host)}
        writer.sample(sample)
        if number % 100 == 0:
            writer.catch_up()
    writer.close()


def test_prometheus_decides_as_numpy_does_about_memory(tmp_path: Path) -> None:
    record(tmp_path)
    answer = crosscheck("--recording", tmp_path, "--rules", COMMITTED)
    assert answer.stdout.splitlines()[-1] == "No disagreement."
    rows = {line.split()[0]: line.split()[2:] for line in answer.stdout.splitlines()[1:] if RUN in line}
    for rule in ("MemoryPressure", "HostMemoryLeak"):
        evaluations, firing, values, *_ = map(int, rows[rule])
        assert values > evaluations > firing > 0, rule
