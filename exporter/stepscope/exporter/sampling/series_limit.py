"""Leaves whole runs out of a scrape with too many series: a part of a run would look like all of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from stepscope.exporter.sampling.families import Family, HistogramValue
from stepscope.exporter.sampling.limits import Choice, ReachedLimits


class SeriesLimit:
    """Chooses the runs of each scrape. The node's own series go before those of runs."""

    def __init__(self, reached: ReachedLimits) -> None:
        self._reached = reached
        self._choice = Choice[str]()

    def apply(
        self,
        families: Sequence[Family],
        runs: Mapping[str, bool],
        taken: int,
        owners: Mapping[str, int] | None = None,
    ) -> tuple[Sequence[Family], set[str]]:
        """Returns the families to write, and the runs to leave out of them.

        `runs` says of each run whether it is live, in the order of their start. Others come last.
        `taken` series are written in any case. `owners` has the users of runs.
        """
        room = self._reached.limits.series - taken
        if series_of(families) <= room:
            self._reached.report("series", {})
            return families, set()
        of_node = [family for family in families if "run" not in family.labels]
        sizes = {family.name: series_of([family]) for family in of_node}
        names, too_many = Choice[str]().of(dict.fromkeys(sizes, True), max(0, room), sizes)
        per_run = _series_per_run(families)
        order = {run: live for run, live in runs.items() if run in per_run}
        order.update(dict.fromkeys(sorted(per_run.keys() - order.keys()), False))
        room -= sum(sizes[name] for name in names)
        _, without = self._choice.of(order, max(0, room), per_run, owners)
        left_out = {run: per_run[run] for run in without}
        if too_many:
            left_out[""] = sum(sizes[name] for name in too_many)
        self._reached.report("series", left_out)
        return [family for family in families if family.name not in too_many], set(without)


def series_of(families: Iterable[Family]) -> int:
    """Returns how many lines of samples the families have."""
    return sum(len(family.samples) + sum(map(_lines, family.histograms.values())) for family in families)


def _lines(histogram: HistogramValue) -> int:
    return len(histogram.counts) - histogram.first + 2  # the sum and the count


def _series_per_run(families: Iterable[Family]) -> Counter[str]:
    series: Counter[str] = Counter()
    for family in families:
        if "run" not in family.labels:
            continue
        run = family.labels.index("run")
        series.update(labels[run] for labels in family.samples)
        for labels, histogram in family.histograms.items():
            series[labels[run]] += _lines(histogram)
    return series
