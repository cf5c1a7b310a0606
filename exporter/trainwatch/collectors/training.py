"""Steps, their components and data loading of the training processes, from the ledgers of --ledger-dir."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import add
from pathlib import Path

from trainwatch.durations import parse_duration
from trainwatch.sampling.collector import Collector, collector
from trainwatch.sampling.exposition import number
from trainwatch.sampling.families import Exemplar, Family, HistogramValue, Kind, LabelValues
from trainwatch.sampling.sample import Sample
from trainwatch.training.layout import FETCH_BOUNDS, STEP_BOUNDS, WAIT_BOUNDS
from trainwatch.training.ledger_files import ledger_directory
from trainwatch.training.reader import (
    LedgerError,
    LedgerHeader,
    LedgerReader,
    LedgerTotals,
    StepRecord,
    open_ledgers,
)

logger = logging.getLogger(__name__)


@collector
class TrainingCollector(Collector):
    """Publishes the counters of every ledger in a directory, summed over all processes of a rank.

    The ledger of a dead process stays for `retention` seconds, so that Prometheus sees its last totals.
    Then its file is removed, but the rank's totals keep its counts as long as the run has other ledgers. So
    the totals never fall when a rank is restarted.
    """

    name = "training"

    def __init__(
        self,
        directory: Path,
        retention: float = 300.0,
        open_ledger: Callable[[Path], LedgerReader] = LedgerReader,
    ) -> None:
        self.directory = directory
        self.retention = retention
        self._open_ledger = open_ledger
        self.keep_steps = False  # whether step records are kept for `take_steps`
        self.ledgers: list[Ledger] = []
        self._runs: dict[str, _Run] = {}
        self._skipped: dict[Path, tuple[_Signature, int]] = {}  # with the number of tries
        self._steps: list[tuple[LedgerHeader, list[StepRecord]]] = []
        self._lost = 0
        self._first_look = True
        self._families = _Families()
        self.families = self._families.all

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--ledger-dir",
            type=Path,
            default=Path(ledger_directory()),
            metavar="DIR",
            help="TRAINWATCH_LEDGER_DIR of the training processes (default: %(default)s)",
        )
        parser.add_argument(
            "--ledger-retention",
            type=parse_duration,
            default="5m",
            metavar="DURATION",
            help="how long the ledger of a dead process is kept (default: %(default)s)",
        )

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> TrainingCollector:
        return cls(arguments.ledger_dir, arguments.ledger_retention)

    @property
    def active_runs(self) -> set[str]:
        """Returns the runs with a training process that held its ledger at the last tick."""
        return {ledger.header.run for ledger in self.ledgers if ledger.alive}

    def collect(self, sample: Sample) -> None:
        self._open_new()
        for ledger in list(self.ledgers):
            self._read(ledger, sample.time)
            if ledger.died is not None and sample.time - ledger.died > self.retention:
                self._remove(ledger)
        self._first_look = False
        self._families.publish(self._runs, self._lost)

    def take_steps(self) -> list[tuple[LedgerHeader, list[StepRecord]]]:
        """Returns the steps that finished since the last call, by ledger; needs `keep_steps`."""
        taken, self._steps = self._steps, []
        return taken

    def close(self) -> None:
        for ledger in self.ledgers:
            ledger.reader.close()

    def _open_new(self) -> None:
        known = {ledger.reader.path: ledger for ledger in self.ledgers}
        found = list(open_ledgers(self.directory))
        for path in found:
            try:
                signature = _signature(path)
            except FileNotFoundError:
                continue
            if path in known and known[path].inode == signature[0]:
                continue
            if path in known:  # a new process of the same name has replaced the file
                self._forget(known[path])
            if self._may_be_opened(path, signature):
                self._open(path, signature)
        for path in self._skipped.keys() - set(found):
            del self._skipped[path]

    def _open(self, path: Path, signature: _Signature) -> None:
        try:
            reader = self._open_ledger(path)
        except FileNotFoundError:
            return
        except (LedgerError, OSError) as error:
            self._skip(path, signature, error)
            return
        self._skipped.pop(path, None)
        ledger = Ledger(reader, signature[0], counts_losses=not self._first_look)
        self.ledgers.append(ledger)
        self._runs.setdefault(ledger.header.run, _Run()).ledgers.append(ledger)

    def _read(self, ledger: Ledger, now: float) -> None:
        if ledger.died is not None:  # its last totals have been read
            return
        try:
            records, lost = ledger.read(now)
        except (LedgerError, OSError) as error:
            self._skip(ledger.reader.path, _signature_or_none(ledger.reader.path), error, certain=True)
            self._forget(ledger)
            return
        self._lost += lost
        if records:
            self._runs[ledger.header.run].mark(ledger.header.rank, records)
            if self.keep_steps:
                self._steps.append((ledger.header, records))

    def _may_be_opened(self, path: Path, signature: _Signature) -> bool:
        skipped = self._skipped.get(path)
        return skipped is None or skipped[0] != signature or skipped[1] < 2

    def _skip(
        self, path: Path, signature: _Signature | None, error: Exception, certain: bool = False
    ) -> None:
        """Skips a file until it changes. Warns at the second try: at the first it may be half-written."""
        if signature is None:
            return
        before = self._skipped.get(path)
        tries = 2 if certain else before[1] + 1 if before and before[0] == signature else 1
        self._skipped[path] = (signature, tries)
        if tries == 2:
            words = " ".join(str(error).split())
            logger.warning("%s; skipped", words if str(path) in words else f"{path}: {words}")

    def _remove(self, ledger: Ledger) -> None:
        path = ledger.reader.path
        try:
            if path.exists() and path.stat().st_ino == ledger.inode:
                path.unlink()
        except OSError as error:
            self._skip(path, _signature_or_none(path), error, certain=True)
        self._forget(ledger)

    def _forget(self, ledger: Ledger) -> None:
        ledger.reader.close()
        self.ledgers.remove(ledger)
        run = self._runs[ledger.header.run]
        run.retire(ledger)
        if not run.ledgers:
            del self._runs[ledger.header.run]


_Signature = tuple[int, int, int]  # inode, size, last change; a skipped file is tried again if it changes


def _signature(path: Path) -> _Signature:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _signature_or_none(path: Path) -> _Signature | None:
    try:
        return _signature(path)
    except OSError:
        return None


class Ledger:
    """One ledger and its last totals. Times are seconds since the epoch."""

    def __init__(self, reader: LedgerReader, inode: int, counts_losses: bool) -> None:
        self.reader = reader
        self.inode = inode
        self.totals: LedgerTotals = reader.totals()
        self.alive = False
        self.died: float | None = None  # when it was first seen dead
        self.end: float | None = None  # of the process: from the ledger, otherwise the nearest known time
        # Records that were overwritten before this exporter started are not this exporter's loss.
        self._counts_losses = counts_losses

    @property
    def header(self) -> LedgerHeader:
        return self.reader.header

    def read(self, now: float) -> tuple[list[StepRecord], int]:
        """Returns new step records and how many were lost. Raises LedgerError, OSError."""
        was_alive, self.alive = self.alive, self.reader.alive()
        self.totals = self.reader.totals()  # after the look at the lock: final if the process is dead
        records, lost = self.reader.new_steps()
        if not self.alive:
            self.died = now
            seen = now if was_alive else self.totals.last_step_end or self.header.start
            self.end = self.totals.end or seen
        counted, self._counts_losses = self._counts_losses, True
        return records, lost if counted else 0


class _Run:
    """One run: its ledgers, and the sums of removed ledgers."""

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self._retired: dict[int, RankTotals] = {}
        self._retired_times: list[tuple[float, float | None, float | None]] = []
        self._exemplars: dict[tuple[int, str], dict[int, Exemplar]] = {}

    def mark(self, rank: int, records: Sequence[StepRecord]) -> None:
        """Keeps the newest step of each bucket as its exemplar."""
        for phase in {record.phase for record in records}:
            self._exemplars[rank, phase] = {
                **self._exemplars.get((rank, phase), {}),
                **{
                    bisect_left(STEP_BOUNDS, record.duration): Exemplar(
                        {"step": str(record.number)}, record.duration, record.start + record.duration
                    )
                    for record in records
                    if record.phase == phase
                },
            }

    def exemplars(self, rank: int, phase: str) -> Mapping[int, Exemplar] | None:
        return self._exemplars.get((rank, phase))

    def retire(self, ledger: Ledger) -> None:
        """Removes a ledger, but keeps its counts."""
        self.ledgers.remove(ledger)
        self._retired.setdefault(ledger.header.rank, RankTotals()).add(ledger.totals)
        self._retired_times.append(_times(ledger))
        self._retired_times = [_widest(self._retired_times)]

    def ranks(self) -> dict[int, RankTotals]:
        """Returns the totals of each rank over all of its processes."""
        totals = deepcopy(self._retired)
        for ledger in self.ledgers:
            totals.setdefault(ledger.header.rank, RankTotals()).add(ledger.totals)
        return totals

    def newest(self) -> dict[int, Ledger]:
        """Returns the ledger of each rank that started last, by rank."""
        return {ledger.header.rank: ledger for ledger in sorted(self.ledgers, key=lambda x: x.header.start)}

    def times(self) -> tuple[float, float | None, float | None]:
        """Returns the start, the start of the first step and the end of the last step."""
        return _widest([*self._retired_times, *map(_times, self.ledgers)])

    def end(self) -> float | None:
        """Returns when the last process ended; None while a process lives."""
        ends = [ledger.end for ledger in self.ledgers if ledger.end is not None]
        return max(ends) if len(ends) == len(self.ledgers) else None


def _times(ledger: Ledger) -> tuple[float, float | None, float | None]:
    return ledger.header.start, ledger.totals.first_step_start, ledger.totals.last_step_end


def _widest(
    times: Sequence[tuple[float, float | None, float | None]],
) -> tuple[float, float | None, float | None]:
    firsts = [first for _, first, _ in times if first is not None]
    lasts = [last for _, _, last in times if last is not None]
    return min(start for start, _, _ in times), min(firsts, default=None), max(lasts, default=None)


@dataclass
class Histogram:
    """Counts per bucket (not cumulative) and their sum in seconds."""

    counts: list[int]
    sum: float = 0.0

    def add(self, counts: Sequence[int], sum: float) -> None:
        self.counts = list(map(add, self.counts, counts))
        self.sum += sum

    def value(self, exemplars: Mapping[int, Exemplar] | None = None) -> HistogramValue:
        return HistogramValue(self.counts, self.sum, exemplars)


class RankTotals:
    """The counters of one rank, summed over its processes."""

    def __init__(self) -> None:
        self.steps: dict[str, Histogram] = {}  # by phase
        self.squared_seconds: dict[str, float] = {}
        self.phase_seconds: dict[str, float] = {}
        self.component_seconds: dict[str, float] = {}
        self.device_seconds: dict[str, float] = {}
        self.waits: Histogram | None = None  # None: no loader is watched
        self.fetches = Histogram([0] * (len(FETCH_BOUNDS) + 1))

    def add(self, totals: LedgerTotals) -> None:
        for phase, (counts, seconds) in totals.step_histogram.items():
            self.steps.setdefault(phase, Histogram([0] * len(counts))).add(counts, seconds)
        _add_to(self.squared_seconds, totals.step_squared_seconds)
        _add_to(self.phase_seconds, totals.phase_seconds)
        _add_to(self.component_seconds, totals.component_seconds)
        _add_to(self.device_seconds, totals.component_device_seconds)
        for loader in totals.loaders:
            self.waits = self.waits or Histogram([0] * (len(WAIT_BOUNDS) + 1))
            self.waits.add(loader.wait_counts, loader.wait_sum)
        self.fetches.add(totals.fetch_counts, totals.fetch_sum)


def _add_to(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for key, value in values.items():
        sums[key] = sums.get(key, 0.0) + value


class _Families:
    """The metric families of runs, steps, components and data loading (design: "Metrics")."""

    def __init__(self) -> None:
        rank, phase = ("run", "rank"), ("run", "rank", "phase")
        component = ("run", "rank", "component")
        self.all: list[Family] = []
        self.info = self._add(
            "run_info",
            "info",
            "Framework and size of the run.",
            ("run", "framework", "framework_version", "world_size"),
        )
        self.start = self._add(
            "run_start_time_seconds", "gauge", "Start of the run, since the epoch.", ("run",)
        )
        self.first_step = self._add(
            "run_first_step_time_seconds", "gauge", "Start of the first step, since the epoch.", ("run",)
        )
        self.last_step = self._add(
            "run_last_step_time_seconds", "gauge", "End of the last step so far, since the epoch.", ("run",)
        )
        self.end = self._add(
            "run_end_time_seconds", "gauge", "End of the last training process, since the epoch.", ("run",)
        )
        self.steps = self._add("step_duration_seconds", "histogram", "Duration of steps.", phase, STEP_BOUNDS)
        self.squared = self._add(
            "step_duration_squared_seconds_total",
            "counter",
            "Sum of the squares of step durations, for their standard deviation.",
            phase,
        )
        # `unknown`, because a gauge may not have the label `le`, on which PromQL joins it.
        self.bounds = self._add(
            "step_duration_bound_seconds",
            "unknown",
            "The bounds of step_duration_seconds as values, so that PromQL can compare with them.",
            ("le",),
        )
        self.phase = self._add(
            "phase_seconds_total",
            "counter",
            "Time in steps of each phase, between them (other), before (initialization) and after"
            " (finalization).",
            phase,
        )
        self.component = self._add(
            "step_component_seconds_total", "counter", "Host time in each component.", component
        )
        self.device = self._add(
            "step_component_device_seconds_total", "counter", "Device time in each component.", component
        )
        self.wait = self._add("dataloader_wait_seconds", "histogram", "Waits for a batch.", rank, WAIT_BOUNDS)
        self.fetch = self._add(
            "dataloader_fetch_seconds", "histogram", "Fetches of data-loading workers.", rank, FETCH_BOUNDS
        )
        self.workers = self._add("dataloader_workers", "gauge", "Data-loading workers.", phase)
        self.pin_memory = self._add(
            "dataloader_pin_memory", "gauge", "Whether batches are put in pinned memory.", phase
        )
        self.prefetch = self._add(
            "dataloader_prefetch_factor", "gauge", "Batches that each worker prepares ahead.", phase
        )
        self.batch_size = self._add("dataloader_batch_size", "gauge", "Items per batch of this rank.", phase)
        self.queue = self._add(
            "dataloader_queue_depth",
            "gauge",
            "Batches that were ready when training took the last batch.",
            phase,
        )
        self.lost = self._add(
            "ledger_records_lost_total",
            "counter",
            "Step records that were overwritten before this exporter read them; their totals are not lost.",
        )

    def publish(self, runs: Mapping[str, _Run], lost: int) -> None:
        """Publishes all runs. A family has no sample of a run without data for it."""
        self._publish_runs(runs)
        ranks = {
            (run, str(rank)): (totals, runs[run], rank)
            for run in runs
            for rank, totals in runs[run].ranks().items()
        }
        totals = {key: entry[0] for key, entry in ranks.items()}
        self.steps.publish_histograms(
            {
                (*key, phase): histogram.value(run.exemplars(rank, phase))
                for key, (total, run, rank) in ranks.items()
                for phase, histogram in total.steps.items()
            }
        )
        self.squared.publish(_flat({key: total.squared_seconds for key, total in totals.items()}))
        self.phase.publish(_flat({key: total.phase_seconds for key, total in totals.items()}))
        self.component.publish(_flat({key: total.component_seconds for key, total in totals.items()}))
        self.device.publish(_flat({key: total.device_seconds for key, total in totals.items()}))
        self.bounds.publish(_BOUND_SAMPLES if any(total.steps for total in totals.values()) else {})
        self.wait.publish_histograms(
            {key: total.waits.value() for key, total in totals.items() if total.waits is not None}
        )
        self.fetch.publish_histograms(
            {key: total.fetches.value() for key, total in totals.items() if any(total.fetches.counts)}
        )
        self._publish_loaders(runs)
        self.lost.publish({(): lost})

    def _publish_runs(self, runs: Mapping[str, _Run]) -> None:
        times = {run: runs[run].times() for run in runs}
        self.info.publish({_info_labels(run, runs[run]): 1 for run in runs})
        self.start.publish({(run,): start for run, (start, _, _) in times.items()})
        self.first_step.publish({(run,): first for run, (_, first, _) in times.items() if first is not None})
        self.last_step.publish({(run,): last for run, (_, _, last) in times.items() if last is not None})
        self.end.publish({(run,): end for run in runs if (end := runs[run].end()) is not None})

    def _publish_loaders(self, runs: Mapping[str, _Run]) -> None:
        loaders = {
            (run, str(rank), loader.phase): loader
            for run in runs
            for rank, ledger in runs[run].newest().items()
            if ledger.alive
            for loader in ledger.totals.loaders
        }
        for family, setting in (
            (self.workers, "workers"),
            (self.pin_memory, "pin_memory"),
            (self.prefetch, "prefetch_factor"),
            (self.batch_size, "batch_size"),
            (self.queue, "queue_depth"),
        ):
            values = {key: getattr(loader, setting) for key, loader in loaders.items()}
            family.publish({key: int(value) for key, value in values.items() if value is not None})

    def _add(
        self,
        name: str,
        kind: Kind,
        help: str,
        labels: tuple[str, ...] = (),
        bounds: Sequence[float] = (),
    ) -> Family:
        family = Family(f"trainwatch_{name}", kind, help, labels, bounds)
        self.all.append(family)
        return family


def _flat(values: Mapping[tuple[str, str], Mapping[str, float]]) -> dict[LabelValues, float]:
    return {(*key, name): value for key, named in values.items() for name, value in named.items()}


def _info_labels(name: str, run: _Run) -> LabelValues:
    header = max(
        (ledger.header for ledger in run.ledgers), key=lambda each: (bool(each.framework), each.start)
    )
    return name, header.framework, header.framework_version, str(header.world_size)


_BOUND_SAMPLES: dict[LabelValues, float] = {(number(bound),): bound for bound in STEP_BOUNDS}
