"""The sample counters of one run, and the file that keeps them when the exporter is killed."""

import json
import logging
from collections.abc import Collection, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from stepscope.common.shared_files import move
from stepscope.exporter.sampling.sample import RunSample, Sample
from stepscope.exporter.sampling.sample_tally import SampleTally
from stepscope.exporter.sampling.state_file import UNSAVED_SAMPLES, StateFile, StateFileError, boot_id

logger = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """The counts of a run at a moment, as its file keeps them."""

    header: bytes
    counts: bytes
    gpus: tuple[str, ...]
    samples: int


class CountedRun:
    """The counts of a run. Times are seconds since the epoch.

    `published` returns the counts in the file. So after a `kill -9` at any moment, the counters continue at
    least where a scrape saw them last. If one fell, Prometheus would take that for a restart at zero, and
    would add all of its counts once more.
    """

    def __init__(self, name: str, path: Path | None, start: float) -> None:
        self.name = name
        self.path = path
        self.start = start  # of the counting
        self.pids: Sequence[int] = ()  # of an unnamed run: its processes
        self.uses: RunSample | None = None  # at the last sample; None: not known yet
        self._last_sample = start
        self._tally = SampleTally()
        self._saved: Snapshot | None = None
        self._published = 0  # samples in the last published counts
        self._file = StateFile(path) if path else None

    @classmethod
    def load(cls, path: Path, now: float) -> "CountedRun | None":
        """Returns the run of a file. Removes a file of another boot; renames one that cannot be used."""
        file = StateFile(path)
        try:
            header, _, counts = file.read().partition(b"\n")
            facts = _Facts.of(header)
            tally = SampleTally.from_bytes(counts, facts.gpus)
            if facts.boot != boot_id():  # its newest counts may be lost: the counters would fall
                logger.info("%s: from before the node was booted; counting from 0", path)
                file.remove()
                return None
        except (StateFileError, ValueError) as error:
            _set_aside(path, error)
            return None
        except OSError as error:
            logger.warning("%s: cannot be read: %s; counting from 0", path, error.strerror)
            return None
        run = cls(facts.run, path, facts.start)
        run.pids, run._tally, run._file = facts.pids, tally, file
        run._saved = Snapshot(header, counts, facts.gpus, tally.samples)
        run._last_sample = min(facts.last_sample, now)  # the clock may have been ahead
        return run

    def count(self, sample: Sample, uses: RunSample | None) -> None:
        """Counts a sample. None for `uses` if that is not known at this sample: what it was counts on."""
        self.uses = uses or self.uses or RunSample()
        self._tally.add(sample, self.uses)
        self._last_sample = sample.time

    @property
    def gpus(self) -> Collection[str]:
        """Returns the GPUs that the run uses; after a restart, at first those that were counted."""
        return self._tally.gpu if self.uses is None else self.uses.gpus

    def age(self, now: float) -> float:
        """Returns the seconds since the last sample."""
        self._last_sample = min(self._last_sample, now)  # the clock may have been set back
        return now - self._last_sample

    def published(self) -> SampleTally:
        """Returns the counts in the file, or those in memory if the disk fails or hangs."""
        saved, tally = self._saved, self._tally
        if saved and self._published <= saved.samples >= tally.samples - UNSAVED_SAMPLES:
            tally = SampleTally.from_bytes(saved.counts, saved.gpus)
        self._published = tally.samples
        return tally

    def unsaved(self) -> Snapshot | None:
        """Returns the counts that `save` should write; None if the file has them."""
        if self._file is None or (self._saved and self._saved.samples == self._tally.samples):
            return None
        gpus = tuple(self._tally.gpu)
        facts = _Facts(self.name, boot_id(), self.start, self._last_sample, tuple(self.pids), gpus)
        header = json.dumps(facts._asdict()).encode()
        return Snapshot(header, self._tally.to_bytes(), gpus, self._tally.samples)

    def save(self, snapshot: Snapshot) -> None:
        """Writes the counts. Raises OSError or StateFileError."""
        assert self._file is not None
        try:
            self._file.write_counts(snapshot.header + b"\n" + snapshot.counts)
        except (OSError, StateFileError):
            self._saved = None
            raise
        self._saved = snapshot

    def drop(self) -> None:
        """Removes the file."""
        if self._file is not None:
            try:
                self._file.remove()
            except OSError as error:
                logger.warning("%s: cannot be removed: %s", self.path, error.strerror)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Facts(NamedTuple):
    """Facts about the run in the header of its file."""

    run: str
    boot: str
    start: float
    last_sample: float
    pids: tuple[int, ...]
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, header: bytes) -> "_Facts":
        """Parses a file's header. Raises ValueError if it is not one."""
        try:
            facts = json.loads(header)
            read = cls(
                str(facts["run"]),
                str(facts["boot"]),
                float(facts["start"]),
                float(facts["last_sample"]),
                tuple(map(int, facts["pids"])),
                tuple(map(str, facts["gpus"])),
            )
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not the state of a run ({type(error).__name__})") from None
        if not isfinite(read.start) or not isfinite(read.last_sample):
            raise ValueError("its times are not numbers")
        return read


def _set_aside(path: Path, reason: Exception) -> None:
    aside = path.with_suffix(".unusable")
    logger.warning("%s: %s; renamed to %s, counting from 0", path, reason, aside.name)
    try:
        move(path, aside)
    except OSError as error:
        logger.warning("%s: cannot be renamed: %s", path, error.strerror)
