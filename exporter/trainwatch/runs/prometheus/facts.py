"""What Prometheus knows of a run as a whole: times, ranks, loaders and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from trainwatch.runs.model import (
    COMPONENTS,
    PHASES,
    GpuFacts,
    Loader,
    NodeFacts,
    RankFacts,
)
from trainwatch.runs.prometheus.api import Series

# Series of the run, and of the nodes; the last value of each is read.
OF_RUN = (
    "trainwatch_(run_info|run_(start|first_step|last_step|end)_time_seconds|phase_seconds_total"
    "|step_component_seconds_total|step_duration_seconds_count"
    "|dataloader_(workers|pin_memory|prefetch_factor))"
)
OF_NODE = (
    "trainwatch_(gpu_info|gpu_memory_total_bytes|gpu_power_limit_watts|memory_total_bytes"
    "|exporter_build_info)"
)


class LastValues:
    """The last values of a node's series."""

    def __init__(self, node: str, series: Iterable[Series], last_scrape: float) -> None:
        self.node = node
        self.last_scrape = last_scrape
        self._series: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for one in series:
            self._series.setdefault(one.name, []).append((one.labels, float(one.values[-1])))

    def moment(self, which: str) -> float | None:
        """`start`, `first_step`, `last_step` or `end` of the run; None where it is not known."""
        return next((value for _, value in self._of(f"trainwatch_run_{which}_time_seconds")), None)

    def versions(self) -> dict[str, str]:
        for labels, _ in self._of("trainwatch_exporter_build_info"):
            found = {"trainwatch": labels.get("version", "")}
            return found | ({"simulated": labels["simulated"]} if "simulated" in labels else {})
        return {}

    def facts(self, cpus: tuple[str, ...], gpus: tuple[str, ...]) -> NodeFacts:
        known = {labels["gpu"]: labels for labels, _ in self._of("trainwatch_gpu_info")}
        memory = self._by("trainwatch_gpu_memory_total_bytes", "gpu")
        power = self._by("trainwatch_gpu_power_limit_watts", "gpu")
        return NodeFacts(
            self.node,
            cpus,
            tuple(
                GpuFacts(
                    gpu,
                    known.get(gpu, {}).get("model", ""),
                    known.get(gpu, {}).get("uuid", ""),
                    memory.get(gpu, 0.0),
                    power.get(gpu, 0.0),
                )
                for gpu in gpus
            ),
            next((value for _, value in self._of("trainwatch_memory_total_bytes")), 0.0),
            next((labels.get("driver_version", "") for labels in known.values()), ""),
        )

    def ranks(self) -> Iterator[RankFacts]:
        info = next((labels for labels, _ in self._of("trainwatch_run_info")), {})
        start, end = self.moment("start"), self.moment("end")
        for rank in sorted(map(int, self._by("trainwatch_phase_seconds_total", "rank"))):
            phases = self._by("trainwatch_phase_seconds_total", "phase", rank=str(rank))
            steps = self._by("trainwatch_step_duration_seconds_count", "phase", rank=str(rank))
            components = self._by("trainwatch_step_component_seconds_total", "component", rank=str(rank))
            yield RankFacts(
                node=self.node,
                rank=rank,
                pid=0,
                start=start if start is not None else self.last_scrape - sum(phases.values()),
                first_step_start=self.moment("first_step"),
                last_step_end=self.moment("last_step"),
                # Only a process that ended in good order has counted what came behind its last step.
                end=end if "finalization" in phases else None,
                killed=False,
                framework=info.get("framework", ""),
                framework_version=info.get("framework_version", ""),
                world_size=int(info.get("world_size", "0") or 0),
                phase_seconds=phases,
                component_seconds={name: components.get(name, 0.0) for name in COMPONENTS},
                steps={name: int(steps.get(name, 0)) for name in PHASES},
                records_lost=0,
                loaders=tuple(self._loaders(str(rank))),
                last_alive=end if end is not None else self.last_scrape,
            )

    def _loaders(self, rank: str) -> Iterator[Loader]:
        """Without fetches: of these only the wall time is scraped, which alone does not tell a cause."""
        settings = {
            name: self._by(f"trainwatch_dataloader_{name}", "phase", rank=rank)
            for name in ("workers", "pin_memory", "prefetch_factor")
        }
        for phase in (phase for phase in PHASES if any(phase in known for known in settings.values())):
            workers, pinned, prefetch = (settings[name].get(phase) for name in settings)
            yield Loader(
                int(rank),
                phase,
                None if workers is None else int(workers),
                None if pinned is None else bool(pinned),
                None if prefetch is None else int(prefetch),
            )

    def _of(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        return [(its, value) for its, value in self._series.get(name, ()) if labels.items() <= its.items()]

    def _by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        return {its[label]: value for its, value in self._of(name, **labels)}
