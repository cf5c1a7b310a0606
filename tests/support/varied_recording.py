"""A recorded run in which nothing stays as it is: what rules read takes all sorts of values, and ends."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
from stepscope.exporter.ledgers.ages import Place
from stepscope.exporter.ledgers.presence import Presence
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerTotals, LoaderTotals, StepRecord
from stepscope.exporter.sampling.sample import GpuSample, Sample
from stepscope.runs.model import COMPONENTS
from stepscope.runs.recording.writer import RecordingWriter

RUN = "varied"
START = 1_700_000_040.0  # a whole minute
INTERVAL = 0.5
SECONDS = 1500
ENDS = {"node-a": 1300.0, "node-b": 1440.0}  # when the node's processes end, seconds from the start
RANKS = {"node-a": (0, 1), "node-b": (2,)}
GPUS = {"node-a": 3, "node-b": 2}
FIRST_STEP = {0: 60.0, 1: 75.0, 2: 200.0}
STANDSTILL = (700.0, 900.0)
XIDS = ((300, 63), (420, 63), (800, 13), (950, 13), (1100, 94))  # when they come; 13 is the program's
# The name of the loss of some ranks, and what it and the gradient norm are from the standstill on.
LOSSES = {0: ("loss", nan), 2: ("Train/loss", inf)}
LOADERS = {
    0: (("train", 4), ("eval", 2)),
    1: (("eval", 3), ("predict", 1)),  # no loader that trains
    2: (("train", 1), ("eval", 5)),
}


def write_varied(directory: Path, seed: int = 0) -> Path:
    """Writes the recording, with two nodes."""
    for node in GPUS:
        generator = np.random.default_rng([seed, *node.encode()])
        writer = RecordingWriter(directory, node, INTERVAL, RUN)
        for tick in range(round(SECONDS / INTERVAL)):
            writer.sample(_sample(node, tick * INTERVAL, generator))
            if tick % 400 == 0:
                writer.catch_up()
        for rank in RANKS[node]:
            records = _steps(rank, ENDS[node], generator)
            for first in range(0, len(records), 500):
                writer.steps(_header(rank), records[first : first + 500])
                writer.catch_up()
        _write_ranks(writer, node)
        writer.close()
    return directory


def _write_ranks(writer: RecordingWriter, node: str) -> None:
    def write(elapsed: float, alive: bool = True, presences: Sequence[Presence] = ()) -> None:
        ranks = [(_header(rank), _totals(rank, elapsed, alive), alive) for rank in RANKS[node]]
        writer.ranks(ranks, START + elapsed, presences)

    write(1.0)
    began = STANDSTILL[0]
    for elapsed in np.arange(began + 10, STANDSTILL[1], 5):
        write(elapsed, presences=[_presence(rank, elapsed - began) for rank in RANKS[node]])
    write(ENDS[node] - 0.5)
    write(ENDS[node], alive=False)


def _presence(rank: int, seconds: float) -> Presence:
    """In the standstill, rank 1 is in its data loader and the others wait for it."""
    component, operation = ("data_wait", "") if rank == 1 else ("communication", "gradients")
    return Presence("waiting", Place(component, operation, START + STANDSTILL[0]), seconds)


def _sample(node: str, elapsed: float, generator: np.random.Generator) -> Sample:
    """Every 100 seconds the node does something else."""
    regime = int(elapsed // 100) % 4
    busy = (0.5, 0.97, 0.3, 0.65)[regime]
    waits = (0.02, 0.05, 0.7, 0.6)[regime]
    cores = 4
    gpus = {}
    for gpu in range(GPUS[node]):
        if gpu == 2 and generator.random() < 0.1:
            continue  # it did not answer
        load = float(np.clip(generator.normal((0.9, 0.05, 0.05, 0.02)[(regime + gpu) % 4], 0.2), 0, 1))
        gpus[str(gpu)] = _gpu(node, gpu, elapsed, round(load, 2))
    return Sample(
        time=START + elapsed,
        interval=INTERVAL,
        cpus=tuple(str(core) for core in range(cores)),
        cpu_utilization_ratio=[float(np.clip(generator.normal(busy, 0.1), 0, 1)) for _ in range(cores)],
        cpu_io_wait_ratio=[float(np.clip(generator.normal(waits, 0.1), 0, 1)) for _ in range(cores)],
        memory_used_bytes=1e9,
        memory_total_bytes=4e9,
        gpus=gpus,
    )


def _gpu(node: str, gpu: int, elapsed: float, load: float) -> GpuSample:
    used = (
        0.2 + 0.6 * elapsed / SECONDS,  # leaks
        0.5 + (0.2 if elapsed > 400 else 0) + (0.27 if 1000 < elapsed < 1300 else 0),  # jumps, is nearly full
        0.3 + 0.05 * np.sin(elapsed / 40),
    )[gpu]
    if node == "node-b":
        used = 0.9 + 0.09 * elapsed / SECONDS if gpu == 0 else 0.4  # is full soon
    return GpuSample(
        utilization_ratio=load,
        memory_used_bytes=float(used) * 80e9,
        memory_total_bytes=80e9,
        thermal_throttle_seconds=(0.02 if elapsed < 600 else 0.2) * elapsed * (gpu + 1),
        ecc_uncorrected_errors=float(3 * (elapsed > 500) if gpu == 0 else 2),
        xid_errors=float(sum(elapsed > when for when, _ in XIDS)) if gpu == 1 else 0.0,
        last_xid=next((float(xid) for when, xid in reversed(XIDS) if elapsed > when), 0.0),
        model="NVIDIA H100",
        uuid=f"GPU-{node}-{gpu}",
    )


def _steps(rank: int, end: float, generator: np.random.Generator) -> list[StepRecord]:
    """Steps of both phases, some of them long, with rank 1 slow at the end and a standstill of all ranks."""
    records: list[StepRecord] = []
    numbers = {"train": 0, "eval": 0}
    now = FIRST_STEP[rank]
    while now < end - 3:
        if STANDSTILL[0] < now < STANDSTILL[1]:
            now = STANDSTILL[1]
        phase = "eval" if int(now) % 90 < 15 else "train"
        own = float(generator.gamma(20, 0.02)) * (1.8 if rank == 1 and now > 1000 else 1.0)
        waited = float(generator.gamma(3, (0.01, 0.06)[now > 900]))
        talked = float(generator.gamma(3, (0.005, 0.08)[now > 1200]))
        if rank != 1 and now > 1000:
            talked += 0.32  # waits for rank 1
        stalled = 2.0 if generator.random() < 0.01 else 0.0
        components = dict.fromkeys(COMPONENTS, 0.0)
        components |= {
            "data_wait": waited,
            "communication": talked,
            "forward": own / 2,
            "checkpoint": stalled,
        }
        duration = own + waited + talked + stalled
        records.append(StepRecord(numbers[phase], phase, START + now, duration, tuple(components.values())))
        numbers[phase] += 1
        now += duration + 0.01
    return records


def _header(rank: int) -> LedgerHeader:
    return LedgerHeader(RUN, rank, None, len(LOADERS), 100 + rank, START, "pytorch", "2.9")


def _totals(rank: int, elapsed: float, alive: bool) -> LedgerTotals:
    loaders = tuple(
        LoaderTotals(phase, workers, True, 2, (0,), 0.0, None, 32) for phase, workers in LOADERS[rank]
    )
    gauges = {}
    if rank in LOSSES:
        name, late = LOSSES[rank]
        gauges[name] = gauges["grad_norm"] = 2.0 if elapsed < STANDSTILL[0] else late
    totals = LedgerTotals(
        first_step_start=START + FIRST_STEP[rank] if elapsed > FIRST_STEP[rank] else None,
        last_step_end=START + elapsed - 2 if elapsed > FIRST_STEP[rank] else None,
        end=None,
        steps={},
        step_histogram={},
        step_squared_seconds={},
        phase_seconds={},
        component_seconds={},
        loaders=loaders,
        steps_recorded=0,
        gauges=gauges,
    )
    return totals if alive else replace(totals, end=START + elapsed)
