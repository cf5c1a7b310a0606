"""A made-up run for each rule that makes it fire, and a picture of what is telling in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.model import Loader, NodeFacts, Stay

from tests.support.source import (
    INTERVAL,
    START,
    MemorySource,
    node_samples,
    node_steps,
    rank_facts,
    run_facts,
)

Series = NDArray[np.float64]

ROWS = 1440  # twelve minutes of snapshots
MINUTES = np.arange(ROWS) * INTERVAL / 60
LONGER = np.arange(2 * ROWS) * INTERVAL / 60
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 220, 56, 30, 34
# The palette of Okabe and Ito, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


@dataclass(frozen=True)
class Line:
    """A line of the picture: its name, its values, and where they lie across (minutes or step numbers)."""

    name: str
    values: Series
    across: Series = field(default_factory=lambda: MINUTES)


@dataclass(frozen=True)
class Picture:
    """A run, and what to draw of it. `bound` is drawn dashed, in the unit of the lines."""

    source: MemorySource
    lines: Sequence[Line]
    unit: str = "%"
    across: str = "minutes"
    bound: tuple[str, float] | None = None


def wave(middle: float, swing: float, period: float = 37.0, length: int = ROWS) -> Series:
    """A reading that moves about its middle, the same at each drawing."""
    count = np.arange(length)
    return middle + swing * (0.6 * np.sin(count / period * 6.28) + 0.4 * np.sin(count / 7.3))


def switching(low: float, high: float, share_low: float, period: int = 48) -> Series:
    """A reading that is low for a share of each period, high for the rest, not quite steady at either."""
    is_low = (np.arange(ROWS) % period) < share_low * period
    return np.where(is_low, wave(low, 1.5), wave(high, 2.0))


def pictures() -> dict[str, Picture]:
    """One for each rule that can fire."""
    return {
        "CPUBottleneck": starved("cpu"),
        "IOBottleneck": starved("io"),
        "LowGPUUtilization": low_gpu(),
        "BatchSize": batch_size(),
        "GPUMemoryIncrease": memory(
            "a single growth of 12 points", 40 + 12 / (1 + np.exp(-(LONGER - 11) * 8))
        ),
        "LoadBalancing": load_balancing(),
        "StepOutlier": step_outlier(),
        "DataStarved": inside_steps("data_wait", "waiting for data"),
        "CommunicationBound": inside_steps("communication", "communication"),
        "Straggler": straggler(),
        "TrainingStalled": stalled(),
        "CollectiveHang": missing_rank(),
        "ThermalThrottling": throttling(),
        "IdleGPU": held_idle(),
        "GPUMemoryNearlyFull": memory("memory in use", 80 + 19 * np.minimum(MINUTES / 8, 1), 95),
        "GPUMemoryLeak": memory("memory in use", 30 + 4 * MINUTES + wave(0, 1.0)),
        "GPUError": gpu_error(),
        "MaxInitializationTime": slow_start(),
        "Dataloader": dataloader(),
        "CPUThrottled": throttled_cpu(),
        "NoisyNeighbour": neighbours(),
        "MemoryPressure": waits_for_memory(),
        "HostMemoryLeak": host_memory(),
        "LossNotFinite": loss(np.where(MINUTES < 8, LOSS, np.nan)),
        "LossDiverged": loss(np.where(MINUTES < 6, LOSS, wave(2.2, 0.1))),
        "GradientsExploding": loss(
            np.where(MINUTES < 6, LOSS, wave(2.2, 0.1)),
            gradient_norm=np.where(MINUTES < 6, wave(1, 0.2), wave(40, 8)),
        ),
        "GradientsVanishing": loss(
            wave(2.3, 0.05), gradient_norm=np.where(MINUTES < 6, 10.0 ** (-2 - MINUTES), 1e-8)
        ),
        "Overfitting": loss(LOSS, val_loss=0.5 + 1.5 * 0.5**MINUTES + 0.04 * MINUTES),
    }


LOSS = 0.4 + 2 * 0.5**MINUTES + wave(0, 0.05)


def loss(values: Series, **others: Series) -> Picture:
    times = START + 60 * MINUTES
    named = {"loss": values} | others
    gauges = [GaugeHistory("node-a", 0, 1000, START, name, times, each) for name, each in named.items()]
    rank = rank_facts(first_step_start=START, last_step_end=float(times[-1]))
    source = MemorySource(facts=run_facts(ranks=[rank], gauges=gauges))
    shown = others or named
    known = {name: np.isfinite(each) for name, each in shown.items()}
    lines = [Line(name, each[known[name]], MINUTES[known[name]]) for name, each in shown.items()]
    return Picture(source, lines, unit="")


def ratios(*columns: Series) -> NDArray[np.float32]:
    return (np.column_stack(columns) / 100).astype(np.float32)


def starved(by: str) -> Picture:
    gpu = switching(4, 88, 0.7)
    core = np.where(gpu < 10, wave(97.5, 1.0), wave(45, 10))
    idle = wave(12, 4)
    cores = ratios(core, idle)
    samples = (
        node_samples(cores, ratios(gpu))
        if by == "cpu"
        else node_samples(ratios(idle, idle), ratios(gpu), io_wait=cores)
    )
    name = "one core" if by == "cpu" else "I/O wait of one core"
    return Picture(MemorySource(samples), [Line("GPU", gpu), Line(name, core)])


def low_gpu() -> Picture:
    gpu = wave(42, 14)
    samples = node_samples(ratios(wave(60, 5)), ratios(gpu))
    return Picture(MemorySource(samples), [Line("GPU", gpu)], bound=("threshold_p95", 70))


def batch_size() -> Picture:
    gpu, memory, cpu = wave(45, 12), wave(30, 1), wave(25, 5)
    samples = node_samples(ratios(cpu), ratios(gpu), gpu_memory=ratios(memory))
    lines = [Line("GPU", gpu), Line("GPU memory", memory), Line("CPU", cpu)]
    return Picture(MemorySource(samples), lines, bound=("all three thresholds", 70))


def memory(name: str, used: Series, bound: float | None = None) -> Picture:
    used = np.minimum(used, 99.6)
    cpu, gpu = (wave(middle, 5, length=len(used)) for middle in (30, 85))
    samples = node_samples(ratios(cpu), ratios(gpu), gpu_memory=ratios(used))
    lines = [Line(name, used, LONGER[: len(used)])]
    return Picture(MemorySource(samples), lines, bound=None if bound is None else ("threshold", bound))


def load_balancing() -> Picture:
    busy, idle = wave(88, 6), wave(48, 10)
    samples = node_samples(ratios(wave(30, 5)), ratios(busy, idle))
    return Picture(MemorySource(samples), [Line("GPU 0", busy), Line("GPU 1", idle)])


def step_outlier() -> Picture:
    count = 600
    took = 0.4 + wave(0, 0.02, length=count) + np.where(np.arange(count) % 40 == 39, 1.1, 0)
    bound = took.mean() + 3 * took.std()
    return Picture(
        MemorySource(node_steps(took)),
        [Line("step", 1000 * took, np.arange(count, dtype=float))],
        unit="ms",
        across="step",
        bound=("mean + 3 standard deviations", 1000 * float(bound)),
    )


def inside_steps(component: Literal["data_wait", "communication"], name: str) -> Picture:
    count = 600
    waits = component == "data_wait"
    took = 0.5 + wave(0, 0.03, length=count)
    part = (0.19 if waits else 0.31) + wave(0, 0.03, length=count)
    across = np.arange(count, dtype=float)
    steps = node_steps(took, data_wait=part) if waits else node_steps(took, communication=part)
    lines = [Line("step", 1000 * took, across), Line(name, 1000 * part, across)]
    return Picture(MemorySource(steps), lines, unit="ms", across="step")


def straggler() -> Picture:
    """Four ranks that wait for each other: all steps take as long, only the self time differs."""
    count = 600
    took = 0.5 + wave(0, 0.01, length=count)
    own = [0.29 + wave(0, 0.01, 30 + rank, count) for rank in range(3)] + [0.47 + wave(0, 0.01, 33, count)]
    across = np.arange(count, dtype=float)
    steps = [node_steps(took, rank=rank, communication=took - mine) for rank, mine in enumerate(own)]
    lines = [Line(f"rank {rank}", 1000 * mine, across) for rank, mine in enumerate(own)]
    ranks = [rank_facts(rank, world_size=4) for rank in range(4)]
    return Picture(MemorySource(*steps, facts=run_facts(ranks=ranks)), lines, unit="ms", across="step")


def stalled() -> Picture:
    """Steps of half a second for two minutes, none for five, then steps again."""
    before, after = 240, 600
    resumed = START + 7 * 60
    source = MemorySource(
        node_steps(np.full(before, 0.5)),
        node_steps(np.full(after, 0.5), start=resumed, first_number=before + 1),
        facts=run_facts(ranks=[rank_facts()]),
    )
    finished = np.minimum(MINUTES * 120, before) + np.maximum((MINUTES - 7) * 120, 0)
    return Picture(source, [Line("steps finished", finished)], unit="steps")


def missing_rank() -> Picture:
    """Steps for two minutes; then rank 1 stays in its data loader, and rank 0 waits for it."""
    hang, until = START + 120, START + 60 * MINUTES[-1]
    places = ("communication", "gradients"), ("data_wait", "")
    ranks = [
        rank_facts(
            rank,
            stays=[Stay(*place, hang, until, "waiting")],
            first_step_start=START,
            last_step_end=hang,
            last_alive=until,
            world_size=2,
        )
        for rank, place in enumerate(places)
    ]
    steps = (node_steps(np.full(240, 0.5), rank=rank) for rank in (0, 1))
    source = MemorySource(*steps, facts=run_facts(ranks=ranks))
    line = Line("rank 0 has waited in backward", np.maximum(MINUTES - 2, 0))
    return Picture(source, [line], unit="minutes", bound=("threshold", 5))


def held_idle() -> Picture:
    minutes = 2 * MINUTES  # longer than its threshold
    load = np.where(minutes < 4, wave(90, 4), 0.0)
    samples = node_samples(
        ratios(wave(30, 5)),
        ratios(load),
        of_gpus={"gpu_compute_processes": np.ones(ROWS)},
        gpu_memory=ratios(np.full(ROWS, 60.0)),
        interval=2 * INTERVAL,
    )
    lines = [Line("GPU utilisation", load, minutes), Line("its memory in use", np.full(ROWS, 60.0), minutes)]
    return Picture(MemorySource(samples), lines)


def throttling() -> Picture:
    hot = MINUTES > 3
    seconds = np.cumsum(hot * INTERVAL * 0.4)
    temperature = 60 + 27 / (1 + np.exp(-(MINUTES - 2) * 2))
    samples = node_samples(
        ratios(wave(30, 5)),
        ratios(wave(97, 2)),
        of_gpus={"gpu_thermal_throttle_seconds": seconds, "gpu_clock_hertz": np.where(hot, 1.2e9, 1.98e9)},
    )
    lines = [
        Line("held down by heat, of each second", np.where(hot, 40.0, 0.0)),
        Line("temperature, °C", temperature),
    ]
    return Picture(MemorySource(samples), lines, unit="% or °C")


def gpu_error() -> Picture:
    errors = (MINUTES > 7).astype(float)
    samples = node_samples(
        ratios(wave(30, 5)),
        ratios(np.where(errors, 0.0, wave(90, 4))),
        of_gpus={"gpu_xid_errors": errors, "gpu_last_xid": np.where(errors, 79.0, np.nan)},
    )
    lines = [Line("GPU", np.where(errors, 0.0, wave(90, 4))), Line("XID 79: off the bus", 100 * errors)]
    return Picture(MemorySource(samples), lines)


def slow_start() -> Picture:
    """The first step comes after 25 minutes."""
    rows = 3600
    minutes = np.arange(rows) * INTERVAL / 60
    gpu = np.where(minutes < 25, 0.0, wave(85, 5, length=rows))
    first = START + 25 * 60
    facts = run_facts(
        ranks=[rank_facts(first_step_start=first, last_step_end=first + 240, steps={"train": 240})]
    )
    samples = node_samples(ratios(np.full(rows, 20.0)), ratios(gpu))
    steps = node_steps(np.full(240, 1.0), start=first)
    return Picture(MemorySource(samples, steps, facts=facts), [Line("GPU", gpu, minutes)])


def dataloader() -> Picture:
    """Two workers on a node of sixteen cores: two cores work, fourteen do not."""
    cores = [wave(93, 4, 30 + core) if core < 2 else wave(3, 1, 30 + core) for core in range(16)]
    loaders = [Loader(0, "train", 2, False, 2)]
    nodes = [NodeFacts("node-a", cpus=tuple(map(str, range(16))))]
    facts = run_facts(ranks=[rank_facts(loaders=loaders)], nodes=nodes)
    source = MemorySource(
        node_samples(ratios(*cores)), node_steps(np.full(600, 1.0), data_wait=0.1), facts=facts
    )
    lines = [Line("the two cores with a worker", (cores[0] + cores[1]) / 2)]
    lines.append(Line("mean of the other fourteen", np.asarray(np.mean(cores[2:], axis=0), np.float64)))
    return Picture(source, lines)


def throttled_cpu() -> Picture:
    """A run that may use four cores, and would use about six."""
    stopped = wave(2.0, 0.4)
    use = {"cpu_limit_cores": np.full(ROWS, 4.0), "cpu_throttled_seconds": INTERVAL * np.cumsum(stopped)}
    use |= {"cpu_periods": np.arange(ROWS) * 5.0, "cpu_throttled_periods": np.arange(ROWS) * 4.0}
    source = MemorySource(node_samples(ratios(*[wave(70, 10)] * 4), of_run=use))
    lines = [Line("stopped, in % of the limit", 100 * stopped / 4)]
    return Picture(source, lines, bound=("threshold", 10.0))


def waits_for_memory() -> Picture:
    """A run that swaps from the third minute on."""
    waited = np.where(MINUTES < 3, 0.0, wave(0.35, 0.1))
    use = {"memory_waiting_seconds": INTERVAL * np.cumsum(waited)}
    source = MemorySource(node_samples(ratios(wave(40, 10)), of_run=use))
    return Picture(source, [Line("waiting for memory", 100 * waited)], bound=("threshold", 10.0))


def host_memory() -> Picture:
    """A run whose memory grows by two points a minute."""
    held = 30 + 2 * MINUTES + wave(0, 1.0)
    use = {"anonymous_memory_bytes": held, "memory_capacity_bytes": np.full(ROWS, 100.0)}
    source = MemorySource(node_samples(ratios(wave(40, 10)), of_run=use))
    return Picture(source, [Line("memory that the run holds", held)])


def neighbours() -> Picture:
    """A run on two cores, and a neighbour that takes half of them from the third minute on."""
    others = np.where(MINUTES < 3, wave(0.04, 0.02), wave(1.0, 0.1))
    own = 1.9 - others
    waited = np.where(MINUTES < 3, 0.02, 0.95)
    counters = {
        "cpu_seconds": own,
        "other_cpu_seconds": others,
        "main_threads_ran_seconds": own,
        "main_threads_waited_seconds": waited,
    }
    use = {name: INTERVAL * np.cumsum(rate) for name, rate in counters.items()}
    samples = node_samples(
        ratios(wave(95, 3), wave(95, 3)), of_run={**use, "allowed_cores": np.full(ROWS, 2.0)}
    )
    lines = [Line("the run", 50 * own), Line("others", 50 * others)]
    return Picture(MemorySource(samples), lines)


# ------------------------------------------------------------------------------------------- drawing


def draw(rule: str, picture: Picture) -> str:
    """The picture as SVG, on white so that it reads on light and dark pages alike."""
    highest = max([*(line.values.max() for line in picture.lines), picture.bound[1] if picture.bound else 0])
    top = 100.0 if picture.unit == "%" else highest * 1.08
    right = max(float(line.across.max()) for line in picture.lines)

    def x(value: float) -> float:
        return LEFT + value / right * (WIDTH - LEFT - 12)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    names = ", ".join(line.name for line in picture.lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(f'A run that fires {rule}: {names}')}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        level = y(share * top)
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - 12}" stroke="#e2e6ea"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{share * top:.0f}</text>')
        parts.append(
            f'<text x="{x(share * right):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{share * right:.0f}</text>"
        )
    parts.append(f'<text x="4" y="{TOP - 12}">{escape(picture.unit)}</text>')
    parts.append(f'<text x="{WIDTH - 12}" y="{HEIGHT - 4}" text-anchor="end">{picture.across}</text>')
    across = LEFT + 40
    for colour, line in zip(COLOURS, picture.lines, strict=False):
        every = max(1, len(line.values) // 700)
        points = zip(line.across[::every].tolist(), line.values[::every].tolist(), strict=True)
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        parts.append(f'<text x="{across}" y="{TOP - 12}" fill="{colour}">{escape(line.name)}</text>')
        across += 30 + 7 * len(line.name)
    if picture.bound:
        name, value = picture.bound
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - 12}" stroke="#333" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="{WIDTH - 14}" y="{y(value) - 5:.1f}" text-anchor="end">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
