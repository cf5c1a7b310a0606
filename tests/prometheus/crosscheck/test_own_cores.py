"""What Prometheus decides about a run's own cores, against the same recording judged in numpy."""

from __future__ import annotations

from pathlib import Path

from stepscope.exporter.sampling.sample import HostUse, RunSample, Sample
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.crosscheck import COMMITTED, crosscheck
from tests.support.prometheus import needs_prometheus

pytestmark = needs_prometheus

START, INTERVAL, RUN = 1_700_000_000.0, 0.5, "train-12345678"
SAMPLES = 3000
NOISY = range(1000, 2000)  # samples in which others use its cores
LIMITED = range(1500, SAMPLES)  # in which its limit stops it


def record(directory: Path) -> None:
    """A run of 25 minutes that may use 2 of 4 cores, with a limit of 1.5."""
    writer = RecordingWriter(directory, "node-a", INTERVAL, RUN)
    own = others = waited = stopped = 0.0
    for number in range(SAMPLES):
        own += 1.5 * INTERVAL
        others += (2.0 if number in NOISY else 0.1) * INTERVAL
        waited += (2.0 if number in NOISY else 0.01) * INTERVAL
        stopped += (1.0 if number in LIMITED else 0.0) * INTERVAL
        sample = Sample(START + INTERVAL * number, cpus=tuple("0123"), cpu_utilization_ratio=[0.5] * 4)
        host = HostUse(
            ("0", "1"),
            allowed_cores=1.5,
            cpu_limit_cores=1.5,
            cpu_seconds=own,
            other_cpu_seconds=others,
            main_threads_ran_seconds=own,
            main_threads_waited_seconds=waited,
            cpu_throttled_seconds=stopped,
        )
        sample.runs = {RUN: RunSample(host=host)}
        writer.sample(sample)
        if number % 100 == 0:
            writer.catch_up()
    writer.close()


def test_prometheus_decides_as_numpy_does_about_limits_and_neighbours(tmp_path: Path) -> None:
    record(tmp_path)
    answer = crosscheck("--recording", tmp_path, "--rules", COMMITTED)
    assert answer.stdout.splitlines()[-1] == "No disagreement."
    rows = {line.split()[0]: line.split()[2:] for line in answer.stdout.splitlines()[1:] if RUN in line}
    for rule in ("CPUThrottled", "NoisyNeighbour"):
        evaluations, firing, values, *_ = map(int, rows[rule])
        assert values > evaluations > firing > 0, rule
