"""`trainwatch crosscheck --prometheus URL --recording DIR`: what Prometheus says against every sample."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trainwatch.crosscheck.hidden.check import NOT_REPLAYED
from trainwatch.demo.node import INTERVAL, NODE
from trainwatch.prometheus_rules.files import RULES, render
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.promql import Scraping
from trainwatch.runs.recording.files import RunFile
from trainwatch.runs.recording.writer import RecordingWriter

from tests.support.crosscheck import ALERTING, crosscheck, evaluating, table
from tests.support.demo import DemoProcess
from tests.support.prometheus import Prometheus, needs_prometheus
from tests.support.recording import rewrite

pytestmark = [pytest.mark.servers, needs_prometheus]

OPTIONS = Options(
    (
        "CPUBottleneck.patience=20",
        "LoadBalancing.patience=20",
        "ThermalThrottling.patience=20",
        *(
            f"{rule}.{word}=20"
            for rule in ("LowGPUUtilization", "BatchSize")
            for word in ("patience", "window")
        ),
    ),
    Scraping(1.0),
)


class Observed:
    """A run that goes on: its Prometheus, its recording, and the rules that fire soon."""

    def __init__(self, prometheus: Prometheus, folder: Path) -> None:
        self.prometheus = prometheus
        self.recording = folder / "recording"
        self.rules = folder / RULES
        self.folder = folder
        self.until = time.time()

    def check(self, recording: Path) -> subprocess.CompletedProcess[str]:
        """Of the same time whenever it is asked."""
        return crosscheck(
            *("--prometheus", self.prometheus.url, "--recording", recording),
            *("--rules", self.rules, "--end", self.until),
        )


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("hidden")
    rules = render(OPTIONS)[RULES]
    (folder / RULES).write_text(rules)
    flags = ["--write-recording", folder / "recording", "--duration", "1h"]
    with ExitStack() as stack:
        node = stack.enter_context(DemoProcess("cpu-bottleneck", *flags))
        target = node.url.removeprefix("http://")
        prometheus = stack.enter_context(evaluating(target, rules, folder / "prometheus", "3s"))
        prometheus.wait_for('ALERTS{alertname="TrainwatchCPUBottleneck",alertstate="firing"} offset 8s')
        # However quick the machine: enough evaluations of each rule to compare, and of the firing alert.
        prometheus.wait_for("min(count_over_time(trainwatch:rule_status[1h])) >= 8")
        prometheus.wait_for(
            'count_over_time(ALERTS{alertname="TrainwatchCPUBottleneck",alertstate="firing"}[1h]) >= 6'
        )
        yield Observed(prometheus, folder)


@pytest.fixture(scope="module")
def answer(observed: Observed) -> subprocess.CompletedProcess[str]:
    return observed.check(observed.recording)


def hidden(answer: subprocess.CompletedProcess[str], what: str, series: str) -> tuple[int, float, float, int]:
    """Of the second table: values, largest difference, what may be hidden, excesses."""
    match = re.search(
        rf"(?m)^{what} +{series} +([\d,]+) +([\d.e-]+)(?: s)? +([\d.e-]+)(?: s)? +([\d,]+)$", answer.stdout
    )
    assert match, answer.stdout
    values, excesses = (int(match[number].replace(",", "")) for number in (1, 4))
    return values, float(match[2]), float(match[3]), excesses


def test_what_prometheus_says_is_what_was_sampled(answer: subprocess.CompletedProcess[str]) -> None:
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert answer.stdout.splitlines()[-1] == "No disagreement."
    for rule in ALERTING - NOT_REPLAYED:
        assert hidden(answer, rule, "trainwatch:rule_status")[0] >= 4


def test_each_scrape_has_the_samples_until_then_but_for_those_of_a_scrape_interval(
    answer: subprocess.CompletedProcess[str],
) -> None:
    values, largest, bound, excesses = hidden(answer, "samples", "trainwatch_samples_total")
    assert values > 10
    assert largest <= bound
    assert excesses == 0


def test_a_share_differs_by_no_more_than_the_samples_that_were_not_scraped_yet(
    answer: subprocess.CompletedProcess[str],
) -> None:
    share = "run_instance:trainwatch_cpu_starved:ratio"
    values, largest, bound, excesses = hidden(answer, "CPUBottleneck", share)
    assert values >= 4
    # Nothing is hidden where a scrape and the evaluation come right after a sample.
    assert largest <= bound < 1
    assert excesses == 0


def test_an_alert_is_late_by_no_more_than_scrape_and_evaluation(
    answer: subprocess.CompletedProcess[str],
) -> None:
    assert table(answer)["CPUBottleneck"]["firing"] > 2
    values, late, bound, excesses = hidden(answer, "CPUBottleneck", "ALERTS")
    assert values > 2
    assert late <= bound
    assert excesses == 0


def test_the_recording_of_something_else_is_found_out_by_its_samples_and_its_rules(
    observed: Observed, tmp_path: Path
) -> None:
    """The recording has GPUs that were busy all the time."""
    other = shutil.copytree(
        observed.recording, tmp_path / "recording", ignore=shutil.ignore_patterns(".lock")
    )
    RecordingWriter(other, NODE, INTERVAL, "").close()  # makes parts of journals
    for part in other.glob("*/samples-*.parquet"):
        rewrite(part, with_busy_gpus(pq.read_table(part)))
    answer = observed.check(other)
    assert answer.returncode == 1
    wrong = answer.stdout.splitlines()[-1].removeprefix("Disagreements: ").rstrip(".").split(", ")
    assert {"CPUBottleneck", "samples"} <= set(wrong)
    assert set(wrong).isdisjoint({"MaxInitializationTime", "TrainingStalled", "GPUMemoryLeak"})
    assert hidden(answer, "samples", "trainwatch_samples_total")[3] == 0
    assert hidden(answer, "samples", "trainwatch_gpu_starved_samples_total")[3] > 0
    assert re.search(
        r"(?m)^samples: \S+Z trainwatch_gpu_starved_samples_total\{.*\}: "
        r"expected \d+( to \d+)?, Prometheus has \d+$",
        answer.stdout,
    )


def with_busy_gpus(table: pa.Table) -> pa.Table:
    name = "gpu_utilization_ratio"
    shape = table.column(name).type.list_size
    busy = pa.array(np.ones(len(table) * shape, np.float32))
    return table.set_column(
        table.schema.get_field_index(name), name, pa.FixedSizeListArray.from_arrays(busy, shape)
    )


def test_a_prometheus_that_has_not_seen_the_run_says_so(observed: Observed, tmp_path: Path) -> None:
    other = shutil.copytree(
        observed.recording, tmp_path / "recording", ignore=shutil.ignore_patterns(".lock")
    )
    file, _ = RunFile.read(other)
    assert file is not None
    replace(file, name="another").write(other)
    answer = observed.check(other)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("trainwatch: --run another: Prometheus has no samples of it in that time")
