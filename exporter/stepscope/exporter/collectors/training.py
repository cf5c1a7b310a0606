"""Steps, their components and data loading of the training processes, from the ledgers of --ledger-dir."""

import os
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

from stepscope.common.durations import parse_duration
from stepscope.common.errors import describe, raise_if_exhausted
from stepscope.common.users import user_name
from stepscope.exporter.ledgers.ages import Now
from stepscope.exporter.ledgers.folder import PATIENCE_SECONDS, LedgerFolder, add_ledger_dir
from stepscope.exporter.ledgers.note import LedgerNote
from stepscope.exporter.ledgers.operators import WindowOperators
from stepscope.exporter.ledgers.presence import UNSAID, Presence, ending, main_thread_state, observed
from stepscope.exporter.ledgers.reader import (
    LedgerError,
    LedgerHeader,
    LedgerReader,
    LedgerTotals,
    StepRecord,
)
from stepscope.exporter.ledgers.run_processes import Command, RunProcesses
from stepscope.exporter.ledgers.run_totals import Ledger, RankTotals, Run
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.exposition import number
from stepscope.exporter.sampling.families import Family, Kind, LabelValues, flat
from stepscope.exporter.sampling.sample import Sample
from stepscope.training.layout import FETCH_BOUNDS, FLOPS, STEP_BOUNDS, WAIT_BOUNDS

LOADERS = {  # by the field of LoaderTotals
    "workers": "Data-loading workers.",
    "pin_memory": "Whether batches are put in pinned memory.",
    "prefetch_factor": "Batches that each worker prepares ahead.",
    "batch_size": "Items per batch of this rank.",
    "queue_depth": "Batches that were ready when training took the last batch.",
}


@collector
class TrainingCollector(Collector):
    """Publishes the counters of every ledger in a directory, summed over all processes of a rank.

    The ledger of a dead process stays for `retention` seconds, so that Prometheus sees its last totals.
    Then its file is removed, but the rank's totals keep its counts as long as the run has other ledgers. So
    the totals never fall when a rank is restarted.
    """

    name = "training"
    settings = ("ledger_dir", "ledger_retention", "path_procfs", "command")

    def __init__(
        self,
        directory: Path,
        retention: float = 300.0,
        procfs: Path = Path("/proc"),
        command: Command | None = None,
        open_ledger: Callable[[Path], LedgerReader] = LedgerReader,
        state: Callable[[Ledger], str] | None = None,
    ) -> None:
        self._now = 0.0  # on the monotonic clock, at the last sample
        self._state = state or (lambda ledger: main_thread_state(procfs, ledger.pid))
        self._command = command
        self._processes = RunProcesses(procfs, lambda: self._now, command)
        self.folder = LedgerFolder(directory, retention, open_ledger)
        self._operators = WindowOperators()
        self.observed_run: str | None = None  # that was named by a flag; it may have no ledger
        self.keep_steps = False  # whether step records are kept for `take_steps`
        self._steps: deque[tuple[LedgerHeader, list[StepRecord]]] = deque()
        self._lost = 0
        # As of the last tick: a sink may ask while a slow look is still at work.
        self.active_runs: Set[str] = frozenset()  # with a process that held its ledger
        self.owners: Mapping[str, int] = {}  # the user of each run
        self.ranks: Sequence[tuple[LedgerHeader, LedgerTotals, bool]] = ()  # whether alive
        self.presences: Sequence[Presence] = ()  # of `ranks`
        self.looked = 0.0  # when that was, in seconds since the epoch
        self._families = Families()
        self.families = self._families.all

    def remember_in(self, directory: Path) -> None:
        """Keeps the totals of removed ledgers in a file of this directory, over a restart of the exporter."""
        self.folder.note = LedgerNote(directory)

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        add_ledger_dir(parser)
        parser.add_argument(
            "--ledger-retention",
            type=parse_duration,
            default="5m",
            metavar="DURATION",
            help="how long the ledger of a dead process is kept (default: %(default)s)",
        )

    @property
    def ledgers(self) -> Sequence[Ledger]:
        return self.folder.ledgers

    def collect(self, sample: Sample) -> None:
        self._look(sample.time)
        now, self._now = Now(sample.time, sample.monotonic), sample.monotonic
        for place, ledger in enumerate(list(self.ledgers)):
            self._read(ledger, now)
            if not ledger.alive or place >= self.folder.descriptors:
                ledger.reader.close()
        self.apart.each(
            "dead ledgers in {}".format, [self.folder.path], lambda _: self.folder.tidy(now.monotonic)
        )
        self.apart.each(
            "operators of {}".format,
            ["profile windows"],
            lambda _: self._operators.look(self.folder.runs.values(), now.monotonic),
        )
        for limit, left_out in self.folder.left_out().items():
            self.reached.report(limit, left_out)
        self.owners = {label: key.owner for key, label in self.folder.labels.items()}
        if self._command:  # finds the label on which the nodes of its run have agreed
            self.observed_run = observed(self._command.run, self.folder.labels.values())
            self._command = self._processes.command = self._command._replace(run=self.observed_run)
        runs = {label: self.folder.runs[key] for key, label in sorted(self.folder.labels.items())}
        self.apart.together(self._named, runs, partial(self._tell, sample, now))

    def _named(self, run: str) -> str:
        return f"run {run} of user {self.owners[run]}"

    def _look(self, now: float) -> None:
        """Looks for new ledgers. An error costs only those, if there are others to read."""
        try:
            self.folder.look(now, self.reached.limits)
        except Exception as error:
            if not self.ledgers:
                raise
            self.apart.leave_out(f"new ledgers in {self.folder.path}", error)

    def _tell(self, sample: Sample, now: Now, runs: Mapping[str, Run]) -> None:
        """Says what is known of these runs: in the families, in the sample, and to the recording."""
        ledgers = [ledger for run in runs.values() for ledger in run.ledgers]
        self.active_runs = frozenset(
            label for label, run in runs.items() if any(x.alive for x in run.ledgers)
        )
        sample.runs = self._processes.of(ledgers, self.folder.labels)
        for ledger in ledgers:
            ledger.look(now.monotonic, self._state)
        if self.keep_steps:
            self.ranks = [(self._header(each), each.totals, each.alive) for each in ledgers]
            self.presences, self.looked = [each.presence for each in ledgers], now.wall
        self._families.ended.publish(dict.fromkeys(self._endings(runs).items(), 1))
        self._families.publish(runs, now.monotonic, self._lost, self.folder.refused)

    def _endings(self, runs: Mapping[str, Run]) -> dict[str, str]:
        """Returns how runs ended, by label."""
        directory = self.folder.path
        ended = {
            label: ending(directory, key.run, key.owner)
            for key, label in self.folder.labels.items()
            if label in runs and runs[label].end() is not None
        }
        if self.observed_run is not None and self.observed_run not in self.folder.labels.values():
            reason = ending(directory, self.observed_run, os.geteuid())
            if reason != UNSAID:
                ended[self.observed_run] = reason
        if self._command and ended.get(self._command.run) == UNSAID:  # `stepscope run` is about to say it
            del ended[self._command.run]
        return ended

    def _header(self, ledger: Ledger) -> LedgerHeader:
        """Returns the ledger's header with the run's label, see LedgerFolder."""
        return replace(ledger.header, run=self.folder.labels[ledger.key])

    def take_steps(self) -> list[tuple[LedgerHeader, list[StepRecord]]]:
        """Returns the steps that finished since the last call, by ledger; needs `keep_steps`."""
        return [self._steps.popleft() for _ in range(len(self._steps))]

    def close(self) -> None:
        self._operators.close()
        self.folder.close()

    def _read(self, ledger: Ledger, now: Now) -> None:
        if ledger.died is not None:  # its last totals have been read
            return
        try:
            records, lost = ledger.read(now)
        except FileNotFoundError:  # removed while no descriptor was open
            ledger.end_at(now)
            return
        except OSError as error:
            # Too many open files, no memory: it may pass, but nothing stale is published.
            ledger.failing_since = ledger.failing_since or now.monotonic
            if now.monotonic - ledger.failing_since > PATIENCE_SECONDS:
                self.folder.refuse(ledger, error)
            return
        except LedgerError as error:
            self.folder.refuse(ledger, error)
            return
        except Exception as error:  # noqa: BLE001 - whatever no check foresaw: a ledger costs only itself
            raise_if_exhausted(error)
            self.folder.refuse(ledger, LedgerError(ledger.reader.path, "unreadable", describe(error)))
            return
        if ledger.header.run != ledger.key.run:
            self.folder.rename(ledger)
            return
        self._lost += lost
        if records:
            self.folder.runs[ledger.key].mark(ledger.header.rank, records)
            if self.keep_steps:
                self._steps.append((self._header(ledger), records))


class Families:
    """The metric families of runs, steps, components and data loading (design: "Metrics")."""

    def __init__(self) -> None:
        self.all: list[Family] = []
        gauge, counter = partial(self._add, "gauge"), partial(self._add, "counter")
        histogram = partial(self._add, "histogram")
        run, rank, phase = ("run",), ("run", "rank"), ("run", "rank", "phase")
        component = ("run", "rank", "component")
        self.info = self._add(
            "info",
            "run_info",
            "Name, user, framework, size and scheduler of the run; attempt: restarts by its launcher so far.",
            RUN_INFO,
        )
        self.launch_unknown = gauge(
            "run_launch_unknown",
            "1: the nodes of the run share no unique text, so another launch of it looks like the same run.",
            run,
        )
        self.start = gauge("run_start_time_seconds", "Start of the run, since the epoch.", run)
        self.first_step = gauge(
            "run_first_step_time_seconds", "Start of the first step, since the epoch.", run
        )
        self.last_step = gauge(
            "run_last_step_time_seconds", "End of the last step so far, since the epoch.", run
        )
        self.end = gauge("run_end_time_seconds", "End of the last training process, since the epoch.", run)
        self.ended = self._add(
            "info",
            "run_ended_info",
            "How the run ended: finished, exit status N, signal NAME, out of memory, or unknown.",
            ("run", "reason"),
        )
        self.exception = self._add(
            "info",
            "run_exception_info",
            "The exception that ended a rank of a run that has ended: of the rank that ended first.",
            ("run", "rank", "type", "place"),
        )
        self.age = gauge("run_age_seconds", "Time since the run's start, while a process of it lives.", run)
        self.last_step_age = gauge(
            "run_last_step_age_seconds", "Time since a living process of the run last finished a step.", run
        )
        self.phase_age = gauge(
            "phase_age_seconds",
            "Time that a living rank has spent in its present phase, without a phase ending.",
            phase,
        )
        self.world_size = gauge("run_world_size", "Ranks of the run, on all nodes.", run)
        self.component_age = gauge(
            "rank_component_age_seconds",
            "Time that a living rank has spent in its component, from 10 s on; host: in no component.",
            (*component, "operation"),
        )
        self.process_state = gauge(
            "rank_process_state",
            "1: the rank's process is running (or gets on), waiting, stopped, dead, or has ended.",
            ("run", "rank", "state"),
        )
        self.steps = histogram("step_duration_seconds", "Duration of steps.", phase, STEP_BOUNDS)
        self.squared = counter(
            "step_duration_squared_seconds_total",
            "Sum of the squares of step durations, for their standard deviation.",
            phase,
        )
        # `unknown`, because a gauge may not have the label `le`, on which PromQL joins it.
        self.bounds = self._add(
            "unknown",
            "step_duration_bound_seconds",
            "The bounds of step_duration_seconds as values, so that PromQL can compare with them.",
            ("le",),
        )
        self.phase = counter(
            "phase_seconds_total",
            "Time in steps of each phase, between them (other), before (initialization) and after"
            " (finalization).",
            phase,
        )
        self.component = counter("step_component_seconds_total", "Host time in each component.", component)
        self.device = counter(
            "step_component_device_seconds_total", "Device time in each component.", component
        )
        self.account = counter(
            "account_seconds_total",
            "Time of the rank's processes by part, as it passes. The parts sum to their wall time: before the"
            " first step, each component of each phase (host: in none), and between steps.",
            ("run", "rank", "part"),
        )
        self.own = counter(
            "step_own_seconds_total",
            "Time in training steps without communication, in which ranks wait for each other.",
            rank,
        )
        self.own_squared = counter(
            "step_own_squared_seconds_total",
            "Sum of the squares of these times, step by step, for their standard error.",
            rank,
        )
        self.operators = counter(
            "operator_seconds_total",
            "Time of operators in profile windows, without their calls: 20 per device, and other.",
            ("run", "rank", "device", "operator"),
        )
        self.wait = histogram("dataloader_wait_seconds", "Waits for a batch.", rank, WAIT_BOUNDS)
        self.fetch = histogram(
            "dataloader_fetch_seconds", "Fetches of data-loading workers.", rank, FETCH_BOUNDS
        )
        self.loaders = {name: gauge(f"dataloader_{name}", text, phase) for name, text in LOADERS.items()}
        self.gauge = gauge(
            "run_gauge",
            "Numbers that the training script or its framework publishes, such as its loss.",
            ("run", "rank", "name"),
        )
        self.counted = counter(
            "run_counted_total",
            "Totals that the training script counts, such as its tokens, samples and flops, or the latter by "
            "a profile window.",
            ("run", "rank", "name"),
        )
        self.refused = counter(
            "ledgers_refused_total",
            "Ledgers that were refused, by reason; the log names the files.",
            ("reason",),
        )
        self.lost = counter(
            "ledger_records_lost_total",
            "Step records that were overwritten before this exporter read them; their totals are not lost.",
        )

    def publish(self, runs: Mapping[str, Run], now: float, lost: int, refused: Mapping[str, int]) -> None:
        """Publishes all runs. A family has no sample of a run without data for it.

        `now` is the exporter's monotonic time: ages do not depend on any wall clock.
        """
        self.refused.publish({(reason,): count for reason, count in refused.items()})
        self._publish_runs(runs)
        self._publish_ages(runs, now)
        ranks = {
            (run, str(rank)): (totals, runs[run], rank)
            for run in runs
            for rank, totals in runs[run].ranks().items()
        }
        totals = {key: entry[0] for key, entry in ranks.items()}
        self.steps.publish_histograms(
            {
                (*key, phase): histogram.value(run.exemplars(rank, phase))
                for key, (total, run, rank) in ranks.items()
                for phase, histogram in total.steps.items()
            }
        )
        self.squared.publish(flat({key: total.squared_seconds for key, total in totals.items()}))
        self.phase.publish(flat({key: total.phase_seconds for key, total in totals.items()}))
        self.component.publish(flat({key: total.component_seconds for key, total in totals.items()}))
        self.device.publish(flat({key: total.device_seconds for key, total in totals.items()}))
        self.account.publish(flat({key: total.spent for key, total in totals.items()}))
        self.counted.publish(flat({key: _counts(*entry) for key, entry in ranks.items()}))
        own = {key: total for key, total in totals.items() if "train" in total.steps}
        own = {key: total for key, total in own.items() if not isnan(total.own_seconds)}
        self.own.publish({key: total.own_seconds for key, total in own.items()})
        self.own_squared.publish({key: total.own_squared_seconds for key, total in own.items()})
        self.operators.publish(
            {
                (run, str(rank), device, operator): seconds
                for run in runs
                for (rank, device), operators in runs[run].operators.items()
                for operator, seconds in operators.values().items()
            }
        )
        self.bounds.publish(_BOUND_SAMPLES if any(total.steps for total in totals.values()) else {})
        self.wait.publish_histograms(
            {key: total.waits.value() for key, total in totals.items() if total.waits is not None}
        )
        self.fetch.publish_histograms(
            {key: total.fetches.value() for key, total in totals.items() if any(total.fetches.counts)}
        )
        self._publish_present(runs)
        self.lost.publish({(): lost})

    def _publish_runs(self, runs: Mapping[str, Run]) -> None:
        times = {run: runs[run].times() for run in runs}
        self.info.publish({_info_labels(run, runs[run]): 1 for run in runs})
        self.world_size.publish(
            {(run,): max(each.header.world_size for each in runs[run].ledgers) for run in runs}
        )
        self.launch_unknown.publish({(run,): 1 for run in runs if not runs[run].launch_known()})
        self.start.publish({(run,): start for run, (start, _, _) in times.items()})
        self.first_step.publish({(run,): first for run, (_, first, _) in times.items() if first is not None})
        self.last_step.publish({(run,): last for run, (_, _, last) in times.items() if last is not None})
        ended = {run: end for run in runs if (end := runs[run].end()) is not None}
        self.end.publish({(run,): end for run, end in ended.items()})
        raised = {run: runs[run].exception() for run in ended}
        self.exception.publish(
            {(run, str(each[0]), *each[1:]): 1 for run, each in raised.items() if each is not None}
        )

    def _publish_ages(self, runs: Mapping[str, Run], now: float) -> None:
        began = {run: runs[run].began() for run in runs}
        self.age.publish({(run,): now - start for run, start in began.items() if start is not None})
        steps = {run: runs[run].last_step() for run in runs}
        self.last_step_age.publish({(run,): now - step for run, step in steps.items() if step is not None})
        self.phase_age.publish(
            {
                (run, str(rank), ledger.ages.phase): now - ledger.ages.phase_began
                for run in runs
                for rank, ledger in runs[run].newest().items()
                if ledger.alive
            }
        )
        presences = {(run, str(rank)): found for run in runs for rank, found in runs[run].presences().items()}
        self.component_age.publish(
            {
                (*key, found.place.component, found.place.operation): found.seconds
                for key, found in presences.items()
                if found.place is not None
            }
        )
        self.process_state.publish(
            {(*key, found.state): 1 for key, found in presences.items() if found.state}
        )

    def _publish_present(self, runs: Mapping[str, Run]) -> None:
        loaders = {
            (run, str(rank), loader.phase): loader
            for run in runs
            for rank, ledger in runs[run].newest().items()
            if ledger.alive
            for loader in ledger.totals.loaders
        }
        for setting, family in self.loaders.items():
            values = {key: getattr(loader, setting) for key, loader in loaders.items()}
            family.publish({key: int(value) for key, value in values.items() if value is not None})
        self.gauge.publish(
            {
                (run, str(rank), name): value
                for run in runs
                for rank, ledger in runs[run].newest().items()
                if ledger.alive
                for name, value in ledger.totals.gauges.items()
            }
        )

    def _add(
        self,
        kind: Kind,
        name: str,
        help: str,
        labels: tuple[str, ...] = (),
        bounds: Sequence[float] = (),
    ) -> Family:
        family = Family(f"stepscope_{name}", kind, help, labels, bounds)
        self.all.append(family)
        return family


def _counts(totals: RankTotals, run: Run, rank: int) -> dict[str, float]:
    """Returns what the rank's script counts, with the operations that a window measured if it counts none."""
    per_step, steps = run.flops_per_step.get(rank), totals.steps.get("train")
    measured = {} if per_step is None or steps is None else {FLOPS: per_step * sum(steps.counts)}
    return measured | totals.counts


RUN_INFO = (
    "run",
    "name",
    "user",
    "attempt",
    "framework",
    "framework_version",
    "world_size",
    "scheduler",
    "scheduler_job",
    "namespace",
    "pod",
)


def _info_labels(label: str, run: Run) -> LabelValues:
    """Returns the values of RUN_INFO."""
    newest = max(run.ledgers, key=lambda each: (bool(each.header.framework), each.header.start))
    header = newest.header
    return (
        label,
        header.name,
        user_name(newest.key.owner),
        str(max(ledger.header.attempt for ledger in run.ledgers)),
        header.framework,
        header.framework_version,
        str(header.world_size),
        header.scheduler,
        header.scheduler_job,
        header.namespace,
        header.pod,
    )


_BOUND_SAMPLES: dict[LabelValues, float] = {(number(bound),): bound for bound in STEP_BOUNDS}
