"""Analyses built by hand: what a report must be able to show, without a run behind it."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from stepscope.common.status import Status
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import (
    Analysis,
    BoxPlot,
    RuleResult,
    UtilisationHistogram,
)
from stepscope.measurements.energy import Energy, GpuEnergy
from stepscope.measurements.heatmap import Heatmap, LowGpuSamples
from stepscope.measurements.steps import StepDistribution
from stepscope.measurements.timeline import StepMark, StepTimeline
from stepscope.measurements.usage import UsageRow
from stepscope.rules import all_rules
from stepscope.rules.parts.topics import About
from stepscope.runs.model import LineTime

START = 1_795_181_220.0  # 2026-11-20 13:27:00 UTC
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u2028&amp;'\"`"

PARAMETERS: dict[str, dict[str, Any]] = {
    "CPUBottleneck": {"threshold": 50, "cpu_threshold": 90, "gpu_threshold": 10, "patience": 1000},
    "StepOutlier": {"stddev": 3, "n_outliers": 10, "mode": None},
    "LowGPUUtilization": {"threshold_p95": 70, "threshold_p5": 10, "window": 500, "patience": 1000},
}


def rule(name: str = "CPUBottleneck", status: Status = Status.HEALTHY, **changes: Any) -> RuleResult:
    fields: dict[str, Any] = {
        "rule": name,
        "question": "Do GPUs wait for data that a busy core has not prepared yet?",
        "description": "Some core is above cpu_threshold while some GPU is below gpu_threshold.",
        "recommendation": "Give the data loader more workers, or move the heavy transform off the CPU.",
        "status": status,
        "finding": "In 3 % of the snapshots a pinned core met an idle GPU.",
        "triggered": 0,
        "violations": 43,
        "datapoints": 1440,
        "parameters": PARAMETERS.get(name, PARAMETERS["CPUBottleneck"]),
        "about": about(name),
    }
    return RuleResult(**(fields | changes))


def about(name: str) -> About:
    known = all_rules().get(name)
    return About(name) if known is None else known.about()


def usage(node: str, gpu: float = 34.0, cpu: float = 82.0, gpus: bool = True) -> list[UsageRow]:
    def row(resource: str, unit: str, p50: float, top: float) -> UsageRow:
        return UsageRow(
            node, resource, unit, top, top - 0.1 * (top - p50), top - 0.3 * (top - p50), p50, p50 / 4
        )

    rows = [row("CPU", "%", cpu, 100.0), row("CPU memory", "%", 31.0, 33.5)]
    if gpus:
        rows += [row("GPU", "%", gpu, 98.0), row("GPU memory", "%", 61.0, 62.0)]
    return [
        *rows,
        row("I/O wait", "%", 0.4, 12.0),
        row("Network", "B/s", 12_400.0, 8.1e6),
        row("Disk", "B/s", 41e6, 212e6),
    ]


@cache
def heatmap_cells(gpus: int, cores: int, columns: int, pinned: int) -> list[list[int | None]]:
    """GPUs in bursts, `pinned` cores at the top, the others with little to do; a gap in the GPUs' rows.

    The same on every node, so they are made once: do not change them.
    """
    chance = random.Random(7)
    values: list[list[int | None]] = []
    for row in range(gpus + cores):
        values.append([])
        for column in range(columns):
            if row < gpus:
                level = 18 + 60 * (math.sin((column + 5 * row) / 9) > 0.6)
            else:
                level = 96 if row - gpus < pinned else 9
            value = max(0, min(100, level + chance.randint(-8, 8)))
            values[-1].append(None if row < gpus and 90 <= column < 96 else value)
    return values


def heatmap(
    node: str, gpus: int, cores: int, columns: int = 240, column_seconds: float = 3.0, pinned: int = 1
) -> Heatmap:
    labels = [f"GPU {index}" for index in range(gpus)] + [f"CPU {index}" for index in range(cores)]
    return Heatmap(
        node,
        labels,
        [START + column * column_seconds for column in range(columns)],
        column_seconds,
        [list(row) for row in heatmap_cells(gpus, cores, columns, pinned)],
        gpu_memory=[[60 + column % 3 for column in range(columns)] for _ in range(gpus)],
        starved={"cpu": [70] * columns, "io": [0] * columns} if gpus else {},
    )


def timeline(node: str, columns: int = 240, column_seconds: float = 3.0, rank: int = 0) -> StepTimeline:
    """Training with an evaluation in each tenth column."""
    evaluating = [column % 10 == 9 for column in range(columns)]
    marks = [StepMark(number, "train", START + 1.5 * number, 0.32) for number in range(1, columns, 4)]
    return StepTimeline(
        node=node,
        start=START,
        column_seconds=column_seconds,
        ranks=2,
        phase_seconds={
            "train": [0.0 if one else 1.9 * column_seconds for one in evaluating],
            "eval": [1.5 * column_seconds if one else 0.0 for one in evaluating],
        },
        rank=rank,
        every=4,
        marks=marks,
    )


def box_plots(node: str, gpus: int) -> list[BoxPlot]:
    boxes = [BoxPlot(node, "CPU", "utilisation", 70, 78, 82, 88, 95, 63, 100)]
    for gpu in range(gpus):
        boxes.append(BoxPlot(node, f"GPU {gpu}", "utilisation", 8, 12, 20, 74, 90, 4, 98))
        boxes.append(BoxPlot(node, f"GPU {gpu}", "memory", 60, 60, 61, 62, 62, 60, 62))
    return boxes


def histograms(node: str, gpus: int) -> list[UtilisationHistogram]:
    return [
        UtilisationHistogram(node, f"GPU {gpu}", [(7 * bin_ + gpu) % 40 for bin_ in range(50)])
        for gpu in range(gpus)
    ]


def framework_metrics(operator: str = "aten::conv2d", device: str = "cpu") -> RuleResult:
    """Operators and collectives of a traced run: two are listed, the others only summed up."""
    return rule(
        "OverallFrameworkMetrics",
        question="Where did the time go?",
        details={
            "operator_seconds": {device: {operator: 30.0, "aten::mm": 15.0}, "gpu0": {"volta_sgemm": 400.0}},
            "operator_total_seconds": {device: 50.0, "gpu0": 400.0},
            "communication_seconds": {"allreduce": 24.0, "broadcast": 6.0},
            "communication_total_seconds": 30.0,
            "communication_exposed_seconds": 10.0,
        },
    )


STEP_DETAILS: dict[str, Any] = {
    "step_details": {
        "node-a, rank 0, train": {
            "step_stats": {"p50": 0.35},
            "phase": "train",
            "rank": 0,
            "triggered": 1,
            "component": "checkpoint",
            "longest": [
                {"number": 400, "seconds": 0.99, "component": "checkpoint"},
                {"number": 1200, "seconds": 0.7, "component": None},
            ],
        }
    },
    "phase": {"Step:ModeKeys.TRAIN": 100.0},
    "general": {"data_wait": 20.0, "checkpoint": 80.0},
}
LOADER_DETAILS: dict[str, Any] = {
    "dataloading_time": {
        "p25": 0.1,
        "p50": 0.2,
        "p95": 0.6,
        "probs": [(13 * bin_) % 60 for bin_ in range(100)],
        "binedges": [0.01 * edge for edge in range(101)],
    },
    "nodes": {"node-a": {"cores": 16, "workers": 4, "percent": 25.0}},
}


def steps(
    rank: int = 0, phase: str = "train", count: int = 1800, typical: float = 0.32, spread: float = 0.05
) -> StepDistribution:
    chance = random.Random(rank)
    durations = sorted(
        typical + abs(chance.gauss(0, spread)) + (1.9 * typical if chance.random() < 0.01 else 0)
        for _ in range(count)
    )
    mean = sum(durations) / count
    inside = [duration for duration in durations if duration < 1.9 * typical]
    width = (inside[-1] - inside[0]) / 40 or 1e-3
    edges = [inside[0] + index * width for index in range(41)]
    counts = [0] * 40
    for duration in inside:
        counts[min(39, int((duration - inside[0]) / width))] += 1
    return StepDistribution(
        rank=rank,
        phase=phase,
        count=count,
        mean=mean,
        standard_deviation=math.sqrt(sum((duration - mean) ** 2 for duration in durations) / count),
        min=durations[0],
        p50=durations[count // 2],
        p95=durations[int(count * 0.95)],
        p99=durations[int(count * 0.99)],
        max=durations[-1],
        edges=edges,
        counts=counts,
    )


def loader(rank: int = 0, phase: str = "train", workers: int = 2) -> dict[str, Any]:
    return {
        "node": "node-a",
        "rank": rank,
        "phase": phase,
        "workers": workers,
        "pin_memory": True,
        "prefetch_factor": 2,
        "batch_size": 64,
        "fetches": 1800,
        "fetch_seconds": 1150.0,
        "fetch_cpu_seconds": 1110.0,
        "fetch_core_wait_seconds": 0.0,
    }


def slow_loader(**changes: Any) -> Analysis:
    """One node, 2 GPUs, 16 cores: a pinned core starves the GPUs, and some steps are outliers."""
    analysis = Analysis(
        run="resnet50-imagenet",
        name="resnet50-imagenet",
        command="python train.py --data /data/imagenet --workers 2",
        exit_status=0,
        start=START,
        first_step_start=START + 21.4,
        last_step_end=START + 707.0,
        end=START + 720.0,
        finished=True,
        framework="pytorch 2.13.0",
        world_size=2,
        ranks=2,
        nodes=["node-a"],
        cores={"node-a": 16},
        gpus={"node-a": ["0: NVIDIA H100 80GB HBM3", "1: NVIDIA H100 80GB HBM3"]},
        interval=0.5,
        samples_taken=1438,
        samples_missed=2,
        versions={"stepscope": "0.1.0", "python": "3.11.2"},
        unknowns=["The power limit of GPU 1 could not be read: the driver does not support it."],
        rules=[
            rule(
                status=Status.FOUND,
                finding="GPUs sat idle while a core was pinned in 71 % of 1438 snapshots (node-a, CPU 0).",
                recommendation="Give the data loader more than its 2 workers, or move the heavy augmentation "
                "to the GPU: fetching a batch kept a core busy 97 % of its time.",
                triggered=9,
                violations=1021,
                datapoints=1438,
                seconds_lost=431.0,
            ),
            rule(
                "StepOutlier",
                Status.FOUND,
                question="Do some steps take far longer than the others?",
                description="More than n_outliers steps took longer than mean + stddev x standard deviation.",
                finding="18 of 1800 train steps of rank 0 took longer than 620 ms (mean + 3 deviations).",
                recommendation="Look at what runs in these steps: a checkpoint, an evaluation, a shuffle.",
                triggered=3,
                violations=18,
                datapoints=1800,
                seconds_lost=31.0,
                details=STEP_DETAILS,
            ),
            rule(
                "LowGPUUtilization",
                question="Are GPUs under-used, or used in bursts?",
                description="The p95 of the last window is low, or p5 is.",
            ),
            rule(
                "IOBottleneck",
                question="Do GPUs wait for storage?",
                description="Some core waits for I/O above io_threshold while some GPU is low.",
                finding="0.1 % of the snapshots had high I/O wait and an idle GPU.",
                violations=2,
            ),
            rule(
                "Dataloader",
                question="Does the number of workers suit the cores?",
                finding="node-a has 16 cores and 4 workers that load data.",
                details=LOADER_DETAILS,
            ),
            framework_metrics(),
        ],
        usage=usage("node-a"),
        heatmaps=[heatmap("node-a", 2, 16)],
        steps=[steps(0), steps(1, typical=0.33), steps(0, "eval", 120, 0.11), steps(1, "eval", 120, 0.12)],
        phase_seconds={
            "initialization": 42.8,
            "train": 1260.0,
            "eval": 60.5,
            "other": 50.7,
            "finalization": 26.0,
        },
        component_seconds={
            "data_wait": 861.0,
            "forward": 150.0,
            "backward": 210.0,
            "optimizer": 40.0,
            "checkpoint": 22.0,
        },
        loaders=[loader(0), loader(1), loader(0, "eval", 1), loader(1, "eval", 1)],
        energy=Energy(2.1e6, [GpuEnergy("node-a", f"GPU {gpu}", 1.05e6, 719.0, 1.0) for gpu in range(2)], 0),
        low_gpu_snapshots=[LowGpuSamples("node-a", 1438, 1100, 1000, 10, 21)],
        timelines=[timeline("node-a")],
        box_plots=box_plots("node-a", 2),
        utilisation_histograms=histograms("node-a", 2),
    )
    return replace(analysis, **changes)


def nothing_found() -> Analysis:
    quiet = [rule(name) for name in ("CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "StepOutlier")]
    return slow_loader(rules=quiet, usage=usage("node-a", gpu=93, cpu=40))


def no_gpu() -> Analysis:
    unjudged = [
        rule(name, Status.NOT_ENOUGH_DATA, finding="No GPU was seen on any node.", violations=0, datapoints=0)
        for name in ("CPUBottleneck", "IOBottleneck", "LowGPUUtilization")
    ]
    return slow_loader(
        rules=[*unjudged, rule("StepOutlier")],
        gpus={"node-a": []},
        cores={"node-a": 2},
        usage=usage("node-a", gpus=False),
        heatmaps=[heatmap("node-a", 0, 2)],
        energy=None,
        low_gpu_snapshots=[],
        box_plots=box_plots("node-a", 0),
        utilisation_histograms=[],
        unknowns=["No NVIDIA driver: libnvidia-ml.so.1 could not be loaded."],
    )


def no_steps() -> Analysis:
    """A script that knows nothing of Stepscope."""
    return slow_loader(
        steps=[],
        phase_seconds={},
        component_seconds={},
        loaders=[],
        first_step_start=None,
        last_step_end=None,
        ranks=0,
        world_size=0,
        framework="",
        timelines=[],
        rules=[
            rule(
                "StepOutlier",
                Status.NOT_ENOUGH_DATA,
                finding="No step was recorded.",
                violations=0,
                datapoints=0,
            )
        ],
    )


def one_sample() -> Analysis:
    """The first half second of a run that goes on."""
    names = ("CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "StepOutlier")
    nan = math.nan
    return slow_loader(
        rules=[
            rule(name, Status.COLLECTING, finding="1 of the 1000 samples that patience asks for.")
            for name in names
        ],
        end=START,
        first_step_start=None,
        last_step_end=None,
        finished=False,
        exit_status=None,
        samples_taken=1,
        samples_missed=0,
        usage=[
            UsageRow("node-a", "CPU", "%", 12.0, 12.0, 12.0, 12.0, 12.0),
            UsageRow("node-a", "GPU", "%", nan, nan, nan, nan, nan),
        ],
        heatmaps=[heatmap("node-a", 2, 2, columns=1, column_seconds=0.5)],
        timelines=[],
        energy=None,
        low_gpu_snapshots=[LowGpuSamples("node-a", 1, 0, 0, 0, 0)],
        box_plots=[BoxPlot("node-a", "CPU", "utilisation", 12, 12, 12, 12, 12, 12, 12)],
        utilisation_histograms=[],
        steps=[],
        phase_seconds={},
        component_seconds={},
        loaders=[],
    )


def sixteen_nodes() -> Analysis:
    """16 nodes of 8 GPUs and 192 cores, 128 ranks."""
    nodes = [f"node-{index:02d}" for index in range(16)]
    return slow_loader(
        run="llama-pretraining-16-nodes-with-a-long-name-that-must-wrap-somewhere",
        nodes=nodes,
        ranks=128,
        world_size=128,
        cores=dict.fromkeys(nodes, 192),
        gpus={node: [f"{index}: NVIDIA H100 80GB HBM3" for index in range(8)] for node in nodes},
        usage=[row for index, node in enumerate(nodes) for row in usage(node, gpu=91 - 4 * (index == 5))],
        heatmaps=[heatmap(node, 8, 192, columns=360, column_seconds=2.0) for node in nodes],
        steps=[steps(rank, count=300) for rank in range(128)],
        loaders=[loader(rank) for rank in range(128)],
        low_gpu_snapshots=[LowGpuSamples(node, 1438, 200, 100, 40, 10) for node in nodes],
        timelines=[timeline(node, rank=8 * index) for index, node in enumerate(nodes)],
        box_plots=[box for node in nodes for box in box_plots(node, 8)],
        utilisation_histograms=[one for node in nodes for one in histograms(node, 8)],
        energy=Energy(
            2.1e9,
            [GpuEnergy(node, f"GPU {gpu}", 1.6e7, 719.0, 0.0) for node in nodes for gpu in range(8)],
            0,
        ),
    )


def sixty_four_ranks() -> Analysis:
    """8 nodes of 8 GPUs: rank 37 is slow, and all others wait for it."""
    nodes = [f"node-{index}" for index in range(8)]
    ranks = [
        {
            "node": nodes[rank // 8],
            "rank": rank,
            "triggered": 11 if rank == 37 else 0,
            "own_seconds": 0.61 if rank == 37 else 0.25,
            "seconds_lost": 260.0 if rank == 37 else 0.0,
        }
        for rank in range(64)
    ]
    slow = rule(
        "Straggler",
        Status.FOUND,
        question="Does one rank keep the others waiting?",
        finding="Rank 37 on node-4 took 610 ms of its own per step; the other 63 ranks 250 ms (median).",
        recommendation="Compare what rank 37 does with another rank: its data, its node, its GPU's clocks.",
        triggered=11,
        violations=11,
        datapoints=12,
        seconds_lost=260.0,
        details={"ranks": ranks, "windows": 12},
    )
    return slow_loader(
        run="llama-64",
        nodes=nodes,
        ranks=64,
        world_size=64,
        cores=dict.fromkeys(nodes, 96),
        gpus={node: [f"{index}: NVIDIA H100 80GB HBM3" for index in range(8)] for node in nodes},
        rules=[slow, *(rule(name) for name in ("CPUBottleneck", "DataStarved", "LowGPUUtilization"))],
        usage=[row for node in nodes for row in usage(node, gpu=96, cpu=24)],
        heatmaps=[heatmap(node, 8, 96, columns=360, column_seconds=2.0) for node in nodes],
        steps=[steps(rank, count=300) for rank in range(64)],
        component_seconds={
            "data_wait": 310.0,
            "forward": 9_000.0,
            "backward": 14_000.0,
            "communication": 16_000.0,
        },
        phase_seconds={"initialization": 1_370.0, "train": 43_000.0, "finalization": 830.0},
        loaders=[loader(rank) for rank in range(64)],
        low_gpu_snapshots=[LowGpuSamples(node, 1438, 0, 0, 0, 0) for node in nodes],
        timelines=[timeline(node, rank=8 * index) for index, node in enumerate(nodes)],
        box_plots=[box for node in nodes for box in box_plots(node, 8)],
        utilisation_histograms=[one for node in nodes for one in histograms(node, 8)],
        energy=Energy(
            1.1e9,
            [GpuEnergy(node, f"GPU {gpu}", 1.7e7, 719.0, 0.0) for node in nodes for gpu in range(8)],
            0,
        ),
    )


def hostile() -> Analysis:
    """Names that try to break out of the page, wherever a name can stand."""
    return slow_loader(
        run=HOSTILE,
        name=HOSTILE,
        command=HOSTILE,
        framework=HOSTILE,
        nodes=[HOSTILE],
        cores={HOSTILE: 16},
        gpus={HOSTILE: [f"0: {HOSTILE}"]},
        versions={HOSTILE: HOSTILE},
        unknowns=[HOSTILE],
        rules=[
            rule(
                HOSTILE, Status.FOUND, finding=HOSTILE, recommendation=HOSTILE, parameters={HOSTILE: HOSTILE}
            ),
            framework_metrics(operator=HOSTILE, device=HOSTILE),
        ],
        usage=usage(HOSTILE),
        heatmaps=[
            replace(heatmap(HOSTILE, 1, 1), rows=[f"GPU {HOSTILE}", HOSTILE]),
            heatmap(HOSTILE, 1, 1),
        ],
        steps=[replace(steps(0), phase=HOSTILE), replace(steps(1), phase=HOSTILE)],
        phase_seconds={HOSTILE: 12.0, "train": 3.0},
        component_seconds={HOSTILE: 2.0, "forward": 1.0},
        loaders=[{**loader(), "phase": HOSTILE}],
        low_gpu_snapshots=[LowGpuSamples(HOSTILE, 1438, 1100, 1000, 10, 21)],
        timelines=[timeline(HOSTILE)],
        box_plots=box_plots(HOSTILE, 1),
        utilisation_histograms=[UtilisationHistogram(HOSTILE, name, [1] * 50) for name in ("GPU 0", HOSTILE)],
        energy=Energy(1e6, [GpuEnergy(HOSTILE, HOSTILE, 1e6, 719.0, 0.0)], 1),
        account=Account(720.0, 1, tuple(hostile_leaves())),
    )


def hostile_leaves() -> Iterator[Leaf]:
    """Large parts that no rule explains, in lines with such names."""
    for key, share in ((Key("train", "host"), 0.5), (Key("eval"), 0.25), (Key("between_steps"), 0.25)):
        line = LineTime(key.part, key.component, HOSTILE, HOSTILE, "", "", "", {"running": 9.0}, text=HOSTILE)
        yield Leaf(key, share, {0: 720 * share}, (line,))


EVERY_ANALYSIS = (
    slow_loader,
    nothing_found,
    no_gpu,
    no_steps,
    one_sample,
    sixteen_nodes,
    sixty_four_ranks,
    hostile,
)
