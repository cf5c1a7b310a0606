"""Metrics of the exporter's own process, with the names of Prometheus's client libraries.

Source: prometheus.io/docs/instrumenting/writing_clientlibs, "Standard and runtime collectors".
"""

from __future__ import annotations

import errno
import platform
import resource
import time

import psutil

from stepscope import __version__
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.profiles import Profile


class ProcessMetrics:
    """Process metrics, read at each scrape from the real /proc: --path.procfs is for the node's metrics.

    `profile` of the metrics becomes a label, and so does `simulated`, the scenario of simulated metrics.
    """

    def __init__(self, profile: Profile, simulated: str = "") -> None:
        self._self = psutil.Process()
        self._cpu = Family("process_cpu_seconds_total", "counter", "CPU time spent, user and system.")
        self._virtual = Family("process_virtual_memory_bytes", "gauge", "Virtual memory size.")
        self._resident = Family("process_resident_memory_bytes", "gauge", "Resident memory size.")
        self._start = Family("process_start_time_seconds", "gauge", "Start of the process, since the epoch.")
        self._open = Family("process_open_fds", "gauge", "Open file descriptors.")
        self._limit = Family("process_max_fds", "gauge", "Most file descriptors that may be open.")
        self._build = Family(
            "stepscope_exporter_build_info",
            "info",
            "Versions of this exporter and of Python, and its profile of metrics; the value is always 1.",
            (
                *("version", "python_version", "python_implementation", "profile"),
                *(("simulated",) if simulated else ()),
            ),
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
        self._build.publish({(__version__, *python, profile, *((simulated,) if simulated else ())): 1})
        self._start.publish({(): self._self.create_time()})

    def read(self) -> None:
        """Publishes the resources that the process uses now; not its memory if that cannot be read."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit.publish({(): most})
        self._cpu.publish({(): time.process_time()})
        try:
            self._open.publish({(): self._self.num_fds()})
            memory = self._self.memory_info()
        except (OSError, psutil.Error) as error:
            self._virtual.clear()
            self._resident.clear()
            if getattr(error, "errno", None) == errno.EMFILE:  # not even one to read their number with
                self._open.publish({(): most})
        else:
            self._virtual.publish({(): memory.vms})
            self._resident.publish({(): memory.rss})
