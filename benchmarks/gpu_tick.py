"""Measures the CPU time of one tick of the GPU collector, with the fake NVML library and 8 GPUs.

The measured time includes the fake library's own work (a look at its control file at each call), but not
that of a real driver. Run as `python -m benchmarks.gpu_tick`.
"""

import tempfile
import time
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path

import pynvml
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.nvidia.device import FAST_FIELDS
from stepscope.exporter.nvidia.nvml import FieldBatch, Nvml
from stepscope.exporter.sampling.sample import Sample

from benchmarks import Row
from benchmarks.measure import cpu_seconds
from tests.support.fake_nvml import FakeNvml

GPUS = 8
TICKS = 200
OFTEN = 200
PAUSE_SECONDS = 0.002  # before a tick, so that the threads sleep in between as usual


def rows() -> list[Row]:
    """Returns (what, measured, unit, budget) of each measurement."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml(Path(folder), gpus=GPUS)
        tick = _tick_milliseconds(fake)
        ours, theirs = _field_batch_microseconds(fake)
    size = f"{len(FAST_FIELDS)} fields"
    return [
        (f"GPU collector, a tick of {GPUS} GPUs", tick, "ms CPU", "<= 1.5 ms for the whole tick"),
        (f"one batch of {size}, reused buffer", ours, "us CPU", ""),
        (f"one batch of {size}, pynvml's wrapper", theirs, "us CPU", ""),
    ]


def _tick_milliseconds(fake: FakeNvml) -> float:
    """Returns the CPU time of both threads, the sampler's and NVML's, for one tick."""
    now = 0.0
    collector = GpuCollector(fake.library, clock=lambda: now)

    def before_each() -> None:
        nonlocal now
        now += 0.5  # for the collector, so that the slow tiers are read as often as usual
        time.sleep(PAUSE_SECONDS)

    try:
        return cpu_seconds(lambda: collector.collect(Sample(time.time())), TICKS, before_each) * 1e3
    finally:
        collector.close()


def _field_batch_microseconds(fake: FakeNvml) -> tuple[float, float]:
    """Returns the time to read a batch and its values, with `Nvml` and with pynvml's functions."""
    nvml = Nvml(fake.library)
    nvml.start()
    handle = nvml.handle(0)
    batch = FieldBatch(FAST_FIELDS)
    pynvml.nvmlLib = CDLL(str(fake.library))

    def theirs() -> None:
        fields = pynvml.nvmlDeviceGetFieldValues(handle, FAST_FIELDS)
        {field.fieldId: field.value.ullVal for field in fields if field.nvmlReturn == 0}

    def ours() -> None:
        nvml.fields(handle, batch)

    try:
        return cpu_seconds(_often(ours), 20) / OFTEN * 1e6, cpu_seconds(_often(theirs), 20) / OFTEN * 1e6
    finally:
        nvml.stop()


def _often(call: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls `call` many times, because one call takes only microseconds."""

    def calls() -> None:
        for _ in range(OFTEN):
            call()

    return calls


if __name__ == "__main__":
    for what, measured, unit, budget in rows():
        print(f"{what:45} {measured:8.2f} {unit:7} {budget}")
