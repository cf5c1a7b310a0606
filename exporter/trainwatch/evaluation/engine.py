"""Evaluates all rules over a run in one pass: once, or repeatedly while the run continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from trainwatch.evaluation.analysis import Analysis, GpuUse, RuleResult, StepDistribution
from trainwatch.evaluation.blocks import Blocks
from trainwatch.evaluation.devices import box_plots, histograms
from trainwatch.evaluation.settings import Settings
from trainwatch.measurements.energy import EnergyUse, energy
from trainwatch.measurements.heatmap import HeatmapOfNode
from trainwatch.measurements.load import Load
from trainwatch.measurements.measure import Measure, NodeMeasurements, RunMeasurements, Subject, Views
from trainwatch.measurements.starved import Starved, StarvedSamples
from trainwatch.measurements.state import State
from trainwatch.measurements.steps import StepDurations
from trainwatch.measurements.timeline import Timeline
from trainwatch.measurements.usage import GpuUsage, Usage, usage_rows
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.judgement import Tallies, Tally
from trainwatch.rules.step_outlier import StepOutlier
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import NodeSamples, RunFacts, Source, Steps, labelled
from trainwatch.status import Status

SCAN_INTERVAL = 60.0  # seconds, as Debugger's
# Measurements of the report, whatever the rules need.
REPORTED: tuple[Measure[Any], ...] = (Usage(), Load(), StepDurations(), Timeline())
T = TypeVar("T")


def evaluate(
    source: Source,
    settings: Settings | None = None,
    scan_interval: float = SCAN_INTERVAL,
    progress: Callable[[int], None] | None = None,
) -> Analysis:
    """Returns the analysis of a finished run; calls `progress` with the samples and steps read so far."""
    evaluator = Evaluator(source, settings, scan_interval)
    evaluator.advance(progress)
    return evaluator.analysis()


class Evaluator:
    """Reads a source as it grows. Memory: a block per node and rank, short histories, 8 bytes per step."""

    def __init__(
        self, source: Source, settings: Settings | None = None, scan_interval: float = SCAN_INTERVAL
    ) -> None:
        if not scan_interval > 0:
            raise ValueError(f"the scan interval must be above 0 seconds, not {scan_interval:g}")
        self._source = source
        self._scan_interval = scan_interval
        self._rules = (settings or Settings()).rules()
        self._nodes: dict[str, _Node] = {}

    def advance(self, progress: Callable[[int], None] | None = None) -> None:
        """Reads the source's new rows since the last call."""
        rows = 0
        for chunk in self._source.read():
            if chunk.node not in self._nodes:
                self._nodes[chunk.node] = self._new_node()
            self._nodes[chunk.node].add(chunk)
            rows += len(chunk)
            if progress is not None:
                progress(rows)

    def _new_node(self) -> _Node:
        return _Node(self._rules, self._scan_interval, self._source.facts.interval)

    def analysis(self, live: bool = False) -> Analysis:
        """Returns the analysis of all rows so far, including the last, shorter scan; changes no state.

        `live`: more rows will come, so rules without enough data are *collecting*.
        """
        facts = self._source.facts
        nodes = {name: self._nodes[name].settled() for name in sorted(self._nodes)}
        run = RunMeasurements(facts, {name: node.measured for name, node in nodes.items()})
        results = [RuleResult.of(rule, _verdict(rule, nodes, run, live)) for rule in self._rules]
        symptoms = {rule.name for rule in self._rules if rule.is_symptom}
        stddev = next(rule.parameters.stddev for rule in self._rules if isinstance(rule, StepOutlier))
        return _analysis(facts, nodes, sorted(results, key=lambda result: _order(result, symptoms)), stddev)


def _verdict(rule: Rule[Any, Any], nodes: dict[str, _Node], run: RunMeasurements, live: bool) -> Verdict:
    """Returns the verdict of a rule for the run so far. A failure of one rule does not stop the others."""
    for node in nodes.values():
        if rule.name in node.failures:
            return node.failures[rule.name]
    try:
        tallies = Tallies({name: node.tallies[rule.name] for name, node in nodes.items()})
        verdict = rule.conclude(run, tallies)
    except Exception as error:  # noqa: BLE001 - a report without one rule is better than none
        return _failed(error)
    collecting = live and verdict.status is Status.NOT_ENOUGH_DATA
    return replace(verdict, status=Status.COLLECTING) if collecting else verdict


def _failed(error: Exception) -> Verdict:
    return Verdict(Status.FAILED, f"This rule failed with {type(error).__name__}: {error}")


class _Node(State):
    """The state of one node: its measurements, and the rules' tallies of their scans."""

    def __init__(self, rules: list[Rule[Any, Any]], scan_interval: float, interval: float) -> None:
        self.scan_interval = scan_interval
        self.rules = rules
        measures = (measure for rule in self.rules for measure in (rule.measure, *rule.details_of))
        self.energy = EnergyUse(interval)
        self.measured = NodeMeasurements([*measures, *REPORTED, self.energy])
        self.tallies: dict[str, dict[Subject, Tally]] = {rule.name: {} for rule in self.rules}
        self.failures: dict[str, Verdict] = {}  # of rules that failed at a scan, which are judged no more
        self.heatmap = HeatmapOfNode()
        self.samples: Blocks[NodeSamples] = Blocks(scan_interval)
        self.steps: dict[int, Blocks[Steps]] = {}

    def add(self, chunk: NodeSamples | Steps) -> None:
        if isinstance(chunk, NodeSamples):
            for block, scans in self.samples.add(chunk):
                self._observe(block, scans)
        else:
            if chunk.rank not in self.steps:
                self.steps[chunk.rank] = Blocks(self.scan_interval)
            for steps, scans in self.steps[chunk.rank].add(chunk):
                self._observe_steps(steps, scans)

    def settled(self) -> _Node:
        """Returns a copy that has read every row so far."""
        copy = self.copy()
        for block, scans in copy.samples.rest():
            copy._observe(block, scans)
        for _, blocks in sorted(copy.steps.items()):
            for steps, scans in blocks.rest():
                copy._observe_steps(steps, scans)
        return copy

    def _observe(self, samples: NodeSamples, scans: np.ndarray) -> None:
        self._judge(self.measured.observe(samples, scans))
        by_cpu, by_io = (self._starved(cause) for cause in ("cpu", "io"))
        self.heatmap.observe(samples, by_cpu, by_io)

    def _observe_steps(self, steps: Steps, scans: np.ndarray) -> None:
        self._judge(self.measured.observe_steps(steps, scans))

    def _judge(self, views: dict[Measure[Any], Views[Any]]) -> None:
        for rule in self.rules:
            if rule.effect is Effect.OVERVIEW or rule.name in self.failures:
                continue
            tallies = self.tallies[rule.name]
            try:
                for subject, view in views[rule.measure]:
                    tally = tallies.setdefault(subject, Tally())
                    tally.add(rule.judge(view), getattr(view, "new", None), getattr(view, "times", None))
            except Exception as error:  # noqa: BLE001 - as in _verdict
                self.failures[rule.name] = _failed(error)

    def _starved(self, cause: str) -> StarvedSamples:
        """Returns the samples that the rule of this cause counts as starved."""
        measures = (rule.measure for rule in self.rules if isinstance(rule.measure, Starved))
        return self.measured[next(measure for measure in measures if measure.cause == cause)]


def _order(result: RuleResult, symptoms: set[str]) -> tuple[object, ...]:
    """Returns the sort key: findings first, causes before symptoms, then seconds lost and times triggered."""
    place = list(Status).index(result.status)
    return place, result.rule in symptoms, -result.seconds_lost, -result.triggered, result.rule


def _analysis(
    facts: RunFacts, nodes: dict[str, _Node], rules: list[RuleResult], outlier_deviations: float
) -> Analysis:
    heatmaps = (node.heatmap.heatmap(name, facts) for name, node in nodes.items())
    starts = [rank.start for rank in facts.ranks] + ([] if facts.start is None else [facts.start])
    return Analysis(
        run=facts.name,
        command=facts.command,
        exit_status=facts.exit_status,
        start=facts.start if facts.start is not None else min(starts, default=None),
        first_step_start=min(
            (rank.first_step_start for rank in facts.ranks if rank.first_step_start is not None), default=None
        ),
        last_step_end=max(
            (rank.last_step_end for rank in facts.ranks if rank.last_step_end is not None), default=None
        ),
        end=facts.end,
        finished=facts.end is not None,
        framework=next((f"{rank.framework} {rank.framework_version}".strip() for rank in facts.ranks), ""),
        world_size=max((rank.world_size for rank in facts.ranks), default=0),
        ranks=len({rank.rank for rank in facts.ranks}),
        nodes=sorted({*nodes, *(node.node for node in facts.nodes)}),
        cores={name: node.measured[Usage()].cores for name, node in nodes.items()},
        gpus={node.node: [f"{gpu.gpu}: {gpu.model}" for gpu in node.gpus] for node in facts.nodes},
        interval=facts.interval,
        samples_taken=sum(node.samples.rows for node in nodes.values()),
        samples_missed=facts.samples_missed,
        versions=dict(facts.versions),
        unknowns=list(facts.unknowns),
        rules=rules,
        usage=usage_rows({name: node.measured[Usage()] for name, node in nodes.items()}),
        heatmaps=_known(heatmaps),
        steps=_distributions(nodes, outlier_deviations),
        phase_seconds=_summed([rank.phase_seconds for rank in facts.ranks]),
        component_seconds=_summed([rank.component_seconds for rank in facts.ranks]),
        loaders=_loaders(facts),
        gpu_use=_gpu_use(nodes, facts),
        energy=energy({name: node.measured[node.energy] for name, node in nodes.items()}, facts),
        low_gpu_snapshots=_known(node.heatmap.low_gpu_snapshots(name) for name, node in nodes.items()),
        timelines=_known(node.measured[Timeline()].timeline(name) for name, node in nodes.items()),
        box_plots=[
            box for name, node in nodes.items() for box in box_plots(name, node.measured[Usage()], facts)
        ],
        utilisation_histograms=[
            histogram
            for name, node in nodes.items()
            for histogram in histograms(name, node.measured[Load()], facts)
        ],
    )


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _summed(parts: list[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            sums[name] = sums.get(name, 0.0) + seconds
    return sums


def _distributions(nodes: dict[str, _Node], deviations: float) -> list[StepDistribution]:
    """Returns the steps by rank, phase and node; histograms leave out steps above `deviations`."""
    series = [
        (rank, phase, name, durations)
        for name, node in nodes.items()
        for (rank, phase), durations in node.measured[StepDurations()].durations.items()
    ]
    return [
        StepDistribution(
            rank=rank,
            phase=phase,
            count=durations.sums.count,
            mean=durations.sums.mean,
            standard_deviation=durations.sums.standard_deviation,
            **durations.distribution(durations.limit(deviations))._asdict(),
        )
        for rank, phase, _, durations in sorted(series, key=lambda found: found[:3])
    ]


def _gpu_use(nodes: dict[str, _Node], facts: RunFacts) -> list[GpuUse]:
    known = {node.node: node.gpus for node in facts.nodes}
    rows = []
    for name, node in nodes.items():
        gpus = labelled(facts, name, node.measured[Usage()].gpus)
        for column, (label, gpu) in enumerate(gpus):
            here = known.get(name, ())[column : column + 1]
            rows.append(_use_of_gpu(name, label, gpu, here[0].memory_bytes if here else 0.0))
    return rows


def _use_of_gpu(node: str, label: str, gpu: GpuUsage, memory_bytes: float) -> GpuUse:
    use, memory = gpu.utilisation, gpu.memory
    return GpuUse(
        node=node,
        gpu=label,
        mean=_percent(use.mean),
        p50=_percent(use.percentile(50)),
        p95=_percent(use.percentile(95)),
        max=_percent(use.max),
        memory_p50=_percent(memory.percentile(50)),
        memory_p95=_percent(memory.percentile(95)),
        memory_max=_percent(memory.max),
        memory_bytes=memory_bytes,
    )


def _percent(ratio: float) -> float:
    """Returns percent with three decimals, or NaN if nothing was read (a maximum is then minus infinity)."""
    return round(100 * ratio, 3) if np.isfinite(ratio) else np.nan


def _loaders(facts: RunFacts) -> list[dict[str, Any]]:
    return [
        {
            "node": rank.node,
            "rank": rank.rank,
            "phase": loader.phase,
            "workers": loader.workers,
            "pin_memory": loader.pin_memory,
            "prefetch_factor": loader.prefetch_factor,
            "batch_size": loader.batch_size,
            "fetches": loader.fetches,
            "fetch_seconds": loader.fetch_seconds,
            "fetch_cpu_seconds": loader.fetch_cpu_seconds,
            "fetch_core_wait_seconds": loader.fetch_core_wait_seconds,
        }
        for rank in sorted(facts.ranks, key=lambda rank: (rank.rank, rank.node, rank.start))
        for loader in rank.loaders
    ]
