"""The views of the section "Details": one per topic, each with its findings first."""

from collections.abc import Callable, Set
from dataclasses import dataclass

from stepscope.common import words
from stepscope.common.status import Status
from stepscope.common.words import count, in_words, listing, number, percent, share
from stepscope.evaluation.analysis import Analysis, BoxPlot, RuleResult
from stepscope.report import sentences
from stepscope.report.devices import headline
from stepscope.report.figures import main_steps
from stepscope.report.rows import boxes, gauges, places, stalls
from stepscope.rules.batch_size import BatchSize
from stepscope.rules.collective_hang import CollectiveHang
from stepscope.rules.communication_bound import CommunicationBound
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.dataloader import Dataloader
from stepscope.rules.gpu_error import GPUError
from stepscope.rules.host_bound import HostBound
from stepscope.rules.load_balancing import LoadBalancing
from stepscope.rules.loss_not_finite import LossNotFinite
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.max_initialization_time import MaxInitializationTime
from stepscope.rules.parts.base import RuleClass
from stepscope.rules.straggler import Straggler
from stepscope.rules.thermal_throttling import ThermalThrottling
from stepscope.rules.training_stalled import TrainingStalled


@dataclass(frozen=True)
class View:
    """A part of the section "Details"; `id` is its element's."""

    id: str
    template: str
    title: str
    rules: list[RuleResult]  # whose numbers it shows
    sentences: list[str]
    anything: bool  # to show; if not, the sentences say why
    opened: bool  # at first: if a rule fired, or if most readers look here

    @property
    def fired(self) -> bool:
        return any(rule.status is Status.FOUND for rule in self.rules)


@dataclass(frozen=True)
class _Kind:
    """A view that rules name in `about.view`; the template `detail-ID.html` shows it."""

    id: str
    title: str
    say: Callable[[Analysis], list[str]]
    anything: Callable[[Analysis], bool]
    always_opened: bool = False
    is_optional: bool = False  # not named where there is nothing to show

    def view(self, analysis: Analysis) -> View:
        rules = _rules_of(analysis, {self.id})
        anything = self.anything(analysis)
        opened = anything and (any(rule.status is Status.FOUND for rule in rules) or self.always_opened)
        template = f"detail-{self.id}.html"
        return View(self.id, template, self.title, rules, self.say(analysis), anything, opened)


def views(analysis: Analysis) -> list[View]:
    """Returns the views in the order of the page; those of rules that name none of KINDS come last."""
    shown = [kind.view(analysis) for kind in KINDS if not kind.is_optional or kind.anything(analysis)]
    others = {rule.about.view for rule in sentences.decided(analysis)} - {kind.id for kind in KINDS}
    return [*shown, *map(_own_view, _rules_of(analysis, others))]


def _rules_of(analysis: Analysis, views: Set[str]) -> list[RuleResult]:
    """Returns the rules of these views, in an order that does not depend on what fired."""
    rules = [rule for rule in sentences.decided(analysis) if rule.about.view in views]
    return sorted(rules, key=lambda rule: (rule.about.distance, rule.rule))


def _own_view(rule: RuleResult) -> View:
    fired = rule.status is Status.FOUND
    anything = fired or bool(rule.details)
    return View(
        rule.rule.lower(), "detail-rule.html", rule.about.subject, [rule], [rule.finding], anything, fired
    )


def overview(shown: list[View]) -> str:
    """Summarises the section in its first sentence."""
    there = [view for view in shown if view.anything]
    fired = [view.title for view in there if view.fired]
    if not there:
        return "Nothing was recorded that could be shown in detail."
    views = (
        f"{in_words(len(there)).capitalize()} {'view' if len(there) == 1 else 'views'} of what the rules saw"
    )
    return f"{views}; rules fired on: {listing(fired)}." if fired else f"{views}; none of these rules fired."


def without(analysis: Analysis, nothing: list[View]) -> dict[str, list[View]]:
    """Groups views that have nothing to show by the reason: a run without a GPU is one."""
    reasons: dict[str, list[View]] = {}
    for view in nothing:
        of_gpus = view.id in OF_GPUS and not any(analysis.gpus.values()) and not analysis.gpu_use
        reasons.setdefault("No GPU was seen." if of_gpus else " ".join(view.sentences), []).append(view)
    return reasons


# ------------------------------------------------------------------------------------- sentences


def _finding(analysis: Analysis, rule: RuleClass) -> list[str]:
    result = analysis.result_of(rule)
    return [] if result is None else [result.finding]


def _if_fired(analysis: Analysis, rule: RuleClass) -> list[str]:
    return _finding(analysis, rule) if analysis.found(rule) else []


def _progress(analysis: Analysis) -> list[str]:
    said = _finding(analysis, MaxInitializationTime) + _finding(analysis, TrainingStalled)
    said += _finding(analysis, CollectiveHang)
    return said or ["Neither the start nor stalls were checked."]


def _training(analysis: Analysis) -> list[str]:
    rank = analysis.gauge_histories[0].rank
    first = [f"{count(len(gauges(analysis)), 'gauge')} of rank {rank}, no loss."]
    if analysis.details_of(LossNotFinite):
        first = _finding(analysis, LossNotFinite)
    of_training = [each for each in analysis.rules if each.about.view == "training"]
    found = [each.finding for each in of_training if each.status is Status.FOUND]
    return first + [each for each in found if each not in first]


def _gpus(analysis: Analysis) -> list[str]:
    found = boxes(analysis, "utilisation")
    if not found:
        return ["The utilisation of no GPU was read."]
    low, high = min(found, key=lambda box: box.p50), max(found, key=lambda box: box.p50)
    if round(low.p50) == round(high.p50):
        gpus = {1: low.device, 2: "Both GPUs"}.get(len(found), f"All {len(found)} GPUs")
        verb = "was" if len(found) == 1 else "were"
        sentence = f"{gpus} {verb} at or below {percent(high.p50)} in half of the samples."
    else:
        sentence = (
            f"The median utilisation of the {len(found)} GPUs is between {percent(low.p50)} "
            f"({_place(analysis, low)}) and {percent(high.p50)} ({_place(analysis, high)})."
        )
    return [sentence, *_if_fired(analysis, LowGPUUtilization)]


def _place(analysis: Analysis, box: BoxPlot) -> str:
    return box.device if len(analysis.nodes) == 1 else f"{box.device} of {box.node}"


def _balance(analysis: Analysis) -> list[str]:
    if not _comparable(analysis):
        return ["On no node were two GPUs read, so there is nothing to compare."]
    return _finding(analysis, LoadBalancing) or ["How the utilisation of each GPU is distributed."]


def _comparable(analysis: Analysis) -> bool:
    nodes = [histogram.node for histogram in analysis.utilisation_histograms]
    return len(nodes) > len(set(nodes))


def _batch(analysis: Analysis) -> list[str]:
    if not boxes(analysis, "utilisation"):
        return ["The utilisation of no GPU was read."]
    sizes = sorted({loader["batch_size"] for loader in analysis.loaders if loader.get("batch_size")})
    known = [f"The loaders give batches of {listing([number(size) for size in sizes])}."] if sizes else []
    return _finding(analysis, BatchSize) + known or ["How full the batches keep GPUs and cores."]


def _bottlenecks(analysis: Analysis) -> list[str]:
    rows = analysis.low_gpu_snapshots
    low, samples = sum(row.low for row in rows), sum(row.snapshots for row in rows)
    if not low:
        none = f"No GPU was low in any of {number(samples)} samples."
        return [none if rows else "No GPU was seen, so none could wait."]
    cpu, io = sum(row.cpu + row.both for row in rows), sum(row.io + row.both for row in rows)
    neither = low - sum(row.cpu + row.io + row.both for row in rows)
    return [
        f"Some GPU was low in {share(low, samples)} of the samples. In these, a core was pinned in "
        f"{share(cpu, low)} and waited for I/O in {share(io, low)}; neither explains {share(neither, low)}."
    ]


def _memory(analysis: Analysis) -> list[str]:
    found = boxes(analysis, "memory")
    if not found:
        return ["The memory of no GPU was read."]
    rules = _rules_of(analysis, {"memory"})
    fired = [rule.finding for rule in rules if rule.status is Status.FOUND]
    peaks = [use.memory_max for use in analysis.gpu_use if use.memory_max == use.memory_max]
    peak = max(peaks, default=max(box.upper for box in found))
    enough = ", and none filled up" if all(rule.status.judged for rule in rules) else ""
    return fired or [f"No GPU used more than {percent(peak)} of its memory{enough}."]


def _ranks(analysis: Analysis) -> list[str]:
    said = _finding(analysis, Straggler) + _if_fired(analysis, CommunicationBound)
    return said or ["The steps of no two ranks were recorded."]


def _energy(analysis: Analysis) -> list[str]:
    energy = analysis.energy
    if energy is None:
        return ["The power of no GPU was read."]
    sentence = f"The GPUs took {words.energy(energy.joules)}"
    steps = max((row.count for row in main_steps(analysis)), default=0)
    if steps:
        sentence += f", {words.energy(energy.joules / steps)} for each step of all ranks together"
    said = [f"{sentence}. The host, fans and losses are not included."]
    if energy.gpus_without:
        said.append(f"{count(energy.gpus_without, 'GPU')} did not report power, and are not included either.")
    return said


def _health(analysis: Analysis) -> list[str]:
    gpus = analysis.details_of(ThermalThrottling).get("gpus", [])
    cool = gpus and all(gpu["seconds"] and not gpu["heat_seconds"] for gpu in gpus)
    heat = ["Heat reduced no GPU’s clocks."] if cool else _finding(analysis, ThermalThrottling)
    said = heat + _finding(analysis, GPUError)
    return said or ["Neither heat nor errors were checked."]


def _devices(analysis: Analysis) -> list[str]:
    return [*headline(analysis), *_finding(analysis, HostBound)]


def _collectives(analysis: Analysis) -> list[str]:
    found = analysis.details_of(CommunicationBound)
    rows = [row for row in found.get("collectives", []) if row["bytes"]]
    if not rows:
        return [
            "The trace does not contain how many bytes its collectives move, so their bandwidth is not known."
        ]
    longest = rows[0]
    group = f" in {longest['group']}" if longest["group"] else ""
    what = f"Most time went into {longest['operation']} with {words.size(longest['bytes'])}{group}"
    link = found["link_bytes_per_second"]
    if longest["fastest_bus_bytes_per_second"] is None:
        return [f"{what}; its bus bandwidth is not known, because the ranks of its group are not."]
    reached = (
        f"{what}: its fastest call reached {words.rate(longest['fastest_bus_bytes_per_second'])} on the bus"
    )
    if link is None:
        unknown = (
            "The speed of the link is not in a trace: --set CommunicationBound.link_bandwidth=GB/s compares."
        )
        return [f"{reached}.", unknown]
    return [f"{reached}, {percent(longest['link_percent'])} of the link’s {words.rate(link)}."]


OF_GPUS = {"devices", "gpus", "balance", "batch", "bottlenecks", "memory", "energy", "health"}
KINDS = (
    _Kind("devices", "GPUs of the trace", _devices, lambda a: bool(a.devices), True),
    _Kind("steps", "Step durations", sentences.steps, lambda a: bool(a.steps), True),
    _Kind("progress", "Start and stalls", _progress,
          lambda a: bool(stalls(a) or places(a) or a.details_of(MaxInitializationTime).get("nodes")
                         or a.details_of(CollectiveHang).get("dumps"))),
    _Kind("training", "Loss and other gauges", _training,
          lambda a: bool(a.gauge_histories), is_optional=True),
    _Kind("gpus", "Utilisation of each GPU", _gpus,
          lambda a: bool(boxes(a, "utilisation")), True),
    _Kind("balance", "Balance between GPUs", _balance, _comparable),
    _Kind("loading", "Data loading", sentences.loading,
          lambda a: bool(a.loaders or a.details_of(Dataloader) or a.details_of(DataStarved))),
    _Kind("batch", "Batch size", _batch, lambda a: bool(boxes(a, "utilisation"))),
    _Kind("bottlenecks", "CPU and I/O bottlenecks", _bottlenecks,
          lambda a: any(row.low for row in a.low_gpu_snapshots)),
    _Kind("memory", "GPU memory over time", _memory, lambda a: bool(boxes(a, "memory"))),
    _Kind("ranks", "Ranks side by side", _ranks,
          lambda a: a.ranks > 1 and bool(a.details_of(Straggler).get("ranks"))),
    _Kind("collectives", "Collectives of the trace", _collectives,
          lambda a: bool(a.details_of(CommunicationBound).get("collectives"))),
    _Kind("energy", "Energy", _energy, lambda a: a.energy is not None),
    _Kind("health", "Throttling and errors", _health,
          lambda a: bool(a.details_of(ThermalThrottling).get("gpus"))),
)  # fmt: skip
