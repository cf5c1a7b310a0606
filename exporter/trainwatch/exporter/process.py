"""The exporter's own process, under the names that every Prometheus client library gives them.

Source: prometheus.io/docs/instrumenting/writing_clientlibs, "Standard and runtime collectors".
"""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

from trainwatch import __version__
from trainwatch.sampling.families import Family

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessMetrics:
    """Read at each scrape, always from the real /proc: --path.procfs is for the node's metrics.

    `simulated` names the scenario where the node's metrics are no real node's: a label then says so.
    """

    def __init__(self, simulated: str = "") -> None:
        self._cpu = Family("process_cpu_seconds_total", "counter", "CPU time spent, user and system.")
        self._virtual = Family("process_virtual_memory_bytes", "gauge", "Virtual memory size.")
        self._resident = Family("process_resident_memory_bytes", "gauge", "Resident memory size.")
        self._start = Family("process_start_time_seconds", "gauge", "Start of the process, since the epoch.")
        self._open = Family("process_open_fds", "gauge", "Open file descriptors.")
        self._limit = Family("process_max_fds", "gauge", "Most file descriptors that may be open.")
        self._build = Family(
            "trainwatch_exporter_build_info",
            "info",
            "What this exporter is built from; the value is always 1.",
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
        self._start.publish({(): _boot_time() + int(_stat_fields()[19]) / _TICKS_PER_SECOND})

    def read(self) -> None:
        """Publishes what /proc says of this process now."""
        fields = _stat_fields()
        times = os.times()
        self._cpu.publish({(): times.user + times.system})
        self._virtual.publish({(): int(fields[20])})
        self._resident.publish({(): int(fields[21]) * _PAGE_BYTES})
        self._open.publish({(): len(os.listdir("/proc/self/fd")) - 1})  # less the listing's own
        self._limit.publish({(): resource.getrlimit(resource.RLIMIT_NOFILE)[0]})


def _stat_fields() -> list[str]:
    """proc(5)'s fields of /proc/self/stat from `state`, the third one, on: the name may hold spaces."""
    return Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()


def _boot_time() -> int:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return 0
