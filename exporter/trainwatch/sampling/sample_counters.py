"""Counts every sample of every active run, and keeps the counts when the exporter is killed.

The rules count samples taken every 500 ms, but a scrape every 15 s sees only one in thirty. Counting
the samples here makes the answers exact at any scrape interval.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from threading import Lock

from trainwatch.sampling.active_runs import ActiveRuns
from trainwatch.sampling.exposition import number
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import Sample
from trainwatch.sampling.sample_tally import BOUNDS, CAUSES, GRID, SampleTally
from trainwatch.sampling.state_file import StateFile, StateFileError

logger = logging.getLogger(__name__)

SUFFIX = ".samples"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class SampleCounters:
    """The sample counters of all runs: a sink of the sampler, and families that a scrape publishes.

    `runs_of_ledgers` returns the names of the runs whose ledgers are held now. `run` is the run of the
    exporter's flag `--run`. Each run has a file in `directory` (None: the counts are only in memory), which
    is removed `retention` seconds after the run's last sample.
    """

    def __init__(
        self,
        directory: Path | None,
        runs_of_ledgers: Callable[[], Collection[str]],
        run: str | None = None,
        retention: float = 300.0,
        now: float = 0.0,
    ) -> None:
        self._lock_descriptor = _lock(directory) if directory else None
        self._directory = None if self._lock_descriptor is None else directory
        self._runs_of_ledgers = runs_of_ledgers
        self._retention = retention
        self._active = ActiveRuns(run)
        self._runs: dict[str, _Run] = {}
        self._unwritable: set[str] = set()
        self._lock = Lock()  # between a tick that counts and a scrape that publishes
        self._families = _Families()
        self.families = self._families.all
        if self._directory:
            self._load(self._directory, now)

    def count(self, sample: Sample) -> None:
        """Counts a sample for each run that is active; drops runs that ended long ago."""
        active = self._active.at(sample.time, self._runs_of_ledgers(), sample.gpu_processes)
        with self._lock:
            for name in active:
                run = self._runs.get(name)
                if run is None:
                    run = self._runs[name] = _Run(name, self._path(name))
                run.pids = sorted(self._active.unnamed_pids) if name == self._active.unnamed else []
                run.tally.add(sample)
                run.last_sample = sample.time
            for name in self._runs.keys() - active:
                if sample.time - self._runs[name].last_sample > self._retention:
                    self._runs.pop(name).drop()
        for name in active:  # not under the lock: a disk that hangs must not block a scrape
            self._save(self._runs[name])

    def publish(self) -> None:
        """Publishes the current counts. Called by a scrape, because a tick must not pay for cumulating."""
        with self._lock:
            self._families.publish({name: run.tally for name, run in self._runs.items()})

    def close(self) -> None:
        """Closes the files; the counts stay in them."""
        with self._lock:
            for run in self._runs.values():
                run.close()
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)

    def _path(self, run: str) -> Path | None:
        if self._directory is None:
            return None
        readable = re.sub(r"[^A-Za-z0-9._-]", "_", run)[:60].lstrip(".")
        digest = sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:12]  # two names, two files
        return self._directory / f"{readable}-{digest}{SUFFIX}"

    def _save(self, run: _Run) -> None:
        try:
            run.save()
        except OSError as error:
            if run.name not in self._unwritable:  # warned once; the counting continues in memory
                logger.warning("%s: the sample counters cannot be kept: %s", run.path, error.strerror)
            self._unwritable.add(run.name)
        else:
            self._unwritable.discard(run.name)

    def _load(self, directory: Path, now: float) -> None:
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            run = _Run.load(path)
            if run is None:
                continue
            if now - run.last_sample > self._retention:
                run.drop()
                continue
            self._runs[run.name] = run
            if run.pids:
                self._active.resume(run.name, run.pids)


class _Run:
    """The counts of one run, and the file that keeps them."""

    def __init__(self, name: str, path: Path | None) -> None:
        self.name = name
        self.path = path
        self.tally = SampleTally()
        self.last_sample = 0.0  # seconds since the epoch
        self.pids: list[int] = []  # of an unnamed run: its processes
        self._file = StateFile(path) if path else None

    @classmethod
    def load(cls, path: Path) -> _Run | None:
        """Returns the run of a file. Renames a file that cannot be used, after a warning."""
        file = StateFile(path)
        try:
            header, _, counts = file.read().partition(b"\n")
            facts = json.loads(header)
            run = cls(facts["run"], None)
            run.tally = SampleTally.from_bytes(counts, facts["gpus"])
            run.last_sample, run.pids = float(facts["last_sample"]), list(facts["pids"])
        except (StateFileError, ValueError, KeyError, TypeError) as error:
            _set_aside(path, error)
            return None
        except OSError as error:
            logger.warning("%s: cannot be read: %s; counting from 0", path, error.strerror)
            return None
        run.path, run._file = path, file
        return run

    def save(self) -> None:
        if self._file is None:
            return
        facts = {
            "run": self.name,
            "last_sample": self.last_sample,
            "pids": self.pids,
            "gpus": list(self.tally.gpu),
        }
        self._file.write(json.dumps(facts).encode() + b"\n" + self.tally.to_bytes())

    def drop(self) -> None:
        if self._file is not None:
            try:
                self._file.remove()
            except OSError as error:
                logger.warning("%s: cannot be removed: %s", self.path, error.strerror)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _set_aside(path: Path, reason: Exception) -> None:
    aside = path.with_suffix(".unusable")
    logger.warning("%s: %s; renamed to %s, counting from 0", path, reason, aside.name)
    try:
        path.replace(aside)
    except OSError as error:
        logger.warning("%s: cannot be renamed: %s", path, error.strerror)


def _lock(directory: Path) -> int | None:
    """Locks the directory's state files for this exporter; the kernel unlocks them when it dies.

    Returns the descriptor that holds the lock; None, after a warning, if the files cannot be locked.
    """
    descriptor = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "exporter.lock", _LOCK_FLAGS, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        reason = "another exporter uses the directory; give this exporter its own --state-dir"
    except OSError as error:
        reason = error.strerror or str(error)
    if descriptor is not None:
        os.close(descriptor)
    logger.warning("%s: the sample counters will not survive a restart: %s", directory, reason)
    return None


class _Families:
    """The metric families of the sample counters (design: "Sample counters")."""

    def __init__(self) -> None:
        self.samples = Family(
            "trainwatch_samples_total", "counter", "Samples taken while the run was active.", ("run",)
        )
        self.gpu = Family(
            "trainwatch_gpu_utilization_samples",
            "histogram",
            "Samples of the run by the GPU's utilisation.",
            ("run", "gpu"),
            BOUNDS,
        )
        self.gpu_memory = Family(
            "trainwatch_gpu_memory_samples",
            "histogram",
            "Samples of the run by the share of the GPU's memory in use.",
            ("run", "gpu"),
            BOUNDS,
        )
        self.cpu = Family(
            "trainwatch_cpu_utilization_samples",
            "histogram",
            "Samples of the run by the mean utilisation of the cores.",
            ("run",),
            BOUNDS,
        )
        self.io_wait = Family(
            "trainwatch_io_wait_samples",
            "histogram",
            "Samples of the run by the mean share of time in which the cores waited for I/O.",
            ("run",),
            BOUNDS,
        )
        self.starved = Family(
            "trainwatch_gpu_starved_samples_total",
            "counter",
            "Samples in which some core's utilisation (cause cpu) or I/O wait (cause io) was above"
            " cause_above and some GPU's utilisation below gpu_below.",
            ("run", "cause", "cause_above", "gpu_below"),
        )
        self.low = Family(
            "trainwatch_gpu_low_samples_total",
            "counter",
            "Samples in which some GPU's utilisation was below gpu_below.",
            ("run", "gpu_below"),
        )
        self.all: tuple[Family, ...] = tuple(vars(self).values())

    def publish(self, tallies: dict[str, SampleTally]) -> None:
        self.samples.publish({(run,): tally.samples for run, tally in tallies.items()})
        self.cpu.publish_histograms({(run,): tally.cpu.value() for run, tally in tallies.items()})
        self.io_wait.publish_histograms({(run,): tally.io_wait.value() for run, tally in tallies.items()})
        self.gpu.publish_histograms(
            {
                (run, gpu): histogram.value()
                for run, tally in tallies.items()
                for gpu, histogram in tally.gpu.items()
            }
        )
        self.gpu_memory.publish_histograms(
            {
                (run, gpu): histogram.value()
                for run, tally in tallies.items()
                for gpu, histogram in tally.gpu_memory.items()
            }
        )
        with_gpus = {run: tally for run, tally in tallies.items() if tally.gpu}  # without, no GPU can starve
        self.starved.publish(
            {
                (run, cause, above, below): count
                for run, tally in with_gpus.items()
                for cause in CAUSES
                for above, counts in zip(_THRESHOLDS, tally.starved[cause].counts(), strict=True)
                for below, count in zip(_THRESHOLDS, counts, strict=True)
            }
        )
        self.low.publish(
            {
                (run, below): count
                for run, tally in with_gpus.items()
                for below, count in zip(_THRESHOLDS, tally.low.counts(), strict=True)
            }
        )


_THRESHOLDS = tuple(number(threshold) for threshold in GRID)
