"""The whole scrape of a made-up node, 2 GPUs and 2 runs, against a golden file; `make golden` renews it.

The host is files, the GPUs are the fake NVML, the ledgers are written by real training processes whose
clock the test turns. What still varies from run to run is masked: see VARIES.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from difflib import unified_diff
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from stepscope.exporter.collectors import discover
from stepscope.exporter.collectors.file_systems import FileSystemsCollector
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.collectors.gpu_holders import GpuHoldersCollector
from stepscope.exporter.collectors.rank_pauses import RankPausesCollector
from stepscope.exporter.collectors.run_gpus import RunGpusCollector
from stepscope.exporter.collectors.run_processes import RunProcessesCollector
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.ledgers.run_totals import OperatorSeconds
from stepscope.exporter.sampling.exposition import Format
from stepscope.exporter.sampling.sampler import Clock

from tests.support.fake_nvml import FakeNvml
from tests.support.host_collectors import host_collectors
from tests.support.prometheus import needs_prometheus
from tests.support.training_process import RESNET, TrainingProcess

HOST = Path(__file__).parent / "collectors" / "fixtures" / "host" / "proc"
GOLDEN = Path(__file__).parent / "golden"
CLOCK = 1_790_000_000.0
TICKS = 4

VARIES = re.compile(
    r"^((?:process_|stepscope_collector_duration_seconds)\S*) \S+$"
    r'|(?<=[{,])(version|python_version|python_implementation|user)="[^"]*"',
    re.MULTILINE,
)


def advance(stat: Path) -> None:
    """Half a second of a host whose first core is pinned and whose others are half idle."""
    lines = stat.read_text().splitlines()
    for index, line in enumerate(lines):
        if re.match(r"cpu\d", line):
            name, user, nice, system, idle, *rest = line.split()
            busy = 50 if name == "cpu0" else 25
            counters = [int(user) + busy, nice, system, int(idle) + 50 - busy, *rest]
            lines[index] = " ".join([name, *map(str, counters)])
    stat.write_text("\n".join(lines) + "\n")


def train(trainer: TrainingProcess) -> None:
    trainer.do("stepscope.start(framework='pytorch', framework_version='2.13.0'); clock.now += 8.0")
    trainer.do(
        "def batches():\n"
        "    for wait in (0.25, 0.0, 0.5):\n"
        "        clock.now += wait\n"
        "        yield wait\n"
        "settings = dict(workers=2, pin_memory=False, prefetch_factor=4, batch_size=32)\n"
        "for _ in stepscope.watch(batches(), **settings):\n"
        "    with stepscope.step('train'):\n"
        "        with stepscope.component('forward'):\n"
        "            clock.now += 0.125\n"
        "        with stepscope.component('backward'):\n"
        "            clock.now += 0.25\n"
        "@stepscope.fetch\n"
        "def fetch():\n"
        "    clock.now += 0.0625\n"
        "fetch()\n"
    )
    trainer.steps(1.0, phase="eval")


class TurnedClock(Clock):
    """The system's clock, but monotonic time is the only one of `now`."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Exporter]:
    """A node after some ticks: `resnet` trains on two ranks, `bert` has ended."""
    ledgers, procfs = tmp_path / "ledgers", Path(shutil.copytree(HOST, tmp_path / "proc"))
    nvml = FakeNvml(tmp_path / "nvml", gpus=2)
    nvml.set(1, utilization=5)
    clock = [1000.0]  # half a second passes from tick to tick
    gpus = GpuCollector(nvml.library, clock=lambda: clock[0], longest_patience=20)
    # By the processes' clock bert ended long ago, but its end is still published.
    training = TrainingCollector(ledgers, retention=1e10)
    use = RunProcessesCollector(procfs, tmp_path / "cgroup")  # where the run's processes are out of sight
    pauses = RankPausesCollector(procfs, tmp_path / "cgroup")
    of_runs = [use, pauses, RunGpusCollector(), GpuHoldersCollector(), FileSystemsCollector(procfs)]
    own = [*host_collectors(procfs), gpus, training, *of_runs]
    order = [each.name for each in discover()]
    collectors = sorted(own, key=lambda collector: order.index(collector.name))
    assert [each.name for each in collectors] == order
    with TrainingProcess(ledgers, "bert", clock=CLOCK - 3600) as trainer:
        trainer.steps(2.0)
    # How long the GPU collector waits follows from the interval.
    exporter = Exporter(collectors, interval=20.0, state_directory=ledgers, clock=TurnedClock(clock))
    with (
        TrainingProcess(ledgers, clock=CLOCK) as rank_0,
        TrainingProcess(ledgers, rank=1, clock=CLOCK) as rank_1,
    ):
        train(rank_0)
        rank_1.steps(0.5)
        operators = OperatorSeconds()
        operators.add({"aten::mm": 0.25, "other": 0.125})
        for _ in range(TICKS):
            exporter.tick()
            for key, run in training.folder.runs.items():
                if key.run == RESNET:  # as if it had profile windows
                    run.operators = {(0, "cpu"): operators}
            advance(procfs / "stat")
            clock[0] += 0.5
        yield exporter
        exporter.close()


def scrape(node: Exporter, format: Format) -> str:
    """A scrape with its varying values masked."""
    return VARIES.sub(
        lambda match: f"{match[1]} VARIES" if match[1] else f'{match[2]}="VARIES"',
        node.scrape(format).decode(),
    )


def test_the_golden_scrape_in_both_formats(node: Exporter, golden: Callable[[Path, str], None]) -> None:
    text, openmetrics = scrape(node, "text"), scrape(node, "openmetrics")
    golden(GOLDEN / "scrape.txt", text)
    differing = unified_diff(text.splitlines(True), openmetrics.splitlines(True), n=0)
    golden(
        GOLDEN / "scrape.openmetrics.diff",
        "".join(line for line in differing if line[:2] not in ("--", "++", "@@")),
    )


def test_both_formats_hold_the_same_samples_for_prometheus_own_parsers(node: Exporter) -> None:
    text = samples(parse_text(node.scrape("text").decode()))
    families = parse_openmetrics(node.scrape("openmetrics").decode())  # type: ignore[no-untyped-call]
    openmetrics = samples(families)
    stable = {key for key in text if not key[0].startswith("process_")}
    assert {key: text[key] for key in stable} == {key: openmetrics[key] for key in stable}
    assert text.keys() == openmetrics.keys()
    assert text["stepscope_samples_total", frozenset({("run", RESNET)})] == TICKS
    starved = {("run", RESNET), ("cause", "cpu"), ("cause_above", "0.9"), ("gpu_below", "0.1")}
    assert text["stepscope_gpu_starved_samples_total", frozenset(starved)] == TICKS - 1  # no CPU at first


def samples(families: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@needs_prometheus
def test_promtool_has_no_complaint_about_the_scrape(node: Exporter) -> None:
    result = subprocess.run(["promtool", "check", "metrics"], input=node.scrape("text"), capture_output=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
