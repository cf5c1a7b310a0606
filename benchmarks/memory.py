"""Measures the resident memory of a real exporter process after a minute of fast ticks and scrapes."""

import tempfile
import time
from pathlib import Path

from benchmarks import Row
from benchmarks.node import CORES, GPUS, BusyNode, running_exporter

SECONDS = 60.0
INTERVAL = "40ms"  # 12.5 times the usual pace
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        node = BusyNode(Path(directory))
        with running_exporter(node, INTERVAL) as exporter:
            begin = time.monotonic()
            early = 0.0  # MiB after a quarter of the time
            scrapes = 0
            while (passed := time.monotonic() - begin) < SECONDS:
                node.advance()
                exporter.get("/metrics", OPENMETRICS if scrapes % 2 else "text/plain")
                scrapes += 1
                if not early and passed > SECONDS / 4:
                    early = exporter.resident_mebibytes()
                time.sleep(0.02)
            ticks = exporter.value("stepscope_sampler_ticks_total")
            resident = exporter.resident_mebibytes()
    what = f"exporter, {CORES} cores and {GPUS} GPUs, after {ticks:,.0f} ticks and {scrapes:,} scrapes"
    return [
        (f"resident memory of the {what}", resident, "MiB", "<= 45"),
        ("  growth in the last three quarters of these", resident - early, "MiB", "<= 1"),
    ]
