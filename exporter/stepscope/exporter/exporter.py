"""The exporter without its server: collectors, sampler, sample counters, recording, and their scrape.

Metrics of its own process have the names of Prometheus's client libraries.
Source: prometheus.io/docs/instrumenting/writing_clientlibs, "Standard and runtime collectors".
"""

import errno
import logging
import platform
import resource
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from stepscope import __version__
from stepscope.common.errors import describe
from stepscope.common.watchdog import Watchdog
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.exposition import Exposition, Format
from stepscope.exporter.sampling.families import Family, FamilyTable
from stepscope.exporter.sampling.limits import Limits, ReachedLimits
from stepscope.exporter.sampling.profiles import Profile, ProfileFilter
from stepscope.exporter.sampling.registry import PATIENCE_SECONDS, Registry, Sink
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.exporter.sampling.sampler import Clock, Sampler, SteadyClock
from stepscope.exporter.sampling.series_limit import SeriesLimit, series_of

logger = logging.getLogger(__name__)


class Recording(Protocol):
    """Keeps samples and steps. `runs.recording.live` has one, which needs numpy and pyarrow."""

    def begin(
        self, node: str, interval: float, run: str | None, training: TrainingCollector | None
    ) -> None: ...

    def keep(self, sample: Sample) -> None: ...

    def catch_up(self) -> None: ...

    def close(self) -> None: ...


class Exporter:
    """Samples one node. `tick` or, after `start`, a thread takes a sample; `scrape` publishes the metrics.

    `run` is always active, with or without ledgers. The sample counters are kept in `state_directory`
    (None: they do not survive a restart), and published for `run_retention` seconds after a run's end.
    `recording` gets every sample and step.
    What `limits` leave out is counted and named. `profile` says which metrics a scrape has. `watchdog` hears
    whether samples are taken.

    The last three are for simulations: the clock, the scenario's name, and the seconds that a collector may
    take, which must suffice on a busy machine.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        interval: float = 0.5,
        node: str | None = None,
        run: str | None = None,
        state_directory: Path | None = None,
        run_retention: float = 300.0,
        recording: Recording | None = None,
        limits: Limits | None = None,
        profile: Profile = "default",
        watchdog: Watchdog | None = None,
        clock: Clock | None = None,
        simulated: str = "",
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        clock = clock or (SteadyClock() if recording else Clock())
        self.simulated = simulated
        self.node = node or socket.gethostname().partition(".")[0]
        self._training = training = next(
            (each for each in collectors if isinstance(each, TrainingCollector)), None
        )
        if training:
            training.observed_run = run
        self._reached = ReachedLimits(limits)
        for collector in collectors:
            collector.reached = self._reached
        if training and state_directory:
            training.remember_in(state_directory)
        self._recording = recording
        if recording:
            recording.begin(self.node, interval, run, training)
        self._counters = SampleCounters(
            state_directory,
            lambda: training.active_runs if training else (),
            run=run,
            retention=run_retention,
            now=clock.time(),
            reached=self._reached,
            owners=self._owners,
        )
        # The disk of the state and that of the recording come last: the sample counters wait for neither.
        every_sink: dict[str, Sink] = {"counting samples": self._count}
        every_sink["keeping the sample counters"] = self._counters.save
        self._kept = {each.name: each.kept for each in collectors if each.kept}
        for name, kept in self._kept.items():
            if state_directory:
                kept.keep_in(state_directory / f"{name}.kept")
            every_sink[f"keeping the counters of {name}"] = kept.save
        if self._recording:
            every_sink["recording"] = self._recording.keep
        self._registry = Registry(collectors, patience, every_sink)
        self._sampler = Sampler(self._registry, interval, clock, watchdog)
        self._process = ProcessMetrics(profile, simulated)
        self._profile = ProfileFilter(profile)
        self._exposition = Exposition(self._reached)
        self._series = SeriesLimit(self._reached)

    def start(self) -> None:
        """Starts to sample."""
        self._sampler.start()

    def tick(self) -> None:
        """Takes one sample now, instead of `start`: for tests, benchmarks and simulations."""
        self._sampler.tick()

    def ready(self) -> bool:
        """Returns whether there is a first sample."""
        return self._sampler.ready

    def scrape(self, format: Format, more: Iterable[Family] = ()) -> bytes:
        """Returns all current metrics, with `more`; while the sampler hangs, only the exporter's own."""
        _attempt("reading this process", self._process.read)
        own = self._profile.of([*self._own_families(), *more])
        families: Sequence[Family] = ()
        left_out: set[str] = set()
        if self._sampler.fresh():
            if not _attempt("publishing the sample counters", self._counters.publish):
                for family in self._counters.families:
                    family.clear()
            families = self._profile.of([*self._registry.families(), *self._counters.families])
            runs, owners = self._counters.runs, self._owners()
            families, left_out = self._series.apply(families, runs, series_of(own), owners)
        return self._exposition.write(families, format, own, left_out)

    def families(self) -> list[Family]:
        """Returns every family, in any profile and also without samples."""
        return [*self._registry.families(), *self._counters.families, *self._own_families()]

    def _own_families(self) -> list[Family]:
        return [
            *self._registry.own_families,
            *self._sampler.families,
            *self._reached.families,
            *self._process.families,
        ]

    def _count(self, sample: Sample) -> None:
        if self._training:
            self._counters.observe(self._training.observed_run)
        self._counters.count(sample)

    def _owners(self) -> Mapping[str, int]:
        return self._training.owners if self._training else {}

    def catch_up(self) -> None:
        """Waits until every sample so far is recorded; a simulation may be faster than the disk."""
        if self._recording:
            self._recording.catch_up()

    def close(self) -> None:
        """Ends the sampling, then records the steps that finished since the last tick."""
        if not self._sampler.stop():
            logger.warning("the sampler hangs in a reading; exiting without it")
            return
        _attempt("ending the recording", self._end_recording)
        _attempt("closing the sample counters", self._counters.close)
        for name, kept in self._kept.items():
            _attempt(f"closing the counters of {name}", kept.close)
        self._registry.close()

    def _end_recording(self) -> None:
        if self._recording and self._training:
            self._registry.collect_last(self._training, self._sampler.sample())
        if self._recording:
            self._recording.close()


def _attempt(what: str, act: Callable[[], None]) -> bool:
    """Performs one part of a whole, which continues without it. Returns whether it succeeded."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever it is
        logger.error("%s failed: %s", what, describe(error))
        return False
    return True


METRICS = """
info stepscope_exporter_build_info{version,python_version,python_implementation,profile,simulated}
    Versions of this exporter and of Python, and its profile of metrics; the value is always 1.
counter process_cpu_seconds_total
    CPU time spent, user and system.
gauge process_virtual_memory_bytes
    Virtual memory size.
gauge process_resident_memory_bytes
    Resident memory size.
gauge process_start_time_seconds
    Start of the process, since the epoch.
gauge process_open_fds
    Open file descriptors.
gauge process_max_fds
    Most file descriptors that may be open.
"""


class ProcessMetrics:
    """Process metrics, read at each scrape from the real /proc: --path.procfs is for the node's metrics.

    `profile` of the metrics becomes a label, and so does `simulated`, the scenario of simulated metrics.
    """

    def __init__(self, profile: Profile, simulated: str = "") -> None:
        self._self = psutil.Process()
        self.families = tuple(FamilyTable(METRICS).values())
        build, self._cpu, self._virtual, self._resident, start, self._open, self._limit = self.families
        python = (platform.python_version(), platform.python_implementation())
        values = (__version__, *python, profile, *((simulated,) if simulated else ()))
        build.labels = build.labels[: len(values)]
        build.publish({values: 1})
        start.publish({(): self._self.create_time()})

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
