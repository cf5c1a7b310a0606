"""The series of a cluster in training, as a Prometheus that scrapes it has stored them.

A few simulated nodes are scraped through the real exporter; every node of the cluster has the series of one
of them, under its own name and with its own ranks. Eight nodes share a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.node import CORES
from benchmarks.tsdb_block import Chunk, Labels, Series, xor_chunk
from tests.support.demo import START, simulated

SCRAPE_SECONDS = 15
NODES_A_RUN = 8
RANKS = GPUS = 8
CHUNK = 120  # samples: as many as Prometheus puts into one
# Of each run some scenario; all runs but one in five are healthy.
HEALTHY, TROUBLED = "healthy", ("cpu-bottleneck", "imbalance", "step-outliers")
HISTORY_SECONDS = 6 * 3600 + 600  # of recorded series at which rules look back
LEAKING = "imbalance"  # of whose GPUs the memory has filled up steadily
SIMULATED_CORES = 32  # of a node; the cluster's have CORES, and as many more data-loading workers
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')

Key = tuple[str, tuple[tuple[str, str], ...]]  # a metric's name and its labels as the exporter gives them


class Cluster:
    """`scrapes` of `nodes`, the first at `start` (seconds since the epoch)."""

    def __init__(self, nodes: int, scrapes: int, troubled: Sequence[str] = TROUBLED) -> None:
        if not 1 < scrapes <= CHUNK:
            raise ValueError(f"scrapes must be 2 to {CHUNK}: they make one chunk")
        self.nodes, self.scrapes = nodes, scrapes
        self._scenarios = (HEALTHY, *troubled)
        self._scraped = {name: _scraped(name, scrapes) for name in self._scenarios}

    @property
    def gpus(self) -> int:
        return GPUS * self.nodes

    def strings(self, recorded: Iterable[str]) -> set[str]:
        """All names and values of labels."""
        found = {"__name__", "job", "trainwatch", "instance", *recorded}
        found.update(*(_words(key) for scraped in self._scraped.values() for key in scraped))
        for node in range(self.nodes):
            found |= {_instance(node), _run(node), *map(str, _ranks(node))}
        return found

    def series(self, start: int, recorded: Iterable[str], until: int) -> Iterator[Series]:
        """Every series in the order of its labels.

        `recorded`: of these rules' series (whose level must be of run, instance and gpu) there are the last
        hours before `until`, a sample a minute.
        """
        chunks = {
            name: {key: _chunk(key, values, start) for key, values in scraped.items()}
            for name, scraped in self._scraped.items()
        }
        by_metric: dict[str, dict[str, list[tuple[Key, Chunk]]]] = {}
        for name, its in chunks.items():
            for key, chunk in its.items():
                by_metric.setdefault(key[0], {}).setdefault(name, []).append((key, chunk))
        steady, growing = _history(until, 0.0), _history(until, 0.2)
        for metric in sorted({*by_metric, *recorded}):
            if metric in by_metric:
                found = self._of_metric(by_metric[metric])
            else:
                found = self._of_rule(metric, steady, growing)
            yield from sorted(found)

    def _of_metric(self, metric: Mapping[str, list[tuple[Key, Chunk]]]) -> Iterator[Series]:
        for node in range(self.nodes):
            ranks = {str(rank): str(number) for rank, number in enumerate(_ranks(node))}
            for (name, labels), chunk in metric.get(self._scenario(node), ()):
                own = {"__name__": name, "job": "trainwatch", "instance": _instance(node), **dict(labels)}
                if "run" in own:
                    own["run"] = _run(node)
                if "rank" in own:
                    own["rank"] = ranks[own["rank"]]
                yield Series(tuple(sorted(own.items())), (chunk,))

    def _of_rule(self, name: str, steady: Sequence[Chunk], growing: Sequence[Chunk]) -> Iterator[Series]:
        level = name.partition(":")[0]
        if level not in ("run_instance", "run_instance_gpu"):
            raise ValueError(f"{name}: no history can be made of a series at this level")
        for node in range(self.nodes):
            labels: Labels = (
                ("__name__", name),
                ("instance", _instance(node)),
                ("job", "trainwatch"),
                ("run", _run(node)),
            )
            chunks = growing if self._scenario(node) == LEAKING else steady
            if level == "run_instance":
                yield Series(labels, chunks)
            else:
                for gpu in range(GPUS):
                    yield Series((labels[0], ("gpu", str(gpu)), *labels[1:]), chunks)

    def _scenario(self, node: int) -> str:
        run = node // NODES_A_RUN
        troubled = self._scenarios[1:]
        return self._scenarios[0] if run % 5 or not troubled else troubled[run // 5 % len(troubled)]


def _instance(node: int) -> str:
    return f"node-{node:04}"


def _run(node: int) -> str:
    return f"run-{node // NODES_A_RUN:03}"


def _ranks(node: int) -> range:
    first = RANKS * (node % NODES_A_RUN)
    return range(first, first + RANKS)


def _words(key: Key) -> Iterator[str]:
    yield key[0]
    for label in key[1]:
        yield from label


def _scraped(scenario: str, scrapes: int) -> dict[Key, list[float | None]]:
    """The values of each series of a simulated node; None before it appeared."""
    found: dict[Key, list[float | None]] = {}
    with simulated(scenario) as node:
        for number in range(scrapes):
            node.go(SCRAPE_SECONDS)
            for line in node.exporter.scrape("text").decode().splitlines():
                match = _SAMPLE.fullmatch(line)
                if match is not None:
                    labels = tuple(sorted(_LABEL.findall(match[2] or "")))
                    value = float(match[3])
                    if match[1] == "trainwatch_dataloader_workers":
                        value *= CORES / SIMULATED_CORES
                    for key in _with_all_cores(match[1], labels):
                        found.setdefault(key, [None] * number).append(value)
    found["up", ()] = [1.0] * scrapes
    return {key: values for key, values in found.items() if len(values) == scrapes}


def _with_all_cores(name: str, labels: tuple[tuple[str, str], ...]) -> Iterator[Key]:
    """The series, and where it is one of a core, those of the cores that the simulation lacks."""
    core = dict(labels).get("cpu")
    yield name, labels
    if core is not None:
        for more in range(int(core) + SIMULATED_CORES, CORES, SIMULATED_CORES):
            yield name, (("cpu", str(more)),)


def _chunk(key: Key, values: Sequence[float | None], start: int) -> Chunk:
    missing = sum(value is None for value in values)
    shift = start - START if key[0].startswith("trainwatch_run_") and key[0].endswith("_time_seconds") else 0
    return xor_chunk(
        1000 * (start + SCRAPE_SECONDS * missing),
        1000 * SCRAPE_SECONDS,
        [value + shift for value in values if value is not None],
    )


def _history(until: int, growth: float) -> list[Chunk]:
    """A share of a GPU's memory that grows by so much."""
    minutes = HISTORY_SECONDS // 60
    values = [0.5 + growth * minute / minutes for minute in range(minutes)]
    start = 1000 * (until - 60 * minutes)
    return [
        xor_chunk(start + 60_000 * first, 60_000, values[first : first + CHUNK])
        for first in range(0, minutes, CHUNK)
    ]
