"""Writes what scrapes of a recorded run had seen as OpenMetrics, and has promtool make blocks of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import TextIO

from trainwatch.crosscheck.offline.prometheus import program
from trainwatch.crosscheck.readings import matcher
from trainwatch.crosscheck.replay.run import RecordedRun
from trainwatch.crosscheck.replay.series import name_and_labels, values_of
from trainwatch.crosscheck.server import Milliseconds
from trainwatch.errors import UserError
from trainwatch.sampling.exposition import Exposition
from trainwatch.sampling.families import Family

JOB = "trainwatch"
BLOCK = 7_200_000  # milliseconds of a block of Prometheus; promtool reads a file anew for each

Labels = dict[str, str]


class Scrapes:
    """The series of all nodes, scrape by scrape, and where each of them ended."""

    def __init__(self, names: Set[str]) -> None:
        self.ended: list[tuple[Labels, Milliseconds]] = []
        self._names = names
        self._expositions: dict[str, Exposition] = {}
        self._prefixes: dict[tuple[str, str], str] = {}
        self._there: dict[str, set[str]] = {}  # by node, the series of the scrape before

    def lines(self, node: str, time: Milliseconds, families: Sequence[Family]) -> Iterator[str]:
        """The lines of one scrape of a node: its series with `job`, `instance` and the time."""
        exposition = self._expositions.setdefault(node, Exposition())
        there = set()
        for series, value in values_of(exposition, families, self._names):
            there.add(series)
            yield f"{self._prefix(node, series)} {value} {time // 1000}.{time % 1000:03}\n"
        before = self._there.get(node, set())
        self.ended += [(_labels(self._prefix(node, series)), time) for series in before - there]
        self._there[node] = there

    def _prefix(self, node: str, series: str) -> str:
        key = node, series
        if key not in self._prefixes:
            name, _, labels = series.partition("{")
            target = f"{matcher('job', JOB)},{matcher('instance', node)}"
            self._prefixes[key] = f"{name}{{{target}{',' + labels if labels else '}'}"
        return self._prefixes[key]


def make_blocks(
    run: RecordedRun,
    moments: Sequence[Milliseconds],
    names: Set[str],
    folder: Path,
    progress: Callable[[int], None],
) -> list[tuple[Labels, Milliseconds]]:
    """Fills `folder`/data with the series of these families, scraped at these moments.

    Returns the series that a scrape had no longer, and when: OpenMetrics cannot say so. `progress` is told
    the number of scrapes done. Raises UserError where promtool is missing or fails.
    """
    promtool = program("promtool")
    scrapes = Scrapes(names)
    text = folder / "scrapes.txt"
    block: Milliseconds | None = None
    output: TextIO | None = None
    done = 0
    try:
        for moment, node, families in run.scrapes([time / 1000 for time in moments]):
            time = round(1000 * moment)
            if time // BLOCK != block:
                if output:
                    _make_block(promtool, output, folder)
                block = time // BLOCK
                output = text.open("w", encoding="utf-8")
            assert output
            output.writelines(scrapes.lines(node, time, families))
            done += 1
            progress(done)
        if output:
            _make_block(promtool, output, folder)
    finally:
        if output:
            output.close()
    return scrapes.ended


def _labels(series: str) -> Labels:
    name, labels = name_and_labels(series)
    return {"__name__": name, **labels}


def _make_block(promtool: str, text: TextIO, folder: Path) -> None:
    text.write("# EOF\n")
    text.close()
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", text.name, str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(
            f"promtool makes no block of the recording: {said[-1] if said else 'it says nothing'}"
        )
