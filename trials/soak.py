"""A long life of the exporter in a short time: memory, descriptors and threads are the same at its end.

The clock is simulated. Every period of the same length, runs, GPUs and devices come and go in the same way
under new names. So whatever the exporter has at the end of a period, it must have at the end of every other.
"""

import gc
import logging
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import psutil
import pynvml
from stepscope.demo.gpus import SimulatedNvml
from stepscope.demo.node import SimulatedClock
from stepscope.demo.ranks import AliveReader, RankLedger
from stepscope.demo.scenario import Scenario, Step, Work
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.collectors.disk import DiskCollector
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.collectors.gpu_holders import GpuHoldersCollector
from stepscope.exporter.collectors.memory import MemoryCollector
from stepscope.exporter.collectors.network import NetworkCollector
from stepscope.exporter.collectors.run_gpus import RunGpusCollector
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.nvidia.nvml import FieldBatch, Handle, NvmlError
from stepscope.exporter.sampling.limits import Limits

from trials import Attempt, trial

START = 1_790_000_000.0
INTERVAL = 0.5  # simulated seconds
SCRAPE_TICKS = 30
PERIOD = 400  # ticks
LIFE = 100  # ticks from the first run's start to the end of all
RETENTION = 60.0  # seconds, 120 ticks: what ends in a period is forgotten within it
PATIENCE = 60.0
BLOCKS = 100  # Python's own caches vary by less
BLOCKS_OF_USE = 3  # what _Use itself takes: a tuple and two large numbers
KIBIBYTES = 4096


@trial(
    "While runs, GPUs and devices come and go for days, memory, descriptors and threads stay the same.",
    count=1_000_000,
    short=2_400,
    of="ticks",
)
def soak(attempt: Attempt) -> str:
    # in an interpreter that has done nothing else: what others left in this one may go, or grow, at any time
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        return own.submit(_soak, attempt).result()


def _soak(attempt: Attempt) -> str:
    logging.getLogger("stepscope").setLevel(logging.CRITICAL)  # its lines of days
    node = _Node(attempt.folder)
    uses: list[_Use] = []  # at the end of each period
    warm = max(attempt.count // 4, 3 * PERIOD)
    series = 0
    for tick in attempt.rounds():
        node.tick(tick)
        if tick % SCRAPE_TICKS == 0:
            text = node.exporter.scrape("openmetrics")
            assert b'success{collector="training"} 1\n' in text, text[-2000:]
            series = max(series, text.count(b"\n"))
        if tick % PERIOD == PERIOD - 1:
            uses.append(_Use.now())
    node.exporter.close()
    first, last = uses[warm // PERIOD - 1], uses[-1]
    of_uses = (len(uses) - warm // PERIOD) * BLOCKS_OF_USE
    for what, grown, allowed in (
        ("descriptors", last.descriptors - first.descriptors, 0),
        ("threads", last.threads - first.threads, 0),
        ("blocks of memory in Python", last.blocks - first.blocks - of_uses, BLOCKS),
        ("KiB of memory", last.kibibytes - first.kibibytes, KIBIBYTES),
    ):
        assert grown <= allowed, f"{grown} more {what} after {attempt.count:,} ticks"
    return (
        f"{attempt.count * INTERVAL / 3600:,.0f} hours with {node.runs:,} runs; at the end {last.descriptors}"
        f" descriptors and {last.threads} threads, as at the beginning; memory grew by"
        f" {max(0, last.kibibytes - first.kibibytes):,} KiB; at most {series:,} lines per scrape"
    )


class _Use(NamedTuple):
    """Resources of this process."""

    descriptors: int
    threads: int
    blocks: int
    kibibytes: int

    @classmethod
    def now(cls) -> "_Use":
        sys._clear_type_cache()  # it keeps names alive, more with each file that is opened
        gc.collect()
        return cls(
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            sys.getallocatedblocks(),
            psutil.Process().memory_info().rss // 1024,
        )


class _Node:
    """An exporter and what it reads."""

    def __init__(self, folder: Path) -> None:
        self.runs = 0
        self._procfs = folder / "proc"
        self._ledgers = folder / "ledgers"
        self._ledgers.mkdir()
        (self._procfs / "net").mkdir(parents=True)
        (self._procfs / "meminfo").write_text(
            "MemTotal: 4000 kB\nMemAvailable: 1000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
        )
        self._clock = SimulatedClock(START)
        self._nvml = _Gpus()
        self._live: list[RankLedger] = []
        self._living: set[Path] = set()
        self.exporter = Exporter(
            [
                CpuCollector(self._procfs),
                DiskCollector(self._procfs),
                _PatientGpus(clock=self._clock.monotonic, nvml=self._nvml),
                MemoryCollector(self._procfs),
                NetworkCollector(self._procfs),
                TrainingCollector(
                    self._ledgers, RETENTION, open_ledger=partial(AliveReader, living=self._living)
                ),
                RunGpusCollector(),
                GpuHoldersCollector(),
            ],
            interval=INTERVAL,
            run="always",
            state_directory=folder,
            run_retention=RETENTION,
            limits=Limits(runs=3, series=3000, devices=16),
            clock=self._clock,
            patience=PATIENCE,
        )

    def tick(self, number: int) -> None:
        """Changes the node, then takes a sample."""
        period, phase = divmod(number, PERIOD)
        if phase in (0, 10, 20):  # with that of the flag, one more than the limit
            self._begin(f"run-{period}-{phase}", ranks=2)
        elif phase == 30:  # a second process of a rank
            self._begin(f"run-{period}-0", ranks=1)
        elif phase == LIFE:
            self._end()
        if phase % 20 == 0:
            self._write_devices(period, phase)
        self._nvml.lost = {1} if 50 < phase < 70 else set()
        for ledger in self._live:
            self._step(ledger, number)
        self._nvml.gpus[0].pids = (number,)  # another process at every look
        self._write_stat(number)
        self._clock.advance(INTERVAL)
        self.exporter.tick()

    def _begin(self, run: str, ranks: int) -> None:
        now = self._clock.time()
        started = [RankLedger(self._ledgers, run, rank, Scenario(), now) for rank in range(ranks)]
        self._live += started
        self._living.update(ledger.path for ledger in started)
        self.runs += 1

    def _end(self) -> None:
        """Ends half of the processes normally, and kills the others."""
        for number, ledger in enumerate(self._live):
            if number % 2:
                ledger.finish(0.0)
            else:
                ledger._ledger._close()
        self._live.clear()
        self._living.clear()

    def _step(self, ledger: RankLedger, number: int) -> None:
        begin = number * INTERVAL
        ledger.record(Step(number, Work(data_wait=0.1, forward=0.1, backward=0.2), begin, begin + 0.4, 0.0))

    def _write_stat(self, number: int) -> None:
        line = f" {number * 25} 0 0 {number * 25} 0 0 0 0 0 0\n"
        (self._procfs / "stat").write_text("".join(f"cpu{core}{line}" for core in range(8)))

    def _write_devices(self, period: int, phase: int) -> None:
        """Writes 25 interfaces and 20 disks, of which 5 are new."""
        names = [*range(20), *(f"{period}-{phase}-{new}" for new in range(5))]
        counters = "1 0 0 0 0 0 0 0 " * 2
        networks = "".join(f"net{name}: {counters}\n" for name in names)
        (self._procfs / "net" / "dev").write_text(f"Inter-|\n face |\n{networks}")
        disks = "".join(f"8 0 disk{name} 1 0 8 0 1 0 8 0 0 5 5 0 0 0 0\n" for name in names[5:])
        (self._procfs / "diskstats").write_text(disks)


class _PatientGpus(GpuCollector):
    def patience(self, interval: float) -> float:
        return PATIENCE


class _Gpus(SimulatedNvml):
    """Two GPUs, which can get lost."""

    def __init__(self) -> None:
        super().__init__()
        del self.gpus[2:]
        self.lost: set[Handle] = set()

    def fields(self, handle: Handle, batch: FieldBatch) -> dict[int, float]:
        if handle in self.lost:
            raise NvmlError("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_GPU_IS_LOST)
        return super().fields(handle, batch)

    def utilization(self, handle: Handle) -> tuple[int, int]:
        if handle in self.lost:
            raise NvmlError("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_GPU_IS_LOST)
        return super().utilization(handle)
