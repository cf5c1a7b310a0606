"""What Prometheus decides about a run's cores and memory, against the same recording judged in numpy."""

from pathlib import Path

from stepscope.exporter.sampling.sample import HostUse, RunSample, Sample
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.crosscheck import COMMITTED, crosscheck
from tests.support.prometheus import needs_prometheus

START, INTERVAL, RUN = 1_700_000_000.0, 0.5, "train-12345678"
SAMPLES = 3600
CROWDED = range(1000, 2000)  # samples in which others use its cores, and a process waits for memory
LIMITED = range(1500, SAMPLES)  # in which its limit stops it
CAPACITY = 64e9


def record(directory: Path) -> None:
    """A run of 30 minutes on 2 of 4 cores with a limit of 1.5, whose memory grows by a point a minute."""
    writer = RecordingWriter(directory, "node-a", INTERVAL, RUN)
    own = others = waited = stopped = swapped = 0.0
    for number in range(SAMPLES):
        own += 1.5 * INTERVAL
        others += (2.0 if number in CROWDED else 0.1) * INTERVAL
        waited += (2.0 if number in CROWDED else 0.01) * INTERVAL
        stopped += (1.0 if number in LIMITED else 0.0) * INTERVAL
        swapped += (0.4 if number in CROWDED else 0.0) * INTERVAL
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
            anonymous_memory_bytes=CAPACITY * (0.2 + 0.01 * number * INTERVAL / 60),
            memory_capacity_bytes=CAPACITY,
            waiting_seconds={"memory": swapped},
        )
        sample.runs = {RUN: RunSample(host=host)}
        writer.sample(sample)
        if number % 100 == 0:
            writer.catch_up()
    writer.close()


@needs_prometheus
def test_prometheus_decides_as_numpy_does_about_limits_neighbours_and_memory(tmp_path: Path) -> None:
    record(tmp_path)
    answer = crosscheck("--recording", tmp_path, "--rules", COMMITTED)
    assert (answer.returncode, answer.stdout.splitlines()[-1]) == (0, "No disagreement.")
    rows = {line.split()[0]: line.split()[2:] for line in answer.stdout.splitlines()[1:] if RUN in line}
    for rule in ("CPUThrottled", "NoisyNeighbour", "MemoryPressure", "HostMemoryLeak"):
        evaluations, firing, values, *_ = map(int, rows[rule])
        assert values > evaluations > firing > 0, rule
