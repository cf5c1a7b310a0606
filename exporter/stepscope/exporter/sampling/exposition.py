"""Writes metric families as Prometheus reads them: text format 0.0.4 and OpenMetrics 1.0.

Sources: prometheus.io/docs/instrumenting/exposition_formats and the OpenMetrics 1.0 specification.
A histogram's `le` is written as OpenMetrics requires ("1.0", not "1") in both formats. So a series keeps
its labels whichever format the server negotiates.

Prometheus drops a whole scrape because of one number that it cannot parse. So a series that cannot be
written is left out alone.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from math import isfinite, isnan
from threading import Lock
from typing import Any, Generic, Literal, TypeVar

from stepscope.common.errors import describe
from stepscope.exporter.sampling.families import Exemplar, Family, HistogramValue, LabelValues
from stepscope.exporter.sampling.limits import ReachedLimits

logger = logging.getLogger(__name__)

Format = Literal["text", "openmetrics"]
Prefix = TypeVar("Prefix")

CONTENT_TYPES: Mapping[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}

# Names of kinds in `# TYPE` of the text format, and suffixes that OpenMetrics removes in `# TYPE`.
_TEXT_TYPES = {"info": "gauge", "unknown": "untyped"}
SUFFIXES = {"counter": "_total", "info": "_info"}

_NUMBERS = {int, float}
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TEXT_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Exposition:
    """Writes families, and caches the parts of lines that are the same at each scrape."""

    def __init__(self, reached: ReachedLimits | None = None) -> None:
        self._reached = reached or ReachedLimits()
        self._writers: dict[Family, _FamilyWriter] = {}
        # One scrape is written at a time: the work is CPU only, so a second thread would gain nothing.
        self._lock = Lock()

    def write(
        self,
        families: Iterable[Family],
        format: Format,
        own: Iterable[Family] = (),
        without_runs: Collection[str] = frozenset(),
    ) -> bytes:
        """Returns all samples that the families publish now, without the families that have none.

        `without_runs` does not concern the exporter's `own` families, which follow the others.
        """
        with self._lock:
            parts: list[str] = []
            names: set[str] = set()
            for written, without in ((families, without_runs), (own, frozenset())):
                for family in written:
                    if family.name not in names:  # two collectors' families of a name: the first counts
                        names.add(family.name)
                        self._writer(family).write(format, without, parts)
        if format == "openmetrics":
            parts.append("# EOF\n")
        return "".join(parts).encode("utf-8", "replace")

    def _writer(self, family: Family) -> "_FamilyWriter":
        writer = self._writers.get(family)
        if writer is None:
            writer = self._writers[family] = _FamilyWriter(family, self._reached)
        return writer


class _FamilyWriter:
    """One family's metadata and the beginnings of its lines."""

    def __init__(self, family: Family, reached: ReachedLimits) -> None:
        self._family = family
        self._reached = reached
        self._metadata = _metadata(family)
        self._sample_prefixes = _Prefixes(self._prefix)
        self._histogram_prefixes = _Prefixes(self._line_prefixes)
        self._complaint = ""

    def write(self, format: Format, without_runs: Collection[str], parts: list[str]) -> None:
        samples, histograms = self._family.samples, self._family.histograms
        if without_runs and "run" in self._family.labels:
            samples, histograms = (self._without(without_runs, each) for each in (samples, histograms))
        if not samples and not histograms:
            return
        exemplars = format == "openmetrics"
        try:
            lines, complaint = self._lines(samples, histograms, exemplars), ""
        except Exception as error:  # noqa: BLE001 - whatever a collector published, the rest is written
            lines, complaint = self._lines_of_each(samples, histograms, exemplars), describe(error)
        if complaint and complaint != self._complaint:  # once, not at each scrape
            logger.error("a series of %s is left out: %s", self._family.name, complaint)
        self._complaint = complaint
        if lines:
            parts.append(self._metadata[format])
            parts += lines

    def _without(self, runs: Collection[str], series: Mapping[LabelValues, Any]) -> dict[LabelValues, Any]:
        run = self._family.labels.index("run")
        return {key: value for key, value in series.items() if key[run] not in runs}

    def _lines(
        self,
        samples: Mapping[LabelValues, float],
        histograms: Mapping[LabelValues, HistogramValue],
        exemplars: bool,
    ) -> list[str]:
        """Returns all lines. Raises if there is one that cannot be written."""
        prefixes, values = self._sample_prefixes.of(samples), samples.values()
        if _plain(values):
            lines = [f"{prefix}{value!r}\n" for prefix, value in zip(prefixes, values, strict=True)]
        else:
            lines = [f"{prefix}{number(value)}\n" for prefix, value in zip(prefixes, values, strict=True)]
        for prefix_list, histogram in zip(
            self._histogram_prefixes.of(histograms), histograms.values(), strict=True
        ):
            _write_histogram(prefix_list, histogram, exemplars, lines)
        return lines

    def _lines_of_each(
        self,
        samples: Mapping[LabelValues, float],
        histograms: Mapping[LabelValues, HistogramValue],
        exemplars: bool,
    ) -> list[str]:
        """Returns the lines of the series that can be written, one by one: 20 times slower."""
        lines: list[str] = []
        for key, value in samples.items():
            with suppress(Exception):
                lines.append(f"{self._prefix(key)}{number(value)}\n")
        for key, histogram in histograms.items():
            with suppress(Exception):
                written: list[str] = []
                _write_histogram(self._line_prefixes(key), histogram, exemplars, written)
                lines += written
        return lines

    def _prefix(self, values: LabelValues, suffix: str = "", bound: str | None = None) -> str:
        family = self._family
        pairs = [
            f'{label}="{self._reached.shortened(value).translate(_LABEL_ESCAPES)}"'
            for label, value in zip(family.labels, values, strict=True)
        ]
        if bound is not None:
            pairs.append(f'le="{bound}"')
        return f"{family.name}{suffix}{{{','.join(pairs)}}} " if pairs else f"{family.name}{suffix} "

    def _line_prefixes(self, values: LabelValues) -> list[str]:
        """Returns the beginnings of one histogram's lines: its buckets, its sum and its count."""
        bounds = [number(float(bound)) for bound in self._family.bounds] + ["+Inf"]
        lines = [self._prefix(values, "_bucket", bound) for bound in bounds]
        return [*lines, self._prefix(values, "_sum"), self._prefix(values, "_count")]


class _Prefixes(Generic[Prefix]):
    """The prefixes of a family's series, in the order in which the family publishes them."""

    def __init__(self, build: Callable[[LabelValues], Prefix]) -> None:
        self._build = build
        self._series: list[LabelValues] = []
        self._prefixes: list[Prefix] = []

    def of(self, published: Mapping[LabelValues, object]) -> list[Prefix]:
        """Returns the prefixes of the published series. Builds those of new series, drops those of old."""
        series = list(published)
        if series != self._series:  # rare; comparing lists costs less than a look-up per series
            known = dict(zip(self._series, self._prefixes, strict=True))
            self._prefixes = [known[key] if key in known else self._build(key) for key in series]
            self._series = series
        return self._prefixes


def _write_histogram(
    prefixes: list[str], histogram: HistogramValue, exemplars: bool, parts: list[str]
) -> None:
    *buckets, sum_prefix, count_prefix = prefixes
    cumulative = list(accumulate(histogram.counts))
    lines = [f"{prefix}{count}\n" for prefix, count in zip(buckets, cumulative, strict=True)]
    if exemplars and histogram.exemplars:
        for index, exemplar in histogram.exemplars.items():
            lines[index] = f"{lines[index][:-1]}{_exemplar(exemplar)}\n"
    parts += lines[histogram.first :]
    parts.append(f"{sum_prefix}{number(histogram.sum)}\n{count_prefix}{cumulative[-1]}\n")


def _plain(values: Collection[float]) -> bool:
    """Returns whether `repr` writes every value as Prometheus reads it: only ints and finite floats."""
    if not set(map(type, values)) <= _NUMBERS:
        return False
    try:
        return isfinite(sum(values))
    except OverflowError:  # an int beyond a float's range
        return False


def number(value: float) -> str:
    """Formats a sample value for both formats: integers as integers, floats with every digit.

    Raises OverflowError on an integer beyond a float's range, which Prometheus cannot parse.
    """
    if isinstance(value, int):
        float(value)
        return str(int(value))  # a bool is an int too
    value = float(value)
    if isnan(value):
        return "NaN"
    if not isfinite(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _exemplar(exemplar: Exemplar) -> str:
    if not isfinite(exemplar.value) or not isfinite(exemplar.time):  # an invalid time costs the scrape
        return ""
    labels = ",".join(
        f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in exemplar.labels.items()
    )
    return f" # {{{labels}}} {number(exemplar.value)} {exemplar.time:.3f}"


def _metadata(family: Family) -> dict[Format, str]:
    """Returns the lines before the samples; OpenMetrics has no suffix in the name of a counter or info."""
    name, kind = family.name, _TEXT_TYPES.get(family.kind, family.kind)
    base, words = name.removesuffix(SUFFIXES.get(family.kind, "")), family.help.translate(_LABEL_ESCAPES)
    return {
        "text": f"# HELP {name} {family.help.translate(_TEXT_HELP_ESCAPES)}\n# TYPE {name} {kind}\n",
        "openmetrics": f"# TYPE {base} {family.kind}\n# HELP {base} {words}\n",
    }
