"""What the page's scripts draw: one object of JSON values a chart."""

from __future__ import annotations

import base64
from typing import Any

from trainwatch.evaluation.analysis import Analysis, Heatmap, StepDistribution
from trainwatch.report.shares import steps_by_phase

# Matplotlib's Viridis at 0, 10, ... 100 %: even to the eye, readable by the colour-blind and in print.
VIRIDIS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
NOTHING_SAMPLED = 255  # in a heatmap's bytes; 0..100 are percent


def chart_data(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """By chart name, as the `data-chart` attributes of the page say it."""
    charts = {f"heatmap-{index}": _heatmap(heatmap) for index, heatmap in enumerate(analysis.heatmaps)}
    for phase, rows in steps_by_phase(analysis).items():
        charts[f"steps-{phase}"] = _histogram(rows)
    return charts


def _heatmap(heatmap: Heatmap) -> dict[str, Any]:
    """Cells as one byte each, row by row, in base64: a day of 200 rows is 10 times smaller than as JSON."""
    cells = bytearray()
    for row in heatmap.values:
        cells.extend(NOTHING_SAMPLED if value is None else min(max(int(value), 0), 100) for value in row)
    gpu_rows = sum(label.startswith("GPU") for label in heatmap.rows)
    return {
        "kind": "heatmap",
        "colours": VIRIDIS,
        "start": 1000 * heatmap.times[0] if heatmap.times else 0,
        "columnMilliseconds": 1000 * heatmap.column_seconds,
        "columns": len(heatmap.times),
        "gpuRows": gpu_rows,
        "rows": heatmap.rows,
        "cells": base64.b64encode(bytes(cells)).decode("ascii"),
    }


def _histogram(rows: list[StepDistribution]) -> dict[str, Any]:
    return {
        "kind": "histogram",
        "ranks": [
            {
                "name": f"Rank {row.rank}",
                "edges": row.edges,
                "counts": row.counts,
                "marks": {"mean": row.mean, "p50": row.p50, "p95": row.p95, "p99": row.p99},
            }
            for row in rows
        ],
    }
