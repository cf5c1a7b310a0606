"""Counters of a collector that continue when the exporter restarts, as windows of rules need them."""

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from stepscope.common.errors import describe
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.state_file import UNSAVED_SAMPLES, StateFile, StateFileError, boot_id

logger = logging.getLogger(__name__)

FORGET_SAMPLES = 1200  # then forget what an earlier exporter counted and this one does not

Counts: TypeAlias = Mapping[LabelValues, float]


class KeptCounters:
    """Adds what earlier exporters counted, since the node was booted, to what a collector counts.

    Published are the counts in the file. So after a `kill -9` at any moment, no counter is lower than a
    scrape saw it. While the file cannot be written, or without one, the counts in memory are published.
    """

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = {family.name: family for family in families}
        self._earlier: dict[str, Counts] = {}
        self._now: dict[str, Counts] = {}
        self._saved: dict[str, Counts] = {}
        self._samples = self._unsaved = 0
        self._file: StateFile | None = None
        self._complaint = ""
        self._lock = Lock()  # between a tick that counts and a slow disk

    def keep_in(self, path: Path) -> None:
        """Continues the counts in this file, which keeps them from now on."""
        self._file = StateFile(path)
        try:
            state = json.loads(self._file.read())
            if state["boot"] == boot_id():  # otherwise the processes that were counted are gone
                self._earlier = {
                    str(name): {tuple(map(str, labels)): _finite(value) for labels, value in counts}
                    for name, counts in state["counters"].items()
                }
        except FileNotFoundError:
            pass
        except (OSError, StateFileError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s: %s; counting from 0", path, describe(error))
            with suppress(OSError):
                self._file.remove()

    def continues(self, run: str) -> bool:
        """Returns whether an earlier exporter has counted something of this run."""
        return any(labels[0] == run for counts in self._earlier.values() for labels in counts)

    def publish(self, counted: Mapping[str, Counts]) -> None:
        """Publishes the counts of this process, by the name of their family."""
        now: dict[str, Counts] = {}
        for name, counts in counted.items():
            earlier = self._earlier.get(name, {})
            if gone := self._now.get(name, {}).keys() - counts.keys():  # a later run of the name begins at 0
                earlier = {labels: value for labels, value in earlier.items() if labels not in gone}
                self._earlier[name] = earlier
            now[name] = {labels: value + earlier.get(labels, 0.0) for labels, value in counts.items()}
        self._samples += 1
        if self._samples == FORGET_SAMPLES:
            self._earlier = {
                name: {labels: value for labels, value in counts.items() if labels in now.get(name, {})}
                for name, counts in self._earlier.items()
            }
        with self._lock:
            self._now = now
            self._unsaved += 1
            if self._file is None or self._unsaved > UNSAVED_SAMPLES:
                self._show(now)

    def save(self, _: Sample) -> None:
        """Writes new counts, then shows them. While a disk hangs, `publish` shows them."""
        now = self._now
        if not self._unsaved:  # the collector failed
            return
        if self._file is not None and now != self._saved:
            self._write(self._file, now)
        with self._lock:
            if self._unsaved <= UNSAVED_SAMPLES:  # otherwise newer counts are shown: none may fall
                self._show(now)
            self._unsaved = 0

    def close(self) -> None:
        """Closes the file; the counts stay in it."""
        if self._file is not None:
            self._file.close()

    def _show(self, counts: Mapping[str, Counts]) -> None:
        for name, family in self._families.items():
            family.publish(counts.get(name, {}))

    def _write(self, file: StateFile, now: dict[str, Counts]) -> None:
        kept = {name: {**self._earlier.get(name, {}), **counts} for name, counts in now.items()}
        state = {
            "boot": boot_id(),
            "counters": {name: list(counts.items()) for name, counts in kept.items()},
        }
        try:
            file.write_counts(json.dumps(state, separators=(",", ":")).encode())
        except (OSError, StateFileError) as error:
            self._saved = {}
            self._complain(f"{file.path}: the counters cannot be kept: {describe(error)}")
            return
        self._saved, self._complaint = now, ""

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            logger.warning("%s", text)
        self._complaint = text


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError("a count is not a number")
    return float(value)
