"""This process's own steps in a `CollectorRegistry` of prometheus_client, next to the script's own metrics.

    from prometheus_client import start_http_server
    from stepscope.prometheus.in_process import StepscopeCollector

    StepscopeCollector()
    start_http_server(8000)

The series are those of `stepscope exporter`, without what only a node can know: ages, states, GPUs, samples.
Scrape a run either here or at the exporter: rules would count it twice. docs/training.md has the details.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from threading import Lock

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from stepscope.exporter.collectors.training import Families
from stepscope.exporter.ledgers.ages import Now
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.ledgers.run_totals import Ledger, Run
from stepscope.exporter.sampling.exposition import SUFFIXES
from stepscope.exporter.sampling.families import Family, Kind
from stepscope.training import ledger as own_ledger
from stepscope.training.ledger_files import ledger_directory
from stepscope.training.session import session

# What the exporter measures on its own clock, and in /proc, or says of itself.
OF_EXPORTER = (
    "stepscope_run_age_seconds",
    "stepscope_run_ended_info",
    "stepscope_run_exception_info",
    "stepscope_run_last_step_age_seconds",
    "stepscope_phase_age_seconds",
    "stepscope_rank_component_age_seconds",
    "stepscope_rank_process_state",
    "stepscope_ledgers_refused_total",
    "stepscope_ledger_records_lost_total",
)
KINDS: dict[Kind, Callable[..., Metric]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
    "unknown": UnknownMetricFamily,
}


class StepscopeCollector(Collector):
    """Collects the steps, components, loaders, gauges and counts of this process.

    With PROMETHEUS_MULTIPROC_DIR, for a registry with a MultiProcessCollector, it collects those of all
    processes of the same run and user in the folder of ledgers. A process that does not train collects all
    runs of its user. A ledger that is removed keeps its counts.
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._families = Families()
        self._ledgers: dict[str, Ledger] = {}  # by path
        self._lock = Lock()  # two scrapes at once
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Returns the families without values, so that a second collector is refused."""
        return [_metric(family) for family in self._published()]

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            self._look()
            runs: dict[str, Run] = {}
            for ledger in self._ledgers.values():
                runs.setdefault(ledger.header.run, Run()).ledgers.append(ledger)
            self._families.publish(runs, time.monotonic(), 0, {})
            return [_filled(family) for family in self._published()]

    def _published(self) -> Iterator[Family]:
        return (family for family in self._families.values() if family.name not in OF_EXPORTER)

    def _look(self) -> None:
        own = session.ledger
        if own is not None and own.path not in self._ledgers:
            self._ledgers[own.path] = Ledger(_OwnLedger(own), counts_losses=False)
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            self._find_others(Path(own.path).parent if own else Path(ledger_directory()))
        now = Now(time.time(), time.monotonic())
        for ledger in self._ledgers.values():
            if ledger.died is None:
                try:
                    ledger.read(now)
                except FileNotFoundError:
                    ledger.end_at(now)
                except (OSError, LedgerError):  # its last totals remain
                    continue
                if ledger.died is not None:
                    ledger.reader.close()

    def _find_others(self, directory: Path) -> None:
        own = {
            ledger.header.run for ledger in self._ledgers.values() if isinstance(ledger.reader, _OwnLedger)
        }
        # Its ledger is there before `session` knows it. Closing a descriptor of it would drop its lock.
        of_this_process = [str(os.getpid())]
        for path in open_ledgers(directory):
            if str(path) in self._ledgers or path.name.split(".")[-3:-2] == of_this_process:
                continue
            try:
                reader = LedgerReader(path)
                if reader.owner == os.geteuid() and (not own or reader.header.run in own):
                    self._ledgers[str(path)] = Ledger(reader, counts_losses=False)
                else:
                    reader.close()
            except (OSError, LedgerError):  # the exporter says why it refuses a ledger
                continue


class _OwnLedger(LedgerReader):
    """The ledger of this process, read through the descriptor that holds its lock: see LedgerReader."""

    def __init__(self, ledger: own_ledger.Ledger) -> None:
        self._ledger = ledger
        super().__init__(ledger.path)

    def _opened(self) -> int:
        return self._ledger.fd if session.ledger is self._ledger else super()._opened()

    def alive(self) -> bool:
        return session.ledger is self._ledger or super().alive()


def _metric(family: Family) -> Metric:
    """Returns the family of prometheus_client, which adds the suffix of its kind to the name itself."""
    name = family.name.removesuffix(SUFFIXES.get(family.kind, ""))
    return KINDS[family.kind](name, family.help, labels=family.labels)


def _filled(family: Family) -> Metric:
    metric = _metric(family)
    if isinstance(metric, HistogramMetricFamily):
        bounds = [*map(floatToGoString, family.bounds), "+Inf"]
        for labels, histogram in family.histograms.items():
            below = [float(count) for count in accumulate(histogram.counts)]
            buckets = list(zip(bounds, below, strict=True))[histogram.first :]
            metric.add_metric(labels, buckets, histogram.sum)
    else:
        for labels, value in family.samples.items():
            metric.add_sample(family.name, dict(zip(family.labels, labels, strict=True)), value)
    return metric
