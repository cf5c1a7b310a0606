"""Defines measurements of a node: a `Measure` asks for one, a `Measurement` contains the counts so far."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.state import Scans, State
from stepscope.runs.model import NodeSamples, RunFacts, Steps, Times

# What a view is about: a GPU's column, a rank and phase, "" for the node itself.
Subject = Hashable

V = TypeVar("V")
Views = Iterable[tuple[Subject, V]]


class Measurement(State, Generic[V]):
    """Counts the samples and steps of one node, given in blocks of rows, each row once, in time order.

    Both methods return views: for each subject, what was known at the end of each scan in the block, as
    arrays of one value per scan. Rules judge views.
    """

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[V]:
        """Adds samples; the columns may grow from block to block, and are NaN where missing."""
        return ()

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[V]:
        """Adds finished steps of one rank of the node."""
        return ()


class Portion(NamedTuple):
    """A part of a whole, in samples or seconds since the run began; a window is the difference of two."""

    seen: Times  # samples, readings or steps so far
    whole: Times
    part: Times
    new: NDArray[np.bool_] | None = None  # scans that saw something new; None: all

    def __sub__(self, earlier: "Portion") -> "Portion":
        return Portion(self.seen - earlier.seen, self.whole - earlier.whole, self.part - earlier.part)

    def moments(self) -> Times:
        """Returns (scans, 3) numbers; see Cumulative."""
        return np.column_stack((self.seen, self.whole, self.part))

    def of(self, moments: Times) -> "Portion":
        return Portion(*moments.T)

    @property
    def ratio(self) -> Times:
        """Returns the share of the part, NaN where the whole is 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.divide(self.part, self.whole))


class PortionSoFar(State):
    """The rows so far, their whole, and the part of it."""

    def __init__(self) -> None:
        self.seen = self.at_last_scan = 0
        self.whole = self.part = 0.0

    def add(self, whole: Times, part: Times, ends: Scans) -> Portion:
        """Adds what each row adds; `ends` are the numbers of rows up to each scan."""
        whole_until = self.whole + np.concatenate(([0.0], np.cumsum(whole)))
        part_until = self.part + np.concatenate(([0.0], np.cumsum(part)))
        so_far = self.seen + ends
        new = np.diff(so_far, prepend=self.at_last_scan) > 0
        if len(ends):
            self.at_last_scan = int(so_far[-1])
        self.seen += len(whole)
        self.whole, self.part = float(whole_until[-1]), float(part_until[-1])
        return Portion(so_far.astype(float), whole_until[ends], part_until[ends], new)

    @property
    def percent(self) -> float:
        """Returns the share of the part in percent; 0 if the whole is 0."""
        return 100 * self.part / self.whole if self.whole else 0.0


class GpuMeasurement(State, Generic[V]):
    """The counts of one GPU."""

    @abstractmethod
    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> V:
        """Adds samples of the GPU in this column, and returns its view."""


G = TypeVar("G", bound=GpuMeasurement[Any])


class ByGpu(Measurement[V], Generic[V, G]):
    """A measurement per GPU of a node, made by `new` when its column is first seen; subjects are columns."""

    def __init__(self, new: Callable[[], G]) -> None:
        self.new = new
        self.gpus: list[G] = []

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[V]:
        while len(self.gpus) < samples.gpu.shape[1]:
            self.gpus.append(self.new())
        return [(column, gpu.observe(samples, column, scans)) for column, gpu in enumerate(self.gpus)]


M = TypeVar("M", bound=Measurement[Any])
P = ParamSpec("P")


class Measure(Generic[M]):
    """Asks for a measurement, by its class and arguments. Equal requests share one measurement."""

    def __init__(self, kind: Callable[P, M], *arguments: P.args, **named: P.kwargs) -> None:
        self.new: Callable[[], M] = partial(kind, *arguments, **named)  # returns an empty measurement
        self._asked = kind, arguments, tuple(sorted(named.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Measure) and self._asked == other._asked

    def __hash__(self) -> int:
        return hash(self._asked)


class NodeMeasurements(State):
    """All measurements of one node, by measure.

    A measurement that raises costs no other. It is empty from then on, as what it has counted is incomplete.
    """

    def __init__(self, measures: Iterable[Measure[Any]]) -> None:
        self._measurements: dict[Measure[Any], Measurement[Any]] = {one: one.new() for one in measures}
        self.failures: dict[Measure[Any], Exception] = {}

    def __getitem__(self, measure: Measure[M]) -> M:
        return cast("M", self._measurements[measure])

    def check(self, *measures: Measure[Any]) -> None:
        """Raises the exception of the first of these that has failed."""
        for measure in measures:
            if measure in self.failures:
                raise self.failures[measure]

    def observe(self, samples: NodeSamples, scans: Scans) -> dict[Measure[Any], Views[Any]]:
        """Feeds one block of samples to every measurement, and returns their views."""
        return self._views(lambda measurement: measurement.observe(samples, scans))

    def observe_steps(self, steps: Steps, scans: Scans) -> dict[Measure[Any], Views[Any]]:
        """Feeds one block of steps to every measurement, and returns their views."""
        return self._views(lambda measurement: measurement.observe_steps(steps, scans))

    def _views(self, observe: Callable[[Measurement[Any]], Views[Any]]) -> dict[Measure[Any], Views[Any]]:
        views: dict[Measure[Any], Views[Any]] = {}
        for measure, measurement in self._measurements.items():
            if measure in self.failures:
                continue
            try:
                views[measure] = observe(measurement)
            except Exception as error:  # noqa: BLE001 - rules that do not need it are judged
                self.failures[measure] = error
                self._measurements[measure] = measure.new()
        return views


@dataclass(frozen=True)
class RunMeasurements:
    """The measurements of a run by node, in the order of their names, and the run's facts."""

    facts: RunFacts
    nodes: Mapping[str, NodeMeasurements]
    whole: bool = False  # of a trace, which is judged once, over its span, without patience
    live: bool = False  # more will come

    def of(self, measure: Measure[M]) -> dict[str, M]:
        """Returns one measurement of each node, by node."""
        return {name: node[measure] for name, node in self.nodes.items()}
