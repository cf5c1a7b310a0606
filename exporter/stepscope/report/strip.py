"""The strip of the first screen: what the run did over time, and when its findings held, on one time axis.

The rows are drawn as SVG here, so that they need no script and print as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.common.words import day_and_time, duration, gauge, percent, size, time_of_day
from stepscope.evaluation.analysis import Analysis, Profile, RuleResult
from stepscope.evaluation.problems import problems_of
from stepscope.measurements.training_gauges import LOSSES, PACES, RATES, named_first, over_time
from stepscope.report import shares
from stepscope.report.held import at_times, said_of, together, wholes
from stepscope.report.sentences import device_name
from stepscope.runs.model import PHASES, PICTURE, DeviceMemory

COLUMNS = 240
PARTS = {  # of pictures of steps: their colours and names
    "data_wait": ("data_wait", "data loading"),
    "communication": ("communication", "communication"),
    "backward": ("backward", "backward"),
    "optimizer": ("optimizer", "optimizer"),
    "operators": ("forward", "other operators"),
    "before": ("others", "before the window"),
    "compute": ("amount", "kernels"),
    "copy": ("host_to_device", "copies"),
}
FINDINGS = 4  # rows of bands; the heatmap has a band for every rule
HIGHEST = 98  # the percentile of a gauge's values that is drawn at full height
TICKS = 5  # at most, so that they fit a phone
STEPS_OF_TICKS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720)),
)
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """A quantity over time in percent, NaN where it is not known; `key` picks its colour."""

    key: str
    name: str
    percents: Numbers

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.percents)) if np.isfinite(self.percents).any() else float("nan")


@dataclass(frozen=True)
class Row:
    """A row of the strip; its layers are stacked."""

    name: str
    layers: list[Layer]
    words: str = ""  # of a quantity that is no share

    @property
    def in_words(self) -> str:
        """Describes the row to readers that cannot see it."""
        if self.words:
            return self.words
        return f"{self.name}: " + ", ".join(
            f"{layer.name} {percent(layer.mean)} on average" for layer in self.layers
        )

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Returns the colour and the SVG path of each layer, the topmost first, in a box of COLUMNS x 100."""
        tops = np.cumsum([np.nan_to_num(layer.percents) for layer in self.layers], axis=0)
        found = [(layer.key, _path(top)) for layer, top in zip(self.layers, tops, strict=True)]
        return found[::-1]

    @property
    def unknown(self) -> list[tuple[int, int]]:
        """Returns first column and number of the columns in which nothing is known."""
        missing = np.isnan([layer.percents for layer in self.layers]).all(axis=0)
        edges = np.flatnonzero(np.diff(missing.astype(int), prepend=0, append=0))
        return [(int(first), int(end - first)) for first, end in edges.reshape(-1, 2)]


@dataclass(frozen=True)
class Bands:
    """A row of bands: when a finding held. Places are percent of the strip's width."""

    name: str
    spans: list[tuple[float, float, str]]  # from, width, where and how bad


@dataclass(frozen=True)
class Strip:
    """Rows on one time axis, from the start to the end of the run."""

    rows: list[Row]
    findings: list[Bands]
    ticks: list[tuple[float, str]]  # place in percent, time of day
    label: str = "The run over time"
    axis: str = "Time, UTC"

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Returns colour and meaning, where a row has several colours, and of the bands."""
        several = [
            (layer.key, layer.name) for row in self.rows if len(row.layers) > 1 for layer in row.layers
        ]
        unknown = [("unknown", "not known")] if any(row.unknown for row in self.rows) else []
        several = list(dict.fromkeys(several))
        return [*several, *([("band", "a finding held")] if self.findings else []), *unknown]


def slow_and_median(profile: Profile) -> Strip | None:
    """Returns a step of the slowest rank above one of the rank in the middle; None of one rank."""
    if not profile.pictures:
        return None
    longest = max(picture.seconds for picture in profile.pictures)
    time = _Axis(0.0, longest)
    rows = []
    for picture in profile.pictures:
        column = picture.seconds / PICTURE
        for device, parts in picture.lanes.items():
            layers = []
            for part, percents in parts.items():
                mean = _Mean(time)
                amounts = np.frombuffer(percents, np.uint8) / 100 * column
                mean.add(0.0, column, amounts, np.full(PICTURE, column))
                layers.append(Layer(*PARTS[part], np.nan_to_num(mean.percents)))
            rows.append(Row(f"{device.upper()} of rank {picture.rank}, step {picture.number}", layers))
    ticks = [(50.0 * half, duration(half * longest / 2)) for half in range(3)]
    return Strip(rows, [], ticks, "A step of the slowest rank, and of the one in the middle", "Time in step")


def memory_over_time(device: DeviceMemory) -> Strip | None:
    """Returns what a window's steps held of a device's memory; None if no window knows it."""
    if not device.held:
        return None
    layers = [
        Layer(*PARTS[part], np.frombuffer(percents, np.uint8).astype(float))
        for part, percents in reversed(device.held.items())
    ]
    every = -(-len(device.begins) // TICKS)
    ticks = [(place, f"step {number}") for number, place in device.begins[::every]]
    name = f"{device_name(device.device)} of rank {device.rank}, up to {size(device.most)}"
    return Strip(
        [Row(name, layers)], [], ticks, "Memory by the part of the step that allocated it", "Begin of"
    )


def strip(analysis: Analysis) -> Strip | None:
    """Returns the strip; None if neither steps nor samples were recorded."""
    time = _axis(analysis)
    if time is None:
        return None
    steps = _steps(analysis, time), _waiting(analysis, time)
    rows = [row for row in (*steps, *_use(analysis, time), *_gauges(analysis, time)) if row]
    return Strip(rows, list(_findings(analysis, time))[:FINDINGS], list(_ticks(time)))


@dataclass(frozen=True)
class _Axis:
    start: float  # seconds since the epoch
    end: float

    @property
    def edges(self) -> Numbers:
        return np.linspace(self.start, self.end, COLUMNS + 1)

    def place(self, time: float) -> float:
        """Returns a moment in percent of the axis."""
        return 100 * min(max((time - self.start) / (self.end - self.start), 0.0), 1.0)


def _axis(analysis: Analysis) -> _Axis | None:
    spans = [(one.times[0], one.times[-1] + one.column_seconds) for one in analysis.heatmaps if one.times]
    for line in analysis.timelines:
        columns = max((len(seconds) for seconds in line.phase_seconds.values()), default=0)
        spans.append((line.start, line.start + columns * line.column_seconds))
    if not spans:
        return None
    start = min(start for start, _ in spans) if analysis.start is None else analysis.start
    lasted = analysis.run_seconds
    end = max(end for _, end in spans)
    if lasted and not analysis.unobserved_seconds:
        end = start + lasted
    return _Axis(start, max(end, start + 1.0))


class _Mean:
    """A mean over nodes, by column of the axis."""

    def __init__(self, time: _Axis) -> None:
        self._edges = time.edges
        self._amounts, self._weights = np.zeros((2, COLUMNS))

    def add(self, start: float, column_seconds: float, amounts: ArrayLike, weights: ArrayLike) -> None:
        """Adds what columns from `start` on sum up, and the weight of each."""
        for total, added in ((self._amounts, amounts), (self._weights, weights)):
            so_far = np.concatenate(([0.0], np.cumsum(np.asarray(added, float))))
            moments = start + column_seconds * np.arange(len(so_far))
            total += np.diff(np.interp(self._edges, moments, so_far))

    @property
    def percents(self) -> Numbers:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(np.where(self._weights > 0, 100 * self._amounts / self._weights, np.nan), 0, 100)

    @property
    def known(self) -> bool:
        return bool(self._weights.any())


def _steps(analysis: Analysis, time: _Axis) -> Row | None:
    """Returns the share of the ranks' time in each phase; what is empty is time between steps."""
    layers = []
    phases = [phase for phase in PHASES if any(phase in line.phase_seconds for line in analysis.timelines)]
    for phase in phases:
        mean = _Mean(time)
        for line in analysis.timelines:
            columns = max(map(len, line.phase_seconds.values()))
            seconds = line.phase_seconds.get(phase, [0.0] * columns)
            mean.add(line.start, line.column_seconds, seconds, [line.column_seconds * line.ranks] * columns)
        name = shares.NAMES[phase].lower()
        layers.append(Layer(phase, name, np.nan_to_num(mean.percents)))
    return Row("Steps", layers) if layers else None


def _waiting(analysis: Analysis, time: _Axis) -> Row | None:
    mean = _Mean(time)
    for line in analysis.timelines:
        ranks = [line.column_seconds * line.ranks] * len(line.waiting_seconds)
        mean.add(line.start, line.column_seconds, line.waiting_seconds, ranks)
    if shares.data_wait(analysis) is None or not mean.known:
        return None
    return Row("Waiting for data", [Layer("data_wait", "of all time", np.nan_to_num(mean.percents))])


def _use(analysis: Analysis, time: _Axis) -> Iterator[Row | None]:
    gpus, cores, own, others = (_Mean(time) for _ in range(4))
    allowed = {node.node: node.allowed for node in analysis.run_cores}
    for one in analysis.heatmaps:
        at = (one.times[0], one.column_seconds) if one.times else (0.0, 1.0)
        values = np.array(one.values, float).reshape(len(one.rows), -1) / 100
        is_gpu = np.array([label.startswith("GPU") for label in one.rows], bool)
        for mean, rows in ((gpus, values[is_gpu]), (cores, values[~is_gpu])):
            mean.add(*at, np.nansum(rows, axis=0), np.isfinite(rows).sum(axis=0))
        weight = allowed.get(one.node, 1.0)
        for mean, which in ((own, "own"), (others, "others")):
            used = np.array(one.core_use.get(which, []), float) / 100
            mean.add(*at, np.nan_to_num(used) * weight, np.isfinite(used) * weight)
    yield Row("GPU in use", [Layer("amount", "busy", gpus.percents)]) if gpus.known else None
    if own.known:
        layers = [Layer("amount", "this run", own.percents), Layer("others", "others", others.percents)]
        yield Row("CPU in use", layers)
    elif cores.known:
        yield Row("CPU in use", [Layer("amount", "of the node", cores.percents)])


def _gauges(analysis: Analysis, time: _Axis) -> Iterator[Row]:
    """Yields the loss, the learning rate and the throughput that training publishes."""
    for title, names in (("Loss", LOSSES), ("Learning rate", RATES), ("Throughput", PACES)):
        histories = named_first(analysis.gauge_histories, names)
        values = over_time(histories, time.edges)
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        # A few extreme values at the start must not flatten all others.
        low, high = min(0.0, float(known.min())), float(np.percentile(known, HIGHEST))
        heights = np.clip(100 * (values - low) / (high - low if high > low else 1.0), 0, 100)
        first, last = gauge(float(histories[0].values[0])), gauge(histories[-1].last)
        words = f"{histories[0].name} from {first} to {last}"
        yield Row(f"{title}, {first} to {last}", [Layer("gauge", words, heights)], words)


def _findings(analysis: Analysis, time: _Axis) -> Iterator[Bands]:
    """Yields when problems held, then the rules that held only at times; rules may have no bands."""
    for problem in problems_of(analysis):
        yield from _bands(problem.title, [problem.rule, *problem.also], time, wholes(analysis))
    for rule in at_times(analysis):
        yield from _bands(f"{rule.about.subject}, at times", [rule], time, wholes(analysis))


def _bands(name: str, rules: Sequence[RuleResult], time: _Axis, wholes: Mapping[str, int]) -> Iterator[Bands]:
    spans = []
    for group in together(band for rule in rules for band in rule.bands):
        start = time.place(min(band.start for band in group))
        end = time.place(max(band.end for band in group))
        spans.append((start, max(end - start, 0.4), said_of(group, rules, wholes)))
    if spans:
        yield Bands(name, spans)


def _ticks(time: _Axis) -> Iterator[tuple[float, str]]:
    seconds = time.end - time.start
    step = next((one for one in STEPS_OF_TICKS if seconds / one <= TICKS), STEPS_OF_TICKS[-1])
    long = seconds > 36 * 3600
    for tick in range(int(-(-time.start // step)), int(time.end // step) + 1):
        moment = tick * step
        words = day_and_time(moment) if long else time_of_day(moment).removesuffix(" UTC")
        yield time.place(moment), words.removesuffix(":00") if step % 60 == 0 and not long else words


def _path(tops: Numbers) -> str:
    """Returns an area of steps, in whole percent; columns of the same height are one line."""
    heights = (100 - np.rint(tops)).astype(int)
    changes = np.flatnonzero(np.diff(heights))
    drawn = [f"M0 100V{heights[0]}"]
    drawn += [f"H{column + 1}V{heights[column + 1]}" for column in changes.tolist()]
    return f"{''.join(drawn)}H{COLUMNS}V100Z"
