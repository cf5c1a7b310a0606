"""Metrics of the exporter's own process, with the names of Prometheus's client libraries.

Source: prometheus.io/docs/instrumenting/writing_clientlibs, "Standard and runtime collectors".
"""

from __future__ import annotations

import platform

import psutil

from trainwatch import __version__
from trainwatch.sampling.families import Family


class ProcessMetrics:
    """Process metrics, read at each scrape from the real /proc: --path.procfs is for the node's metrics.

    `simulated` is the scenario of simulated metrics: it becomes a label.
    """

    def __init__(self, simulated: str = "") -> None:
        self._self = psutil.Process()
        self._cpu = Family("process_cpu_seconds_total", "counter", "CPU time spent, user and system.")
        self._virtual = Family("process_virtual_memory_bytes", "gauge", "Virtual memory size.")
        self._resident = Family("process_resident_memory_bytes", "gauge", "Resident memory size.")
        self._start = Family("process_start_time_seconds", "gauge", "Start of the process, since the epoch.")
        self._open = Family("process_open_fds", "gauge", "Open file descriptors.")
        self._limit = Family("process_max_fds", "gauge", "Most file descriptors that may be open.")
        self._build = Family(
            "trainwatch_exporter_build_info",
            "info",
            "Versions of this exporter and of Python; the value is always 1.",
            ("version", "python_version", "python_implementation", *(("simulated",) if simulated else ())),
        )
        self.families = (
            self._build,
            self._cpu,
            self._virtual,
            self._resident,
            self._start,
            self._open,
            self._limit,
        )
        python = (platform.python_version(), platform.python_implementation())
        self._build.publish({(__version__, *python, *((simulated,) if simulated else ())): 1})
        self._start.publish({(): self._self.create_time()})

    def read(self) -> None:
        """Publishes the resources that the process uses now."""
        with self._self.oneshot():
            times, memory = self._self.cpu_times(), self._self.memory_info()
            self._cpu.publish({(): times.user + times.system})
            self._virtual.publish({(): memory.vms})
            self._resident.publish({(): memory.rss})
            self._open.publish({(): self._self.num_fds()})
            self._limit.publish({(): self._self.rlimit(psutil.RLIMIT_NOFILE)[0]})
