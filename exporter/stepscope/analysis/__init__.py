"""Reads a run into Arrow tables, for notebooks: `stepscope.analysis.open("stepscope-runs/resnet-...")`.

Every table is a `pyarrow.Table`; `table.to_pandas()` makes a data frame where pandas is installed. Quantities
are in base units, as the columns' names and metadata say: seconds, bytes per second, ratios from 0 to 1. An
unknown value is null.

Opening a run reads little. The rules are evaluated once, when a result first needs them. docs/notebooks.md
has a worked example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa

from stepscope.analysis import samples, tables
from stepscope.analysis.samples import Device
from stepscope.common.errors import UserError
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.compare.comparison import compare
from stepscope.evaluation.engine import SCAN_INTERVAL
from stepscope.evaluation.settings import Settings
from stepscope.rules.parts.parameters import Value
from stepscope.runs.model import NodeSamples, Source, Steps
from stepscope.runs.open import open_source
from stepscope.runs.prometheus.address import without_secrets

__all__ = ["Run", "UserError", "open"]


def open(  # noqa: A001  # read as stepscope.analysis.open
    source: str | Path,
    *,
    parameters: Mapping[str, Value] | None = None,
    price: float | None = None,
    scan_interval: float = SCAN_INTERVAL,
) -> Run:
    """Opens a run: a recording, Debugger's `profiler-output/`, traces, or `prometheus+http://...?run=NAME`.

    `parameters` sets parameters of rules: `{"CPUBottleneck.cpu_threshold": 80}`. `price` is the price of one
    node in dollars per hour; figures of cost need it. `scan_interval` is in seconds of the run's time.
    Raises UserError for a source that cannot be read, a parameter that does not exist, or a bad price.
    """
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"price={price:g}: is not a price; give the dollars per hour of a node, as in 14.688")
    if not scan_interval > 0:
        raise UserError(f"scan_interval={scan_interval:g}: is not a duration; give seconds above 0")
    name = without_secrets(source) if isinstance(source, str) else str(source)
    return Run(name, partial(open_source, source), _settings(parameters or {}), price, scan_interval)


class Run:
    """One run. Tables of samples and steps read the source again; the evaluation is cached."""

    def __init__(
        self,
        source: str,
        reopen: Callable[[], Source],
        settings: Settings | None = None,
        price: float | None = None,
        scan_interval: float = SCAN_INTERVAL,
    ) -> None:
        self.source = source  # as given, without a password
        self._reopen = reopen
        self._settings = settings
        self._price = price
        self._scan_interval = scan_interval
        self._facts = reopen().facts

    def __repr__(self) -> str:
        return f"<stepscope.analysis.Run {self.name} from {self.source}>"

    @property
    def name(self) -> str:
        """Returns the run's name."""
        return self._facts.name

    @property
    def run(self) -> str:
        """Returns the run's label, unique per launch; the name if the label is unknown."""
        return self._facts.label

    @property
    def start(self) -> datetime | None:
        """Returns when the run began, in UTC; None if unknown."""
        return tables.moment(self._start)

    @property
    def duration(self) -> float | None:
        """Returns the seconds from the run's start to its end, or to its last sample; None if unknown."""
        return self._evaluated.analysis.run_seconds

    @property
    def nodes(self) -> list[str]:
        """Returns the names of the run's nodes, sorted."""
        return list(self._evaluated.analysis.nodes)

    @property
    def ranks(self) -> list[int]:
        """Returns the ranks of the run's training processes, sorted."""
        return sorted({rank.rank for rank in self._evaluated.ranks})

    @property
    def unknowns(self) -> list[str]:
        """Returns one sentence for everything that the source does not contain, with the reason."""
        return list(self._evaluated.analysis.unknowns)

    def gaps(self) -> pa.Table:
        """Returns one row per part of the run that is missing: all tables and figures exclude it.

        what        samples, steps, ranks (their totals), or run (its command, start, end, exit status)
        node        empty for the whole run
        start, end  timestamp, UTC; null: unknown, or from the start or to the end of the run
        count       missing samples or steps; null: unknown
        reason      why it is missing"""
        return tables.gaps(self._evaluated.analysis.gaps)

    def samples(
        self,
        device: Device = "node",
        *,
        start: float | None = None,
        end: float | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Returns one row per sample and node, CPU or GPU, in order of time on each node.

        `start` (included) and `end` (excluded) are in seconds since the run's start. A day of 96 cores at
        500 ms has 16.6 million rows: choose `columns` or a time range, or use `iter_samples`.

        All three tables have:

            time                            when the sample was taken (timestamp, UTC)
            elapsed_seconds                 since the run's start
            node                            the node's name

        "node", one row per sample and node:

            cpu_utilization_ratio           mean of the cores
            cpu_utilization_max_ratio       of the busiest core
            cpu_io_wait_ratio               mean of the cores
            cpu_io_wait_max_ratio           of the core that waited most
            gpu_utilization_ratio           mean of the GPUs
            gpu_utilization_min_ratio       of the least busy GPU
            memory_used_ratio               of the node's memory
            network_bytes_per_second        received and transmitted, since the previous sample
            disk_bytes_per_second           read and written, since the previous sample

        "cpu", one row per sample and core:

            cpu                             the core's number
            utilization_ratio               share of the time in which it was busy
            io_wait_ratio                   share in which it was idle because of an outstanding disk request

        "gpu", one row per sample and GPU; counters do not start at 0, so take differences:

            gpu                             NVML's index
            utilization_ratio               share of the time in which a kernel ran
            memory_used_ratio               of the GPU's memory
            power_watts
            temperature_celsius
            clock_hertz                     of the multiprocessors
            thermal_throttle_seconds_total  counter: clock reduced because of heat
            power_throttle_seconds_total    counter: clock reduced because of power
            ecc_uncorrected_errors_total    counter: memory errors that ECC could not correct
            xid_errors_total                counter: XID errors
            last_xid                        number of the last XID error
            lost                            1: the driver does not reach the GPU, 0: it does

        `node`, `cpu` and `gpu` are dictionary-encoded: categories in pandas. Samples of a run in Prometheus
        are reconstructed from its counters, as docs/recording.md explains."""
        found = list(self.iter_samples(device, start=start, end=end, columns=columns))
        schema = tables.chosen(samples.SCHEMAS[device], columns)
        return pa.concat_tables([schema.empty_table(), *found]).unify_dictionaries()

    def iter_samples(
        self,
        device: Device = "node",
        *,
        start: float | None = None,
        end: float | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yields the rows of `samples` in several tables, each of which fits in memory."""
        if device not in samples.SCHEMAS:
            raise UserError(f"samples({device!r}): choose one of {', '.join(samples.SCHEMAS)}")
        schema = tables.chosen(samples.SCHEMAS[device], columns)
        moments = self._moment(start), self._moment(end)
        return self._tables_of_samples(device, schema, moments)

    def steps(self) -> pa.Table:
        """Returns one row per finished step, in the order of their starts.

            node, rank               that ran it
            phase                    train, eval, predict or global
            number                   of the step within its phase
            start                    timestamp, UTC
            elapsed_seconds          from the run's start to the step's start
            duration_seconds
            data_wait_seconds        part of the duration, as all below; 0 if not marked
            forward_seconds
            backward_seconds
            optimizer_seconds
            communication_seconds
            host_to_device_seconds
            checkpoint_seconds
            compile_seconds
            gc_seconds

        Prometheus has no single steps: they are reconstructed from histograms."""
        source = self._reopen()
        found = [tables.steps(chunk, self._start) for chunk in source.read() if isinstance(chunk, Steps)]
        return pa.concat_tables([tables.STEPS.empty_table(), *found]).sort_by(
            [("start", "ascending"), ("rank", "ascending")]
        )

    def account(self) -> pa.Table:
        """Returns where the time went, one row per part; the parts sum to the wall time of all ranks.

        part          before_first_step, train, eval, ..., between_steps, after_last_step, unknown
        component     of steps; `host` is what no timed component covers; "" if the part has none
        seconds       of all ranks
        run_ratio     share of the wall time of all ranks
        rank          the rank that spent most time here; null without ranks
        rank_seconds  its seconds"""
        return tables.account(self._evaluated.analysis.account)

    def phases(self) -> pa.Table:
        """Returns one row per rank and phase; the phases add up to the lifetime of the rank.

        node, rank
        phase       train, eval, predict, global; initialization, other (between steps), finalization
        steps       finished steps; null for the last three phases
        seconds     spent in the phase"""
        return tables.phases(self._evaluated.ranks)

    def components(self) -> pa.Table:
        """Returns one row per rank and component of its steps.

        node, rank
        component        data_wait, forward, backward, ... as in `steps`
        seconds          in all steps, also those whose own record was lost
        step_time_ratio  share of the time of all steps"""
        return tables.components(self._evaluated.ranks)

    def findings(self) -> pa.Table:
        """Returns one row per rule, in the order of the report: findings come first.

        rule            the rule's name
        status          its decision, in the words of the report
        seconds_lost    an estimate; 0 for rules that do not estimate it
        finding         one sentence with values, or why the rule could not judge
        recommendation  how to fix it
        question        that the rule answers
        triggered       scans in which the rule fired
        violations      as Debugger counts them
        datapoints      of which the violations are a part"""
        return tables.findings(self._evaluated.analysis.rules)

    def bands(self) -> pa.Table:
        """Returns one row per time in which a rule held for its live window, as its alert does.

        rule            the rule's name
        node            the node's name
        subject         a GPU or a rank; empty for the node itself
        start, end      timestamps, UTC: of the first scan that fired, and of the first that did not
        lasts           whether it held at the end of what was seen
        worst           the worst value: a ratio, seconds, or a number
        words           the worst value in words"""
        return tables.bands(self._evaluated.analysis.rules)

    def usage(self) -> pa.Table:
        """Returns one row per node and resource, over the whole run.

        node                     the node's name
        resource                 CPU, CPU memory, GPU, GPU memory, I/O wait, Network, Disk
        unit                     ratio, or bytes/second for network and disk
        max, p99, p95, p50, min  in this unit"""
        return tables.usage(self._evaluated.analysis.usage)

    def loaders(self) -> pa.Table:
        """Returns one row per data loader. Unknown values are null.

        node, rank               that use the loader
        phase                    that uses it
        workers                  processes
        pin_memory               true or false
        prefetch_factor          batches that a worker fetches ahead
        batch_size               items in a batch of this rank
        fetches                  batches fetched by all workers; below, times of all workers together
        fetch_seconds            wall time
        fetch_cpu_seconds        CPU time
        fetch_core_wait_seconds  ready to run, but no core was free"""
        return tables.loaders(self._evaluated.analysis.loaders)

    def compare(self, other: Run) -> pa.Table:
        """Returns one row per figure of `stepscope compare`; this run is A, `other` is B.

        figure             the key in --fail-if: step_mean, duration, gpu_p95, ...
        name               in words
        unit               of a and b: seconds, ratio, bytes/second, dollars, joules, steps/second, ...
        a, b               values of this run and of `other`
        change_ratio       (b - a) / a
        change_low_ratio   for step times: bounds of the 95 % confidence interval;
        change_high_ratio  an interval that includes 0 shows no difference"""
        return tables.figures(compare(self._evaluated, other._evaluated).figures.values())

    @cached_property
    def _evaluated(self) -> ComparedRun:
        return read_run(self.source, self._reopen(), self._price, self._settings, self._scan_interval)

    @cached_property
    def _start(self) -> float | None:
        """Returns seconds since the epoch. Some sources know it only once they have been read."""
        return self._facts.start if self._facts.start is not None else self._evaluated.analysis.start

    def _moment(self, elapsed: float | None) -> float | None:
        """Converts seconds since the run's start to seconds since the epoch."""
        if elapsed is None:
            return None
        if self._start is None:
            raise UserError(f"{self.source}: does not know when the run began; omit start and end")
        return self._start + elapsed

    def _tables_of_samples(
        self, device: Device, schema: pa.Schema, moments: tuple[float | None, float | None]
    ) -> Iterator[pa.Table]:
        source = self._reopen()
        for chunk in source.read():
            if isinstance(chunk, NodeSamples):
                facts = next((node for node in source.facts.nodes if node.node == chunk.node), None)
                part = samples.table(device, samples.between(chunk, *moments), facts, self._start)
                if len(part):
                    yield part.select(schema.names)


def _settings(parameters: Mapping[str, Value]) -> Settings:
    words = [f"{name}={'none' if value is None else value}" for name, value in parameters.items()]
    try:
        return Settings.parse(words)
    except UserError as error:
        raise UserError(str(error).removeprefix("--set ")) from None
