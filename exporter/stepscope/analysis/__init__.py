"""Reads a run into Arrow tables, for notebooks: `stepscope.analysis.open("stepscope-runs/resnet-...")`.

Every table is a `pyarrow.Table`; `table.to_pandas()` makes a data frame where pandas is installed. Quantities
are in base units, as the columns' names and metadata say: seconds, bytes per second, ratios from 0 to 1. An
unknown value is null.

Opening a run reads little. The rules are evaluated once, when a result first needs them. docs/notebooks.md
has a worked example.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from html import escape
from operator import attrgetter
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from stepscope.analysis import moments, samples, tables
from stepscope.analysis.moments import Stretch
from stepscope.analysis.plots import Plots
from stepscope.analysis.samples import Device
from stepscope.analysis.shown import show_tables_in_notebooks
from stepscope.analysis.starting import start_run
from stepscope.common.errors import UserError
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.compare.comparison import compare
from stepscope.evaluation.engine import SCAN_INTERVAL
from stepscope.evaluation.problems import results_of
from stepscope.evaluation.settings import Settings
from stepscope.report.merged_timeline import KINDS as TIMELINE_KINDS
from stepscope.report.merged_timeline import Chosen, write_timeline_file
from stepscope.report.run_list import PAGE, is_recording, source_of
from stepscope.report.verdict import verdict
from stepscope.rules.parts.parameters import Value
from stepscope.runs.model import FunctionTime, NodeSamples, RunFacts, Source, Steps
from stepscope.runs.open import open_source, open_sources
from stepscope.runs.prometheus.address import without_secrets

__all__ = ["Run", "Stretch", "UserError", "open", "start"]

LOOK_AGAIN = 1.0  # seconds until a run that has no data yet is read again
KINDS = {"samples": NodeSamples, "steps": Steps}
show_tables_in_notebooks()


def open(  # noqa: A001  # read as stepscope.analysis.open
    source: str | Path | Sequence[str | Path],
    *,
    parameters: Mapping[str, Value] | None = None,
    price: float | None = None,
    scan_interval: float = SCAN_INTERVAL,
) -> Run:
    """Opens a run: a recording, Debugger's `profiler-output/`, traces, or `prometheus+http://...?run=NAME`.

    With the extra `remote`, these may be at s3://, gs:// or http(s)://: they are copied, nothing is written.

    The name of a run in `stepscope-runs/` means its newest one, as in `stepscope report`. Several sources are
    the recordings of the nodes of one run.
    `parameters` sets parameters of rules: `{"CPUBottleneck.cpu_threshold": 80}`. `price` is the price of one
    node in dollars per hour; figures of cost need it. `scan_interval` is in seconds of the run's time.
    Raises UserError for a source that cannot be read, a parameter that does not exist, or a bad price.
    """
    _check_price(price)
    if not isinstance(source, (str, Path, Sequence)) or not source:
        raise UserError(f"{source!r}: is no source; give a path, a name or an address")
    if not scan_interval > 0:
        raise UserError(f"scan_interval={scan_interval:g}: is not a duration; give seconds above 0")
    given = [source] if isinstance(source, str | Path) else source
    settings = _settings(parameters or {})
    try:
        places = [source_of(place) if isinstance(place, str) else place for place in given]
        name = " ".join(without_secrets(str(place)) for place in places)
        reopen, renew = partial(open_sources, places), partial(open_sources, places, again=True)
        return Run(name, reopen, settings, price, scan_interval, renew, places)
    except OSError as error:
        raise UserError(
            f"{error.filename or source}: cannot be read: {error.strerror}; give another path"
        ) from error


def start(
    command: Sequence[str],
    *,
    name: str,
    flags: Sequence[str] = (),
    parameters: Mapping[str, Value] | None = None,
    price: float | None = None,
) -> Run:
    """Starts `stepscope run --name NAME FLAGS -- COMMAND`, and returns its run at once.

    What it prints is in `output.log` of its folder, `run.source`. It continues if the notebook is
    interrupted or ends: `run.process.terminate()` stops it. `parameters` and `price` are those of `open`.
    Raises UserError if it does not start.
    """
    _check_price(price)
    if isinstance(command, str):
        raise UserError(f"command={command!r}: is one word; give a list, as in ['python', 'train.py']")
    settings = _settings(parameters or {})
    told = [f"--set={word}" for word in _words(parameters or {})]
    told += [f"--price={price}"] if price is not None else []
    folder, process = start_run(command, name, [*told, *flags])
    run = Run(str(folder), partial(open_source, folder), settings, price)
    run.process = process
    return run


class Run:
    """One run. Tables of samples and steps read the source again; the evaluation is cached."""

    def __init__(
        self,
        source: str,
        reopen: Callable[[], Source],
        settings: Settings | None = None,
        price: float | None = None,
        scan_interval: float = SCAN_INTERVAL,
        renew: Callable[[], Source] | None = None,
        places: Sequence[str | Path] = (),
    ) -> None:
        self.source = source  # as given, without a password
        self._places = places or (source,)  # the recordings of nodes, if it is one run of several
        self._reopen = reopen
        self._renew = renew or reopen  # copies from another machine what has changed
        self._settings = settings
        self._price = price
        self._scan_interval = scan_interval
        self._facts = reopen().facts
        self.process: subprocess.Popen[bytes] | None = None  # that `start` has started

    def __repr__(self) -> str:
        return f"<stepscope.analysis.Run {self.name} from {self.source}>"

    def _repr_html_(self) -> str:
        """Returns the verdict of the report, as a notebook shows it, with a link to the report."""
        said = verdict(self._evaluated.analysis, self._price)
        title = f"<b>{escape(said.status.icon)} {escape(self.name)}: {escape(said.sentence)}</b>"
        more = "".join(f"<p>{escape(sentence)}</p>" for sentence in said.sentences[1:])
        evidence = "".join(f"<li>{escape(line)}</li>" for line in said.evidence)
        page = os.path.join(self.source, PAGE)
        address = quote(os.fsencode(os.path.relpath(page)))
        link = f'<a href="{address}">The report</a>' if os.path.isfile(page) else ""
        return f"{title}{more}<ul>{evidence}</ul>{link}"

    @cached_property
    def plot(self) -> Plots:
        """Returns the charts of the run, which need Altair: `help(run.plot)` lists them."""
        return Plots(self)

    def refresh(self) -> Run:
        """Reads the run again: later results include what was recorded meanwhile. Returns the run."""
        for name in ("_evaluated", "_start"):
            self.__dict__.pop(name, None)
        self._facts = self._renew().facts
        return self

    def wait_for_data(self, kind: str = "samples", timeout: float = 600.0) -> Run:
        """Waits until the run has "samples" or "steps", and returns it, refreshed.

        Raises UserError if it ends without, or after `timeout` seconds.
        """
        if kind not in KINDS:
            raise UserError(f"wait_for_data({kind!r}): choose one of {', '.join(KINDS)}")
        until = time.monotonic() + timeout
        while True:
            source = self._renew()
            if any(isinstance(chunk, KINDS[kind]) and len(chunk) for chunk in source.read()):
                return self.refresh()
            if source.facts.end is not None or (self.process and not self._goes_on):
                why = " ".join(self.unknowns) or "the run's verdict says what was seen"
                raise UserError(f"{self.source}: has ended without {kind}; {why}")
            if time.monotonic() >= until:
                raise UserError(
                    f"{self.source}: has no {kind} after {timeout:g} s; wait longer with timeout="
                )
            time.sleep(LOOK_AGAIN)

    def wait_for_end(self, timeout: float = math.inf) -> Run:
        """Waits until nothing is recorded any more and the report is written. Returns the run, refreshed.

        Raises UserError after `timeout` seconds.
        """
        until = time.monotonic() + timeout
        while self._goes_on:
            if time.monotonic() >= until:
                raise UserError(f"{self.source}: goes on after {timeout:g} s; wait longer with timeout=")
            time.sleep(LOOK_AGAIN)
        return self.refresh()

    @property
    def _goes_on(self) -> bool:
        """Returns whether something records the run. The end of a killed one is never known."""
        if self.process is not None:
            return self.process.poll() is None
        if all(map(os.path.isdir, self._places)):
            return any(is_recording(Path(place)) for place in self._places)
        return self._renew().facts.end is None

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
    def finished(self) -> bool:
        """Returns whether the run has ended, as far as was read."""
        return self._facts.end is not None

    @property
    def interval(self) -> float:
        """Returns the seconds between samples."""
        return self._facts.interval

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

        what        samples, steps, ranks (their totals), gauges, or run (its command, start, end and status)
        node        empty for the whole run
        start, end  timestamp, UTC; null: unknown, or from the start or to the end of the run
        count       missing samples or steps; null: unknown
        reason      why it is missing"""
        return tables.listed(
            self._evaluated.analysis.gaps,
            tables.GAPS,
            start=lambda gap: tables.moment(gap.start),
            end=lambda gap: tables.moment(gap.end),
        )

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

    def at(
        self,
        time: float | None = None,
        *,
        step: int | None = None,
        phase: str | None = None,
        rank: int | None = None,
    ) -> Stretch:
        """Returns the part of the run at one time (seconds since its start), or of one step of all ranks.

        `phase` and `rank` choose the step; by default it is a training step of all ranks. If ranks were
        restarted, and so made it again, it is the last one.
        """
        if time is None:
            return self.between(steps=None if step is None else (step, step), phase=phase, rank=rank)
        if step is not None:
            raise UserError("at: give a time or a step, not both")
        return Stretch(self, time, time + self.interval)

    def between(
        self,
        times: tuple[float, float] | None = None,
        *,
        steps: tuple[int, int] | None = None,
        phase: str | None = None,
        rank: int | None = None,
    ) -> Stretch:
        """Returns the part between two times, or from one step to another one (both included), of all ranks.

        Its `samples()`, `steps()` and `joined()` are tables. Raises UserError if there is no such step.
        """
        if (times is None) == (steps is None):
            raise UserError("between: give times, or steps, as in between(steps=(100, 120))")
        if times is not None:
            return Stretch(self, *times)
        assert steps is not None
        if self._start is None:
            raise UserError(f"{self.source}: does not know when the run began; use steps()")
        chosen = moments.chosen_steps(self.steps(), steps, phase, rank)
        starts = chosen["elapsed_seconds"].to_numpy()
        end = float((starts + chosen["duration_seconds"].to_numpy()).max())
        return Stretch(self, float(starts.min()), end, chosen)

    def intervals(self) -> pa.Table:
        """Returns one row per rank and stretch of consecutive steps of one phase: an epoch, an evaluation.

        node, rank
        phase             train, eval, predict or global
        start             timestamp, UTC
        elapsed_seconds   from the run's start to the first step's start
        duration_seconds  from there to the last step's end
        steps             finished
        first, last       their numbers"""
        return moments.intervals(moments.steps_of_ranks(self.steps()), self._start)

    def step_statistics(self) -> pa.Table:
        """Returns one row per rank and phase of its recorded steps.

        node, rank, phase
        steps                                                     finished
        sum_seconds, mean_seconds
        deviation_seconds                                         standard deviation (population)
        min_seconds, p50_seconds, p95_seconds, p99_seconds, max_seconds"""
        return moments.statistics(moments.steps_of_ranks(self.steps()))

    def utilization_by_phase(self) -> pa.Table:
        """Returns one row per node and phase, the means of its samples: training against evaluation.

        node
        phase                     of the node's first rank, in the middle of what a sample measures
        samples
        cpu_utilization_ratio, cpu_io_wait_ratio, gpu_utilization_ratio, memory_used_ratio
        network_bytes_per_second, disk_bytes_per_second

        Nodes without steps have no row."""
        ranks = moments.steps_of_ranks(self.steps())
        return moments.by_phase(self.samples(), ranks, self.interval)

    def phases_while_gpu_low(self, below: float = 0.1) -> pa.Table:
        """Returns one row per GPU and phase, if the GPU was below this utilisation in some sample of it.

        node, gpu
        phase        of the node's first rank, as in `utilization_by_phase`
        samples      in which the GPU was low
        low_ratio    share of all samples in which the GPU was low
        phase_ratio  share of the phase's samples"""
        ranks = moments.steps_of_ranks(self.steps())
        names = ["time", "node", "gpu", "utilization_ratio"]
        return moments.while_low(self.samples("gpu", columns=names), ranks, self.interval, below)

    def utilization_ranges(self, device: Device = "gpu", edges: Sequence[float] = (0.1, 0.9)) -> pa.Table:
        """Returns one row per "gpu" or "cpu" and range of utilisation: by default idle, between, and busy.

        node, device
        from_ratio     utilisation, included
        to_ratio       excluded; 1 is included
        samples        in which the utilisation was in the range
        samples_ratio  share of the samples in which it was read"""
        if device not in ("gpu", "cpu"):
            raise UserError(f"utilization_ranges({device!r}): choose gpu or cpu")
        found = self.samples(device, columns=["node", device, "utilization_ratio"])
        return moments.ranges(found, device, edges)

    def lines(self) -> pa.Table:
        """Returns one row per sampled line of Python and where it was called, the most time first.

        node, rank        rank is null for a script without ranks
        role              of the process: training, loader worker, child, script
        phase, component  that the rank was in
        place, function   the line of your code, as file:line
        library           the function of a library that it called
        caller            the line that called the function
        seconds           by samples, of all processes of the role
        running_seconds   of these, on a core or waiting for one"""
        return tables.lines(self._evaluated.analysis.threads)

    def operators(self) -> pa.Table:
        """Returns one row per operator or kernel, the most time first: of traces, or of profile windows.

        node, rank
        device        cpu, or gpu0
        operator
        calls
        seconds       with the operators that it called
        self_seconds  without them; null: not known"""
        profile = self._evaluated.analysis.profile
        found = [each for device in profile.devices for each in device.operators] if profile else []
        return tables.timed(found or self._facts.operators, tables.OPERATORS)

    def events(self) -> pa.Table:
        """Returns one row per call of what is known call by call, in the order of their starts.

        These are the operators and kernels of traces and of profile windows, and all events of Debugger.

        node, rank
        device            cpu, or gpu0
        kind              operator, kernel, copy or collective; of Debugger its own
        name
        start             timestamp, UTC
        elapsed_seconds   from the run's start
        duration_seconds  with the operators that it called
        file              the kind of its file: trace; of Debugger python, model, horovod, ..."""
        return tables.events(self._reopen().events(), self._start)

    def functions(
        self, *, times: tuple[float, float] | None = None, steps: tuple[int, int] | None = None
    ) -> pa.Table:
        """Returns one row per Python function of each profile window: the columns of `operators`.

        `device` says which seconds they have: python, or those on a core, or off the cores. `primitive_calls`
        were not made while another call of the function was open.

        Only of the windows that have some of these steps (both included), or some time between two times
        in seconds since the run's start. Raises UserError for a window that cannot be read.
        """
        begin, end = (self._moment(time) for time in times or (None, None))
        found: list[FunctionTime] = []
        for window in self._reopen().python_windows():
            if isinstance(window, UserError):
                raise window
            has_steps = steps is None or (window.first <= steps[1] and window.last >= steps[0])
            is_over = begin is not None and window.start + window.step_seconds < begin
            is_later = end is not None and window.start > end
            if has_steps and not is_over and not is_later:
                found += window.functions
        return tables.timed(found, tables.FUNCTIONS)

    def windows(self) -> pa.Table:
        """Returns one row per profile window of a rank, in the order in which they began.

        node, rank
        kind           operators or python, what it recorded; null if it has no file
        first, last    its training steps; last is null if none has ended
        start          timestamp, UTC
        step_seconds   of its steps together
        pause_seconds  to start and stop the profiler, in no step
        state          written, open (or its process was killed), failed, skipped, removed or lost
        reason         why it is not as planned
        trace          its file, in the directory of the recording"""
        return tables.windows(self._aligned_facts.windows)

    def collectives(self) -> pa.Table:
        """Returns one row per rank and collective operation of a trace, the most time first.

        node, rank
        operation        allreduce, NEGOTIATE_ALLREDUCE, ...
        calls
        seconds          waits for other ranks included
        exposed_seconds  while nothing else ran on the device; null: not known"""
        return tables.timed(self._facts_once_read.collectives, tables.COLLECTIVES)

    def account(self) -> pa.Table:
        """Returns where the time went, one row per part; the parts sum to the wall time of all ranks.

        part          before_first_step, train, eval, ..., between_steps, after_last_step, unknown
        component     of steps, and of the start; `host` is what no timed one covers; "" if the part has none
        seconds       of all ranks
        run_ratio     share of the wall time of all ranks
        rank          the rank that spent most time here; null without ranks
        rank_seconds  its seconds"""
        account = self._evaluated.analysis.account
        return tables.listed(
            account.leaves if account is not None else (),
            tables.ACCOUNT,
            part=lambda leaf: leaf.key.part,
            component=lambda leaf: leaf.key.component,
            run_ratio=lambda leaf: leaf.share,
        )

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
        """Returns one row per rule, in the order of the report: findings come first, also those of no rule.

        rule            the rule's name, or the title of the finding
        status          its decision, in the words of the report
        seconds_lost    an estimate; 0 for rules that do not estimate it
        finding         one sentence with values, or why the rule could not judge
        recommendation  how to fix it
        question        that the rule answers
        triggered       scans in which the rule fired
        violations      as Debugger counts them
        datapoints      of which the violations are a part"""
        results = results_of(self._evaluated.analysis)
        return tables.listed(results, tables.FINDINGS, rule=attrgetter("name"))

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
        unit                     ratio, bytes/second or operations/second
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
        return pa.Table.from_pylist(list(self._evaluated.analysis.loaders), tables.LOADERS)

    def gauges(self) -> pa.Table:
        """Returns one row per change of a gauge of the training, such as its loss, at most one per second.

        node, rank       the lowest rank that publishes gauges
        name             loss, learning_rate, ...
        time             when the value was first seen (timestamp, UTC)
        elapsed_seconds  since the run's start
        value            as published, until the next row; NaN stays NaN

        A gauge has at most 4096 rows: in a long run, the last one of each period."""
        return tables.gauges(self._facts_once_read.gauges, self._start)

    def write_timeline(
        self,
        out: str | Path,
        start: float | None = None,
        end: float | None = None,
        kinds: Collection[str] = TIMELINE_KINDS,
        gpu_below: float | None = None,
    ) -> Path:
        """Writes what `stepscope timeline` writes, for ui.perfetto.dev, to the file `out` (.json.gz).

        `start` and `end` are in seconds since the run's start. `kinds` chooses among findings, steps, samples
        and operators. `gpu_below` (a ratio) adds a row per GPU with the times in which it was used less.
        Returns the path. Raises UserError for a run without dates, or a file that cannot be written.
        """
        if unknown := set(kinds) - set(TIMELINE_KINDS):
            raise UserError(f"kinds={sorted(unknown)}: choose from {', '.join(TIMELINE_KINDS)}")
        first, last = self._moment(start), self._moment(end)
        between = (-math.inf if first is None else first, math.inf if last is None else last)
        chosen = Chosen(between, kinds, gpu_below)
        write_timeline_file(Path(out), self._evaluated.analysis, self._reopen(), chosen)
        return Path(out)

    def compare(self, other: Run) -> pa.Table:
        """Returns one row per figure of `stepscope compare`; this run is A, `other` is B.

        figure             the key in --fail-if: step_mean, duration, gpu_p95, ...
        name               in words
        unit               of a and b: seconds, ratio, bytes/second, dollars, joules, steps/second, ...
        a, b               values of this run and of `other`
        change_ratio       (b - a) / a; b - a if the unit is ratio
        change_low_ratio   for step times: bounds of the 95 % confidence interval;
        change_high_ratio  an interval that includes 0 shows no difference"""
        return tables.figures(compare(self._evaluated, other._evaluated).figures.values())

    @cached_property
    def _evaluated(self) -> ComparedRun:
        source = self._reopen()
        found = read_run(self.source, source, self._price, self._settings, self._scan_interval)
        self._facts = source.facts
        return found

    @cached_property
    def _start(self) -> float | None:
        """Returns seconds since the epoch. Some sources know it only once they have been read."""
        known = self._aligned_facts.start
        return known if known is not None else self._evaluated.analysis.start

    @property
    def _aligned_facts(self) -> RunFacts:
        """Returns the facts with the times of all nodes on one clock, which shows in their steps."""
        several = len(self._facts.nodes) > 1 and len({rank.node for rank in self._facts.ranks}) != 1
        return self._facts_once_read if several else self._facts

    @property
    def _facts_once_read(self) -> RunFacts:
        """Returns the facts as they are once the source was read: some sources know them only then."""
        _ = self._evaluated  # it replaces the facts
        return self._facts

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


def _check_price(price: float | None) -> None:
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"price={price:g}: is not a price; give the dollars per hour of a node, as in 14.688")


def _words(parameters: Mapping[str, Value]) -> list[str]:
    """Returns parameters as --set has them."""
    return [f"{name}={'none' if value is None else value}" for name, value in parameters.items()]


def _settings(parameters: Mapping[str, Value]) -> Settings:
    try:
        return Settings.parse(_words(parameters))
    except UserError as error:
        raise UserError(str(error).removeprefix("--set ")) from None
