"""The series of one node: as arrays with a row per scrape, and as the last value of each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import COMPONENTS, PHASES, GpuFacts, Loader, NodeFacts, RankFacts, Times
from stepscope.runs.prometheus.api import Series

Labels = frozenset[tuple[str, str]]
Counts = NDArray[np.int64]

# Series of the run, and of the nodes, of which the last value is read.
OF_RUN = (
    "stepscope_(run_info|run_gpu_info|run_launch_unknown|run_(start|first_step|last_step|end)_time_seconds|phase_seconds_total"
    "|step_component_seconds_total|step_duration_seconds(_count)?"
    "|dataloader_(workers|pin_memory|prefetch_factor)|run_gauge|run_counted_total)"
)
OF_NODE = (
    "stepscope_(gpu_info|gpu_memory_total_bytes|gpu_power_limit_watts|memory_total_bytes"
    "|exporter_build_info|collector_success)"
)


class Scrapes:
    """The series of some scrapes; `times` (n,) are those of the scrapes, and values are NaN without one.

    `target` are the labels that all of the node's series have; the methods omit them.
    """

    def __init__(self, times: Times, series: Iterable[Series], target: Mapping[str, str]) -> None:
        self.times = times
        outer = frozenset(target.items())
        self._values: dict[str, dict[Labels, Times]] = {}
        for found in series:
            values = np.full(len(times), np.nan)
            places = np.searchsorted(times, found.times - 0.0005)
            there = places < len(times)
            there[there] = np.abs(times[places[there]] - found.times[there]) < 0.001
            values[places[there]] = found.values[there]
            self._values.setdefault(found.name, {})[frozenset(found.labels.items()) - outer] = values

    def __len__(self) -> int:
        return len(self.times)

    def exactly(self, name: str, **labels: str) -> Times:
        """Returns (n,) the series of a metric that has these labels and no others."""
        found = self._values.get(name, {}).get(frozenset(labels.items()))
        return np.full(len(self), np.nan) if found is None else found

    def bucket(self, histogram: str, bound: float, **labels: str) -> Times:
        """Returns (n,) one bucket; Prometheus 3 writes the bound 1 as 1.0."""
        values = self.exactly(f"{histogram}_bucket", le=f"{bound:g}", **labels)
        if np.isnan(values).all():
            return self.exactly(f"{histogram}_bucket", le=f"{bound:.1f}", **labels)
        return values

    def of(self, name: str, **labels: str) -> Mapping[Labels, Times]:
        """Returns the series of a metric that have these labels; (n,) each."""
        wanted = frozenset(labels.items())
        return {key: values for key, values in self._values.get(name, {}).items() if wanted <= key}

    def total(self, name: str, **labels: str) -> Times:
        """Returns (n,) the sum of the series that have these labels, NaN without one."""
        together = np.vstack([np.full(len(self), np.nan), *self.of(name, **labels).values()])
        return np.where(np.isnan(together).all(axis=0), np.nan, np.nansum(together, axis=0))

    def table(self, name: str, label: str, values: Sequence[str], **labels: str) -> Times:
        """Returns (n, len(values)) the `total` of each value of a label."""
        columns = [self.total(name, **{label: value}, **labels) for value in values]
        return np.column_stack(columns) if columns else np.empty((len(self), 0))

    def values_of(self, name: str, label: str, **labels: str) -> tuple[str, ...]:
        """Returns the values of a label in the series of a metric, numbers first and in their order."""
        found = {value for key in self.of(name, **labels) for name_, value in key if name_ == label}
        return tuple(sorted(found, key=_as_number))


def _as_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return np.inf, text


LARGEST = 2.0**53  # floats above it cannot count


class Gains:
    """The increase of counters between scrapes, across the pieces in which the scrapes are read.

    A new counter counts from `first`: from 0, or from its first value (None). A counter that is lower than
    before has restarted. A scrape without the counter, or with a value that no counter has, gains nothing.
    """

    def __init__(self, first: float | None = 0.0) -> None:
        self._first = first
        self._last: dict[object, float] = {}

    def of(self, key: object, values: Times) -> Times:
        """Returns (n,) the gains for values of the scrapes (n,); `key` identifies the counter."""
        there = (values >= 0) & (values < LARGEST)
        gained = np.zeros(len(values))
        if not there.any():
            return gained
        known = values[there]
        before = self._last.get(key, self._first if self._first is not None else float(known[0]))
        steps = np.diff(known, prepend=before)
        gained[there] = np.where(steps < 0, known, steps)
        self._last[key] = float(known[-1])
        return gained

    def exactly(self, scrapes: Scrapes, name: str, **labels: str) -> Times:
        """Returns (n,) the gains of the series that has these labels and no others."""
        return self.of((name, *labels.items()), scrapes.exactly(name, **labels))

    def histogram(
        self, scrapes: Scrapes, name: str, bounds: Sequence[float], **labels: str
    ) -> tuple[Counts, Times, Times]:
        """Returns the gains of a histogram: (n, len(bounds) + 1) by bucket, (n,) its count and its sum.

        The exporter leaves out its first buckets until they count something: until then they are 0.
        """
        count, total = (self.exactly(scrapes, f"{name}_{part}", **labels) for part in ("count", "sum"))
        is_there = scrapes.exactly(f"{name}_count", **labels) >= 0
        below = []
        for bound in bounds:
            key, values = (name, bound, *labels.items()), scrapes.bucket(name, bound, **labels)
            if key not in self._last:
                values = np.where(is_there & ~np.maximum.accumulate(values >= 0), 0.0, values)
            below.append(self.of(key, values))
        cumulative = np.column_stack([np.zeros(len(scrapes)), *below, count])
        return np.rint(np.maximum(np.diff(cumulative, axis=1), 0)).astype(np.int64), count, total


class LastValues:
    """The last values of a node's series."""

    def __init__(self, node: str, series: Iterable[Series], last_scrape: float) -> None:
        self.node = node
        self.last_scrape = last_scrape
        self._series: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for found in series:
            self._series.setdefault(found.name, []).append((found.labels, float(found.values[-1])))

    @property
    def name(self) -> str:
        """Returns the run's name; "" if it is not known."""
        return next((labels.get("name", "") for labels, _ in self._of("stepscope_run_info")), "")

    @property
    def launch_unknown(self) -> bool:
        """Returns whether other launches of the run would look the same."""
        return bool(self._of("stepscope_run_launch_unknown"))

    def moment(self, which: str) -> float | None:
        """Returns `start`, `first_step`, `last_step` or `end` of the run; None if it is not known."""
        return next((value for _, value in self._of(f"stepscope_run_{which}_time_seconds")), None)

    @property
    def is_lean(self) -> bool:
        """Returns whether the exporter published too little for a report."""
        return any(labels.get("profile") == "lean" for labels, _ in self._of("stepscope_exporter_build_info"))

    def versions(self) -> dict[str, str]:
        for labels, _ in self._of("stepscope_exporter_build_info"):
            found = {"stepscope": labels.get("version", "")}
            return found | ({"simulated": labels["simulated"]} if "simulated" in labels else {})
        return {}

    def facts(self, cpus: tuple[str, ...], gpus: tuple[str, ...]) -> NodeFacts:
        known = {labels["gpu"]: labels for labels, _ in self._of("stepscope_gpu_info")}
        memory = self._by("stepscope_gpu_memory_total_bytes", "gpu")
        power = self._by("stepscope_gpu_power_limit_watts", "gpu")
        evidence = {labels["gpu"]: labels.get("by", "") for labels, _ in self._of("stepscope_run_gpu_info")}
        looked = "run_gpus" in self._by("stepscope_collector_success", "collector")
        facts = []
        for gpu in gpus:
            labels = known.get(gpu, {})
            model, uuid = labels.get("model", ""), labels.get("uuid", "")
            by = evidence.get(gpu, "" if looked else None)
            facts.append(GpuFacts(gpu, model, uuid, memory.get(gpu, 0.0), power.get(gpu, 0.0), by))
        return NodeFacts(
            self.node,
            cpus,
            tuple(facts),
            next((value for _, value in self._of("stepscope_memory_total_bytes")), 0.0),
            next((labels.get("driver_version", "") for labels in known.values()), ""),
        )

    def ranks(self) -> Iterator[RankFacts]:
        info = next((labels for labels, _ in self._of("stepscope_run_info")), {})
        start, end = self.moment("start"), self.moment("end")
        for rank in sorted(map(int, self._by("stepscope_phase_seconds_total", "rank"))):
            phases = self._by("stepscope_phase_seconds_total", "phase", rank=str(rank))
            steps = self._by("stepscope_step_duration_seconds_count", "phase", rank=str(rank))
            components = self._by("stepscope_step_component_seconds_total", "component", rank=str(rank))
            yield RankFacts(
                node=self.node,
                rank=rank,
                pid=0,
                start=start if start is not None else self.last_scrape - sum(phases.values()),
                first_step_start=self.moment("first_step"),
                last_step_end=self.moment("last_step"),
                # Only a process that ended properly has counted the time after its last step.
                end=end if "finalization" in phases else None,
                framework=info.get("framework", ""),
                framework_version=info.get("framework_version", ""),
                world_size=int(info.get("world_size", "0") or 0),
                phase_seconds=phases,
                component_seconds={name: components.get(name, 0.0) for name in COMPONENTS},
                steps={name: int(steps.get(name, 0)) for name in PHASES},
                loaders=tuple(self._loaders(str(rank))),
                last_alive=end if end is not None else self.last_scrape,
                gauges=self._by("stepscope_run_gauge", "name", rank=str(rank)),
                counts=self._by("stepscope_run_counted_total", "name", rank=str(rank)),
            )

    def _loaders(self, rank: str) -> Iterator[Loader]:
        """Yields loaders without fetches: only their wall time is scraped, which alone shows no cause."""
        workers, pinned, prefetch = (
            self._by(f"stepscope_dataloader_{name}", "phase", rank=rank)
            for name in ("workers", "pin_memory", "prefetch_factor")
        )
        for phase in PHASES:
            if phase in workers or phase in pinned or phase in prefetch:
                yield Loader(
                    int(rank),
                    phase,
                    int(workers[phase]) if phase in workers else None,
                    bool(pinned[phase]) if phase in pinned else None,
                    int(prefetch[phase]) if phase in prefetch else None,
                )

    def _of(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        return [found for found in self._series.get(name, ()) if labels.items() <= found[0].items()]

    def _by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        return {found[label]: value for found, value in self._of(name, **labels)}
