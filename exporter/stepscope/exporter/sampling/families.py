"""Metric families: the values that the exporter publishes, as the exposition needs them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# "unknown" is for the few samples of no other kind: `untyped` in the text format.
Kind = Literal["gauge", "counter", "histogram", "info", "unknown"]
LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A single observation, which OpenMetrics writes after its bucket."""

    labels: Mapping[str, str]
    value: float
    time: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """`counts` has one count per bound of the family and one for +Inf; they are not cumulative."""

    counts: Sequence[int]
    sum: float
    exemplars: Mapping[int, Exemplar] | None = None  # by index into counts
    first: int = 0  # index of the first bucket that is written


def flat(values: Mapping[LabelValues, Mapping[str, float]]) -> dict[LabelValues, float]:
    """Returns values by one more label."""
    return {(*key, name): value for key, named in values.items() for name, value in named.items()}


class Family:
    """One metric family: name, type, help, label names and the samples it publishes now.

    `name` is written as given, with the prefix `stepscope_` and the suffix of its kind, such as `_total`.
    Publishing replaces all samples at once. So a scrape in another thread sees either the old samples or
    the new samples, and a device that is gone has none.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        help: str,
        labels: tuple[str, ...] = (),
        bounds: Sequence[float] = (),
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.help = help
        self.labels = labels
        self.bounds = tuple(bounds)  # of a histogram, ascending, without +Inf
        self.samples: Mapping[LabelValues, float] = {}
        self.histograms: Mapping[LabelValues, HistogramValue] = {}

    def publish(self, samples: Mapping[LabelValues, float]) -> None:
        """Replaces the samples; the mapping then belongs to the family."""
        self.samples = samples

    def publish_histograms(self, histograms: Mapping[LabelValues, HistogramValue]) -> None:
        """Replaces the histograms; the mapping then belongs to the family."""
        self.histograms = histograms

    def clear(self) -> None:
        """Publishes nothing from now on."""
        self.samples = {}
        self.histograms = {}


_ENTRY = re.compile(r"^(\w+) (\w+)(?:{([\w,\s]+)})?((?:\n +.+)+)", re.MULTILINE)


class FamilyTable(dict[str, Family]):
    """Families by their name without prefix, from a text with the kind, name, labels and help of each:

        gauge stepscope_gpu_up{gpu}
            Whether the GPU answers (1), or is lost (0).

    `bounds` has those of histograms, by the same names.
    """

    def __init__(self, text: str, bounds: Mapping[str, Sequence[float]] | None = None) -> None:
        super().__init__()
        for kind, name, labels, words in _ENTRY.findall(text):
            of_family, key = tuple(re.findall(r"\w+", labels)), name.removeprefix("stepscope_")
            self[key] = Family(name, kind, " ".join(words.split()), of_family, (bounds or {}).get(key, ()))
