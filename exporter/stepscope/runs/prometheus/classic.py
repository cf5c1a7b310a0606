"""Turns histograms that Prometheus stores as one series back into the classic series of the exporter.

With `convert_classic_histograms_to_nhcb: true`, Prometheus 3 stores a histogram with custom buckets instead
of one series per bucket. The bounds are the exporter's own, so nothing is lost. Answers omit empty buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.exporter.sampling.sample_tally import BOUNDS
from stepscope.training.layout import STEP_BOUNDS

Points = list[tuple[float, float]]

SAMPLES = "_samples"


def classic(name: str, histograms: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, str], Points]]:
    """Yields the name, the bound `le` if it is a bucket, and the points of each classic series.

    `histograms` are pairs of a time and a histogram, as the HTTP API writes them.
    """
    if not histograms:
        return
    for part in ("count", "sum"):
        yield f"{name}_{part}", {}, [(float(time), float(found[part])) for time, found in histograms]
    bounds = BOUNDS if name.endswith(SAMPLES) else STEP_BOUNDS
    rows = [
        (float(time), [(float(right), float(count)) for _, _, right, count in found.get("buckets") or ()])
        for time, found in histograms
    ]
    for bound in bounds:
        yield (
            f"{name}_bucket",
            {"le": f"{bound:g}"},
            [(time, sum(count for right, count in buckets if right <= bound)) for time, buckets in rows],
        )
