"""Measures a tick of the sampler on a node with 192 cores and 8 GPUs (a stub of NVML), with an active run.

The tick is all work every 500 ms: collectors, sample counters and their state file. It is timed twice: alone,
one tick after another, and in a real exporter process at its usual interval. There, caches are cold, threads
wake from sleep and the stub's own work counts. Both exclude the kernel's work for /proc/stat of 192 cores,
because the files are regular files.
"""

import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import psutil
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.sampling.sample import Sample

from benchmarks import Row
from benchmarks.measure import cpu_seconds
from benchmarks.node import CORES, GPUS, BusyNode, exporter_in_this_process, running_exporter

SECONDS = 30.0


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        node = BusyNode(Path(directory))
        with exporter_in_this_process(node) as exporter:
            tick = cpu_seconds(exporter._sampler.tick, 200, before_each=node.advance)
            _nothing_failed(exporter.scrape("text").decode())
        share = _share_of_a_core(node)
        cores = CpuCollector(node.procfs)
        ours = cpu_seconds(lambda: cores.collect(Sample(time=0.0)), 100, before_each=node.advance)
        theirs = cpu_seconds(lambda: _psutil_cpu_percent(node.procfs), 100, before_each=node.advance)
    return [
        (f"sampler tick, {CORES} cores and {GPUS} GPUs", tick * 1e3, "ms CPU", "<= 1.5"),
        ("  an exporter process at 2 Hz, with cold caches and stub, share of a core", share * 100, "%", ""),
        (f"  part of the tick: utilisation and I/O wait of {CORES} cores", ours * 1e3, "ms CPU", ""),
        (f"  psutil.cpu_percent(percpu=True) of {CORES} cores", theirs * 1e3, "ms CPU", ""),
    ]


def _share_of_a_core(node: BusyNode) -> float:
    """Returns the CPU share of an exporter that ticks every 500 ms and is not scraped."""
    with running_exporter(node, "500ms") as exporter:
        begin, spent = time.monotonic(), exporter.cpu_seconds()
        while time.monotonic() - begin < SECONDS:
            node.advance()
            time.sleep(0.2)
        spent = exporter.cpu_seconds() - spent
        passed = time.monotonic() - begin
        _nothing_failed(exporter.get("/metrics")[1])
    return spent / passed


def _psutil_cpu_percent(procfs: Path) -> None:
    with patch.object(psutil, "PROCFS_PATH", str(procfs)):
        psutil.cpu_percent(percpu=True)


def _nothing_failed(text: str) -> None:
    """Raises RuntimeError if a collector failed: a failed reading is cheap, so it must not be measured."""
    success = [line for line in text.splitlines() if line.startswith("stepscope_collector_success{")]
    failed = [line for line in success if not line.endswith(" 1")]
    if failed or not success:
        raise RuntimeError(f"collectors failed: {failed}")
