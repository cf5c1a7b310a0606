"""What a sampler and a ledger would hand to a recording."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerTotals, LoaderTotals, StepRecord
from stepscope.exporter.sampling.sample import GpuSample, Sample
from stepscope.runs.model import COMPONENTS, NodeSamples, Steps
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import write_part

START = 1_700_000_040.0  # a whole minute


def sample(tick: int, cores: int = 2, gpus: Iterable[str] = ("0", "1"), interval: float = 0.5) -> Sample:
    """The tick-th sample: every value can be told from those of other ticks and devices."""
    return Sample(
        time=START + tick * interval,
        interval=interval,
        cpus=tuple(str(core) for core in range(cores)),
        cpu_utilization_ratio=[(tick % 100) / 100 + core / 1000 for core in range(cores)],
        cpu_io_wait_ratio=[core / 1000 for core in range(cores)],
        memory_used_bytes=1e9 + tick,
        memory_total_bytes=4e9,
        swap_used_bytes=0.0,
        disk_read_bytes=1000.0 * tick,
        disk_written_bytes=500.0 * tick,
        network_receive_bytes=100.0 * tick,
        network_transmit_bytes=50.0 * tick,
        gpus={
            gpu: GpuSample(
                utilization_ratio=(tick % 50) / 50,
                memory_used_bytes=10e9,
                memory_total_bytes=80e9,
                power_watts=300.0 + int(gpu),
                temperature_celsius=60.0,
                clock_hertz=1.98e9,
                thermal_throttle_seconds=0.25 * tick,
                power_throttle_seconds=0.125 * tick,
                ecc_uncorrected_errors=2.0,
                xid_errors=1.0 + int(gpu),
                last_xid=63.0,
                power_limit_watts=700.0,
                model="NVIDIA H100",
                uuid=f"GPU-{gpu}",
            )
            for gpu in gpus
        },
        driver_version="550.54",
    )


def header(rank: int = 0, pid: int = 100, start: float = START) -> LedgerHeader:
    return LedgerHeader(
        run="resnet",
        rank=rank,
        local_rank=rank,
        world_size=2,
        pid=pid,
        start=start,
        framework="pytorch",
        framework_version="2.13",
    )


def step(number: int, phase: str = "train") -> StepRecord:
    components = tuple(0.01 * (index + 1) for index in range(len(COMPONENTS)))
    return StepRecord(number, phase, START + number * 0.5, 0.4 + number / 1e6, components)


def totals(steps: int, end: float | None = None) -> LedgerTotals:
    return LedgerTotals(
        first_step_start=START,
        last_step_end=START + steps * 0.5,
        end=end,
        steps={"train": steps},
        step_histogram={},
        step_squared_seconds={},
        phase_seconds={"train": steps * 0.4, "initialization": 1.0, "other": 0.5},
        component_seconds={"forward": steps * 0.1},
        loaders=(
            LoaderTotals("train", 4, True, 2, (1, 2, 3), 0.6, None, 32),
            LoaderTotals("eval", None, None, None, (1,), 0.1, None),
        ),
        fetch_counts=(5, 6),
        fetch_sum=3.0,
        fetch_cpu_seconds=2.5,
        fetch_core_wait_seconds=0.5,
        steps_recorded=steps,
        gauges={"loss": 1 / (steps + 1), "global_step": steps},
        counts={"tokens": 4096.0 * steps},
    )


def the_part(folder: Path, table: str, number: int = 1) -> Path:
    """The path of a part, whose name has its checksum."""
    (path,) = folder.glob(f"{table}-{number:06d}.*parquet")
    return path


def rewrite(part: Path, rows: pa.Table) -> None:
    """Replaces the rows of a part; its name follows."""
    table, number = part.name.partition(".")[0].split("-")
    part.unlink()
    write_part(part.parent, table, int(number), rows)


class Seen:
    """Collects what a source gives, over several reads."""

    def __init__(self, directory: Path) -> None:
        self.source = RecordingDirectory(directory)
        self.samples: list[NodeSamples] = []
        self.steps: list[Steps] = []

    def read(self) -> "Seen":
        for chunk in self.source.read():
            if isinstance(chunk, NodeSamples):
                self.samples.append(chunk)
            else:
                self.steps.append(chunk)
        return self

    def ticks(self, interval: float = 0.5) -> list[int]:
        """The ticks of the samples, in the order in which they came."""
        return [round((time - START) / interval) for chunk in self.samples for time in chunk.times]

    def numbers(self, rank: int = 0) -> list[int]:
        """The numbers of the rank's steps, in the order in which they came."""
        return [int(number) for chunk in self.steps if chunk.rank == rank for number in chunk.numbers]

    def column(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """A field of NodeSamples over all chunks."""
        return np.concatenate([getattr(chunk, name) for chunk in self.samples])
