"""Evaluates all rules over a run in one pass: once, or repeatedly while the run continues."""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from stepscope.common.errors import UserError
from stepscope.common.status import Status
from stepscope.common.words import capitalised, duration
from stepscope.evaluation import reported
from stepscope.evaluation.account import Account, account
from stepscope.evaluation.analysis import Analysis, Band, GpuUse, Profile, RuleResult, RunCores, RunUse
from stepscope.evaluation.blocks import Block, Blocks
from stepscope.evaluation.devices import box_plots, core_histograms, histograms
from stepscope.evaluation.live import LiveJudgement
from stepscope.evaluation.problems import in_order
from stepscope.evaluation.profile import profile_of, with_evidence, with_python
from stepscope.evaluation.settings import Account as AccountParameters
from stepscope.evaluation.settings import Settings
from stepscope.evaluation.traced_devices import too_little
from stepscope.exporter.sampling.active_runs import UNNAMED
from stepscope.measurements.counted import counted, flops_utilisation, with_flops
from stepscope.measurements.energy import EnergyOfNode, energy
from stepscope.measurements.hangs import STOPPED
from stepscope.measurements.heatmap import HeatmapOfNode
from stepscope.measurements.load import LOAD
from stepscope.measurements.measure import Measure, NodeMeasurements, RunMeasurements, Subject, Views
from stepscope.measurements.memory_growth import HOST_MEMORY_GROWTH
from stepscope.measurements.own_cores import OWN_CORES
from stepscope.measurements.own_times import OWN_TIMES, uneven_component, waited_by_turns
from stepscope.measurements.run_use import RUN_USE
from stepscope.measurements.state import State
from stepscope.measurements.step_totals import STEP_TOTALS, restarts
from stepscope.measurements.steps import STEP_DURATIONS, StepDistribution
from stepscope.measurements.timeline import TIMELINE
from stepscope.measurements.training_gauges import histories_of_first_rank
from stepscope.measurements.usage import USAGE, GpuUsage, usage_rows
from stepscope.rules.parts.base import Rule, Verdict
from stepscope.rules.parts.judgement import Tallies, Tally
from stepscope.rules.parts.remedies import why_no_steps
from stepscope.rules.parts.shares import summed
from stepscope.rules.parts.starting import beginning_of
from stepscope.rules.parts.starvation import Starvation
from stepscope.rules.parts.topics import Effect
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import GpuFacts, NodeSamples, RunFacts, Source, Steps, Times, labelled, why_no_gpu

NO_TRAINING = "It is not known whether its processes train: they do not use Stepscope."
SCAN_INTERVAL = 60.0  # seconds, as Debugger's
WHOLE_RUN = 1e12  # seconds that no run takes: its only scan is the last one
# Measurements of the report, whatever the rules need.
REPORTED: tuple[Measure[Any], ...] = (
    *(USAGE, OWN_CORES, OWN_TIMES, RUN_USE, HOST_MEMORY_GROWTH, LOAD),
    *(STEP_DURATIONS, STEP_TOTALS, TIMELINE),
)
USUAL = "Usual while a run starts or evaluates, so it is no finding yet."
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
        self._settings = settings or Settings()
        self._rules = self._settings.rules()
        self._nodes: dict[str, _Node] = {}

    def advance(self, progress: Callable[[int], None] | None = None) -> None:
        """Reads the source's new rows since the last call."""
        rows = 0
        for chunk in self._source.read():
            if chunk.node not in self._nodes:
                interval = self._source.facts.interval
                self._nodes[chunk.node] = _Node(
                    self._rules, self._scan_interval, interval, self._source.judged_whole
                )
            self._nodes[chunk.node].add(chunk)
            rows += len(chunk)
            if progress is not None:
                progress(rows)

    def analysis(self, live: bool = False) -> Analysis:
        """Returns the analysis of all rows so far, including the last, shorter scan; changes no state.

        `live`: more rows will come, so rules without enough data are *collecting*.
        """
        facts = self._source.facts
        nodes = {name: self._nodes[name].settled() for name in sorted(self._nodes)}
        run = RunMeasurements(
            facts, {name: node.measured for name, node in nodes.items()}, self._source.judged_whole, live
        )
        now = max((node.last_scan for node in nodes.values()), default=-np.inf)
        beginning = beginning_of(facts.ranks, now) if live else None
        little = too_little(facts) if run.whole else ""
        results = []
        for rule in self._rules:
            verdict = _verdict(rule, nodes, run, live)
            if little and verdict.status is Status.HEALTHY:
                reason = f"{capitalised(little)}."
                verdict = replace(verdict, status=Status.NOT_ENOUGH_DATA, finding=reason)
            bands = [*_bands(rule, nodes, facts), *verdict.held]
            if beginning is not None and rule.is_usual(beginning):
                bands = [band for band in bands if not band.lasts]
                if verdict.status is Status.FOUND:
                    finding = f"{USUAL} {verdict.finding}"
                    verdict = replace(verdict, status=Status.COLLECTING, finding=finding)
            results.append(RuleResult.of(rule, verdict, bands))
        stddev = next(rule.parameters.stddev for rule in self._rules if isinstance(rule, StepOutlier))
        found = _analysis(run, nodes, in_order(results), little, stddev, self._settings.of(AccountParameters))
        if found.is_trace:
            return found
        profile = None if live else with_python(self._profile(), self._source.python_windows())
        rules = with_evidence(found.rules, profile)
        if profile is not None and found.flops_utilisation is None:
            used = flops_utilisation(with_flops(facts.ranks, profile.flops))
            found = replace(found, flops_utilisation=used)
        return replace(found, rules=rules, account=_account(found, facts, nodes), profile=profile)

    def _profile(self) -> Profile | None:
        """Returns what the traces of the run's windows show."""
        traces = self._source.traces()
        if traces is None:
            return None
        evaluator = Evaluator(traces, self._settings)
        try:
            evaluator.advance()
            return profile_of(evaluator.analysis(), traces.facts)
        except UserError as error:  # none can be read
            return Profile((), (), (str(error),))


def _verdict(rule: Rule[Any, Any], nodes: "dict[str, _Node]", run: RunMeasurements, live: bool) -> Verdict:
    """Returns the verdict of a rule for the run so far. A failure of one rule does not stop the others."""
    if run.facts.reported:
        return reported.verdict(rule, run.facts)
    if not (rule.any_process or rule.effect is Effect.OVERVIEW) and re.fullmatch(UNNAMED, run.facts.run):
        return Verdict(Status.NOT_ENOUGH_DATA, NO_TRAINING)
    for node in nodes.values():
        if rule.name in node.failures:
            return node.failures[rule.name]
    try:
        for node in nodes.values():
            node.measured.check(rule.measure, *rule.details_of)
        tallies = Tallies({name: node.tallies[rule.name] for name, node in nodes.items()})
        verdict = rule.conclude(run, tallies)
        if verdict.status is Status.NOT_ENOUGH_DATA and rule.bands is not None and not run.whole:
            verdict = _early(rule, nodes, run) or verdict
    except Exception as error:  # noqa: BLE001 - a report without one rule is better than none
        return _failed(error)
    if rule.about_gpus and verdict.status is Status.NOT_ENOUGH_DATA and (reason := why_no_gpu(run.facts)):
        verdict = replace(verdict, finding=reason)
    collecting = live and verdict.status is Status.NOT_ENOUGH_DATA
    return replace(verdict, status=Status.COLLECTING) if collecting else verdict


def _early(rule: Rule[Any, Any], nodes: "dict[str, _Node]", run: RunMeasurements) -> Verdict | None:
    """Returns the verdict on a run that is too short for `patience`, if its last scan is clear-cut."""
    tallies = Tallies({name: node.live[rule.name].tallies for name, node in nodes.items()})
    verdict = rule.conclude(run, tallies)
    if not tallies.judged or not verdict.status.judged:
        return None
    seconds = max(node.samples.rows for node in nodes.values()) * run.facts.interval
    when = f"After {duration(seconds)} of samples" if seconds else "After few steps"
    return replace(verdict, finding=f"{when}: {verdict.finding}")


def _bands(rule: Rule[Any, Any], nodes: "dict[str, _Node]", facts: RunFacts) -> list[Band]:
    judged = ((name, node) for name, node in nodes.items() if rule.name in node.live)
    return [band for name, node in judged for band in node.live[rule.name].bands(name, facts, node.last_scan)]


def _failed(error: Exception) -> Verdict:
    return Verdict(Status.FAILED, f"This rule failed with {type(error).__name__}: {error}")


class _Node(State):
    """The state of one node: its measurements, and the rules' tallies of their scans."""

    def __init__(
        self, rules: list[Rule[Any, Any]], scan_interval: float, interval: float, whole: bool
    ) -> None:
        self.scan_interval = WHOLE_RUN if whole else scan_interval
        self.whole = whole  # judged once, over all steps
        self.rules = rules
        measures = (measure for rule in self.rules for measure in (rule.measure, *rule.details_of))
        self.energy = Measure(EnergyOfNode, interval)
        self.measured = NodeMeasurements([*measures, *REPORTED, self.energy])
        self.tallies: dict[str, dict[Subject, Tally]] = {rule.name: {} for rule in self.rules}
        self.live = {
            rule.name: LiveJudgement(rule, rule.bands, interval)
            for rule in self.rules
            if rule.bands is not None and not whole
        }
        self.failures: dict[str, Verdict] = {}  # of rules that failed at a scan, which are judged no more
        self.last_scan = -np.inf
        # The samples that the rules of both causes count as starved.
        self.starved = {rule.cause: rule.measure for rule in rules if isinstance(rule, Starvation)}
        self.heatmap = HeatmapOfNode()
        self.heatmap_failure: Exception | None = None
        self.samples: Blocks[NodeSamples] = Blocks(scan_interval)
        self.steps: dict[int, Blocks[Steps]] = {}

    def add(self, chunk: NodeSamples | Steps) -> None:
        if isinstance(chunk, NodeSamples):
            for block in self.samples.add(chunk):
                self._observe(block)
        else:
            if chunk.rank not in self.steps:
                self.steps[chunk.rank] = Blocks(self.scan_interval)
            for steps in self.steps[chunk.rank].add(chunk):
                self._observe_steps(steps)

    def settled(self) -> "_Node":
        """Returns a copy that has read every row so far."""
        copy = self.copy()
        for block in copy.samples.rest():
            copy._observe(block)
        for _, blocks in sorted(copy.steps.items()):
            for steps in blocks.rest():
                copy._observe_steps(steps)
        return copy

    def _observe(self, block: Block[NodeSamples]) -> None:
        self._judge(self.measured.observe(block.rows, block.scans), block.times)
        if self.heatmap_failure is not None:
            return
        starved = [self.starved[cause] for cause in ("cpu", "io")]
        try:
            self.measured.check(*starved)
            self.heatmap.observe(block.rows, *(self.measured[measure] for measure in starved))
        except Exception as error:  # noqa: BLE001 - as in _verdict
            self.heatmap_failure, self.heatmap = error, HeatmapOfNode()

    def _observe_steps(self, block: Block[Steps]) -> None:
        self._judge(self.measured.observe_steps(block.rows, block.scans), block.times)

    def _judge(self, views: dict[Measure[Any], Views[Any]], times: Times) -> None:
        self.last_scan = max(self.last_scan, *times.tolist(), -np.inf)
        for rule in self.rules:
            if not rule.by_scan or rule.name in self.failures:
                continue
            tallies = self.tallies[rule.name]
            try:
                for subject, view in views.get(rule.measure, ()):
                    tally = tallies.setdefault(subject, Tally())
                    judged = rule.judge_whole(view) if self.whole else rule.judge(view)
                    tally.add(judged, getattr(view, "new", None), getattr(view, "times", None))
                    if rule.name in self.live:
                        self.live[rule.name].add(subject, view, judged, times)
            except Exception as error:  # noqa: BLE001 - as in _verdict
                self.failures[rule.name] = _failed(error)


def _analysis(
    run: RunMeasurements,
    nodes: dict[str, _Node],
    rules: list[RuleResult],
    little: str,
    outlier_deviations: float,
    parameters: AccountParameters,
) -> Analysis:
    facts = run.facts
    heatmaps = (node.heatmap.heatmap(name, facts) for name, node in nodes.items())
    starts = [rank.start for rank in facts.ranks] + ([] if facts.start is None else [facts.start])
    of_ranks = [times for node in nodes.values() for times in node.measured[OWN_TIMES].ranks.values()]
    return Analysis(
        run=facts.label,
        is_trace=run.whole,
        too_little=little,
        large=parameters.large / 100,
        shortest=parameters.shortest,
        name=facts.name,
        command=facts.command,
        exit_status=facts.exit_status,
        ended=facts.ended,
        stopped_by=facts.stopped_by,
        exception=facts.exception,
        restarted_after=facts.restarted_after,
        restarts=restarts(facts.ranks, [node.measured[STEP_TOTALS] for node in nodes.values()]),
        last_steps=sorted(
            (step for name, node in nodes.items() for step in node.measured[STEP_TOTALS].last_steps(name)),
            key=lambda step: (step.rank, step.node),
        ),
        start=facts.start if facts.start is not None else min(starts, default=None),
        first_step_start=min(
            (rank.first_step_start for rank in facts.ranks if rank.first_step_start is not None), default=None
        ),
        last_step_end=max(
            (rank.last_step_end for rank in facts.ranks if rank.last_step_end is not None), default=None
        ),
        end=facts.end,
        finished=facts.end is not None,
        framework=next(
            (f"{rank.framework} {rank.framework_version}".strip() for rank in facts.ranks if rank.framework),
            "",
        ),
        gauges=next(
            (rank.gauges for rank in sorted(facts.ranks, key=lambda r: (r.rank, -r.start)) if rank.gauges), {}
        ),
        gauge_histories=histories_of_first_rank(facts),
        counted=counted(facts.ranks),
        compiled_steps=max(
            (steps for node in nodes.values() for steps in node.measured[STEP_TOTALS].compiled.values()),
            default=0,
        ),
        waited_by_turns=(by_turns := waited_by_turns(of_ranks)),
        uneven_component=uneven_component(of_ranks) if by_turns else "",
        stopped_seconds={  # a rank's later process continues its counts
            rank.rank: rank.paused_seconds.get(STOPPED, 0.0)
            for rank in sorted(facts.ranks, key=lambda rank: rank.start)
        },
        flops_utilisation=flops_utilisation(facts.ranks),
        world_size=max((rank.world_size for rank in facts.ranks), default=0),
        ranks=len({rank.rank for rank in facts.ranks}),
        nodes=sorted({*nodes, *(node.node for node in facts.nodes)}),
        cores={name: node.measured[USAGE].cores for name, node in nodes.items()},
        gpus={
            node.node: [f"{gpu.gpu}: {gpu.model}" for gpu in node.gpus if gpu.may_be_used]
            for node in facts.nodes
        },
        interval=facts.interval,
        samples_taken=sum(node.samples.rows for node in nodes.values()),
        samples_missed=facts.samples_missed,
        versions=dict(facts.versions),
        unknowns=[*facts.unknowns, *(said for name, node in nodes.items() for said in _failures(name, node))],
        gaps=list(facts.gaps),
        no_steps="" if any(node.steps for node in nodes.values()) else why_no_steps(facts),
        rules=rules,
        usage=reported.usage(facts.reported)
        or usage_rows({name: node.measured[USAGE] for name, node in nodes.items()}),
        heatmaps=_known(heatmaps),
        steps=_distributions(nodes, outlier_deviations),
        phase_seconds=summed(rank.phase_seconds for rank in facts.ranks),
        component_seconds=summed(rank.component_seconds for rank in facts.ranks),
        loaders=[
            {"node": rank.node, **asdict(loader)}
            for rank in sorted(facts.ranks, key=lambda rank: (rank.rank, rank.node, rank.start))
            for loader in rank.loaders
        ],
        gpu_use=_gpu_use(nodes, facts),
        energy=energy({name: node.measured[node.energy] for name, node in nodes.items()}, facts),
        low_gpu_snapshots=_known(node.heatmap.low_gpu_snapshots(name) for name, node in nodes.items()),
        run_cores=[
            RunCores(name, own.allowed, own.own_cores, own.others_cores)
            for name, node in nodes.items()
            if (own := node.measured[OWN_CORES]).seconds and own.allowed > 0
        ],
        run_use=[
            RunUse(
                name,
                cores=use.per_second("cpu_seconds"),
                allowed=use.allowed,
                waited_share=use.waited_share,
                read_per_second=use.per_second("disk_read_bytes"),
                written_per_second=use.per_second("disk_written_bytes"),
                memory=use.held,
                memory_capacity=use.capacity,
                memory_growth=use.capacity * node.measured[HOST_MEMORY_GROWTH].per_second(),
            )
            for name, node in nodes.items()
            if (use := node.measured[RUN_USE]).seconds["cpu_seconds"]
        ],
        threads=list(facts.threads),
        unobserved_seconds=facts.unobserved_seconds,
        devices=list(facts.devices),
        windows=list(facts.windows),
        unrecognised=facts.unrecognised,
        damaged=facts.damaged,
        timelines=_known(node.measured[TIMELINE].timeline(name) for name, node in nodes.items()),
        box_plots=[
            box for name, node in nodes.items() for box in box_plots(name, node.measured[USAGE], facts)
        ],
        utilisation_histograms=[
            histogram
            for name, node in nodes.items()
            for histogram in histograms(name, node.measured[LOAD], facts)
        ],
        core_histograms=[
            histogram
            for name, node in nodes.items()
            for histogram in core_histograms(name, node.measured[USAGE], facts)
        ],
    )


def _account(analysis: Analysis, facts: RunFacts, nodes: dict[str, _Node]) -> Account | None:
    recorded: dict[tuple[int, str], Times] = {}
    for node in nodes.values():
        for key, seconds in node.measured[STEP_TOTALS].seconds.items():
            recorded[key] = recorded.get(key, 0.0) + seconds
    return account(analysis.start, analysis.last_seen, facts.ranks, recorded, facts.threads, facts.windows)


def _failures(name: str, node: _Node) -> list[str]:
    """Returns a sentence for each measurement that failed: what it would have shown is missing."""
    said = (
        f"A measurement of {name} failed, so what it counts is missing ({type(error).__name__}: {error})."
        for error in _known((*node.measured.failures.values(), node.heatmap_failure))
    )
    return list(dict.fromkeys(said))


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _distributions(nodes: dict[str, _Node], deviations: float) -> list[StepDistribution]:
    """Returns the steps by rank, phase and node; histograms leave out steps above `deviations`."""
    series = [
        (*key, name, durations)
        for name, node in nodes.items()
        for key, durations in node.measured[STEP_DURATIONS].durations.items()
    ]
    return [
        durations.distribution(rank, phase, durations.limit(deviations))
        for rank, phase, _, durations in sorted(series, key=lambda found: found[:3])
    ]


def _gpu_use(nodes: dict[str, _Node], facts: RunFacts) -> list[GpuUse]:
    known = {node.node: node.gpus for node in facts.nodes}
    rows = []
    for name, node in nodes.items():
        gpus = labelled(facts, name, node.measured[USAGE].gpus)
        for column, (label, gpu) in enumerate(gpus):
            here = known.get(name, ())[column : column + 1]
            if not here or here[0].may_be_used:
                rows.append(_use_of_gpu(name, label, gpu, here[0] if here else GpuFacts(label)))
    return rows


def _use_of_gpu(node: str, label: str, gpu: GpuUsage, facts: GpuFacts) -> GpuUse:
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
        memory_bytes=facts.memory_bytes,
        by=facts.by,
    )


def _percent(ratio: float) -> float:
    """Returns percent with three decimals, or NaN if nothing was read (a maximum is then minus infinity)."""
    return round(100 * ratio, 3) if np.isfinite(ratio) else np.nan
