"""The series of a training cluster, as remote write requests that a Prometheus stores.

A few simulated nodes are scraped through the real exporter. Every node of the cluster has the series of one
simulated node, with its own name and its own ranks. Eight nodes share a run.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from stepscope.prometheus.crosscheck.offline.prometheus import label, request, samples_of
from stepscope.rules.gradients_exploding import GradientsExploding
from stepscope.rules.loss_not_finite import LossNotFinite
from stepscope.rules.straggler import SLOW

from benchmarks.node import CORES
from tests.support.demo import START, simulated

SCRAPE_SECONDS = 15
NODES_PER_RUN = 8
RANKS = GPUS = 8
SERIES_PER_REQUEST = 2000
# Each run has a scenario; four of five runs are healthy.
HEALTHY, TROUBLED = "healthy", ("cpu-bottleneck", "imbalance", "step-outliers")
HISTORY_SECONDS = 6 * 3600 + 600  # of recorded series at which rules look back
HISTORY_STEP_SECONDS = 120
LEAKING = "imbalance"  # the scenario whose GPU memory fills up steadily
GROWTH = 0.2  # of the memory, in HISTORY_SECONDS
SIMULATED_CORES = 32  # of a node; the cluster's nodes have CORES, and more data-loading workers in proportion
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')

FINITE, NOT_FINITE = LossNotFinite.records()

Points = list[tuple[int, float]]  # milliseconds since the epoch, and value
Key = tuple[str, tuple[tuple[str, str], ...]]  # a metric's name and the exporter's labels


class Cluster:
    """`scrapes` of `nodes`, the first at `start` (seconds since the epoch).

    Metrics that are not in `read` have only the last scrape: they must exist, but no rule reads them.
    """

    def __init__(
        self, nodes: int, scrapes: int, start: int, read: Collection[str], troubled: Sequence[str] = TROUBLED
    ) -> None:
        self.nodes = nodes
        self._scenarios = (HEALTHY, *troubled)
        found = {name: _scraped(name, scrapes, start) for name in self._scenarios}
        self._memory = {name: _lowest_memory(points) for name, points in found.items()}
        self._scraped = {
            name: {
                key: samples_of(points if key[0] in read else points[-1:]) for key, points in series.items()
            }
            for name, series in found.items()
        }
        self._label = cache(label)

    @property
    def gpus(self) -> int:
        return GPUS * self.nodes

    @property
    def series(self) -> int:
        """Returns the number of scraped series."""
        return sum(len(self._scraped[self._scenario(node)]) for node in range(self.nodes))

    def requests(self, recorded: Iterable[str], until: int) -> Iterator[bytes]:
        """Yields the bodies of requests that write all series.

        `recorded` are names of recorded series, of the memory of a run or of its GPUs, or of its loss. They
        have the last hours before `until`. No rank was slow, and each loss was finite.
        No gradient norm is published.
        """
        parts: list[bytes] = []
        for series in self._all(recorded, until):
            parts.append(series)
            if len(parts) == SERIES_PER_REQUEST:
                yield request(parts)
                parts = []
        if parts:
            yield request(parts)

    def _all(self, recorded: Iterable[str], until: int) -> Iterator[bytes]:
        levels = {
            scenario: [_history(until, level, GROWTH if scenario == LEAKING else 0.0) for level in by_gpu]
            for scenario, by_gpu in self._memory.items()
        }
        gains = GPUS * [_history(until, GROWTH / 24, 0.0)]  # in a quarter of an hour
        for node in range(self.nodes):
            for name in set(recorded) - {SLOW, NOT_FINITE, *GradientsExploding.records()}:
                if ":gain" not in name:
                    yield from self._of_rule(node, name, levels[self._scenario(node)])
                elif self._scenario(node) == LEAKING:  # memory that does not grow has no gain
                    yield from self._of_rule(node, name, gains)
            for (name, labels), samples in self._scraped[self._scenario(node)].items():
                yield self._encoded(node, name, dict(labels)) + samples

    def _of_rule(self, node: int, name: str, by_gpu: Sequence[bytes]) -> Iterator[bytes]:
        if name.startswith("run_instance:stepscope_run_memory") or name == FINITE:
            yield self._encoded(node, name, {"run": ""}) + by_gpu[0]  # any value costs as much
            return
        if not name.startswith("run_instance_gpu:stepscope_gpu_memory_"):
            raise ValueError(f"{name}: a series without a simulated history")
        for gpu, samples in enumerate(by_gpu):
            yield self._encoded(node, name, {"run": "", "gpu": str(gpu)}) + samples

    def _encoded(self, node: int, name: str, labels: Mapping[str, str]) -> bytes:
        """Encodes the labels of a node's series, with the node's own run and ranks."""
        own = {"__name__": name, "job": "stepscope", "instance": f"node-{node:04}", **labels}
        if "run" in own:
            own["run"] = f"run-{node // NODES_PER_RUN:03}"
        if "rank" in own:
            own["rank"] = str(RANKS * (node % NODES_PER_RUN) + int(own["rank"]))
        return b"".join([self._label(*pair) for pair in sorted(own.items())])

    def _scenario(self, node: int) -> str:
        run = node // NODES_PER_RUN
        troubled = self._scenarios[1:]
        return self._scenarios[0] if run % 5 or not troubled else troubled[run // 5 % len(troubled)]


def _scraped(scenario: str, scrapes: int, start: int) -> dict[Key, Points]:
    """Returns the samples of each series of a simulated node that exists at the end."""
    found: dict[Key, Points] = {}
    with simulated(scenario) as node:
        for number in range(scrapes):
            node.go(SCRAPE_SECONDS)
            time = 1000 * (start + SCRAPE_SECONDS * number)
            for line in node.exporter.scrape("text").decode().splitlines():
                match = _SAMPLE.fullmatch(line)
                if match is not None:
                    labels = tuple(sorted(_LABEL.findall(match[2] or "")))
                    value = _value(match[1], float(match[3]), start)
                    for key in _with_all_cores(match[1], labels):
                        found.setdefault(key, []).append((time, value))
    end = 1000 * (start + SCRAPE_SECONDS * (scrapes - 1))
    found["up", ()] = [(1000 * (start + SCRAPE_SECONDS * number), 1.0) for number in range(scrapes)]
    return {key: points for key, points in found.items() if points[-1][0] == end}


def _lowest_memory(scraped: Mapping[Key, Points]) -> list[float]:
    """Returns the lowest share of memory in use, by GPU."""
    used, total = (
        [scraped[f"stepscope_gpu_memory_{which}_bytes", (("gpu", str(gpu)),)] for gpu in range(GPUS)]
        for which in ("used", "total")
    )
    return [min(value for _, value in points) / most[0][1] for points, most in zip(used, total, strict=True)]


def _value(name: str, value: float, start: int) -> float:
    """Returns the value of the cluster's nodes for a simulated node's `value`."""
    if name in ("stepscope_cpus", "stepscope_dataloader_workers"):
        return value * CORES / SIMULATED_CORES
    if name.startswith("stepscope_run_") and name.endswith("_time_seconds"):
        return value + start - START
    return value


def _with_all_cores(name: str, labels: tuple[tuple[str, str], ...]) -> Iterator[Key]:
    """Yields the series. If it is of a core, also yields series for cores that the simulation lacks."""
    core = dict(labels).get("cpu")
    yield name, labels
    if core is not None:
        for more in range(int(core) + SIMULATED_CORES, CORES, SIMULATED_CORES):
            yield name, (("cpu", str(more)),)


def _history(until: int, level: float, growth: float) -> bytes:
    """Returns samples of a share of a GPU's memory that has grown by `growth` to `level`."""
    steps = HISTORY_SECONDS // HISTORY_STEP_SECONDS
    times = range(until - HISTORY_STEP_SECONDS * steps, until, HISTORY_STEP_SECONDS)
    return samples_of([(1000 * time, level + growth * (step / steps - 1)) for step, time in enumerate(times)])
