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
from stepscope.exporter.sampling.families import FamilyTable, LabelValues, flat
from stepscope.exporter.sampling.sample import Sample
from stepscope.training.layout import FETCH_BOUNDS, FLOPS, STEP_BOUNDS, WAIT_BOUNDS

LOADERS = ("workers", "pin_memory", "prefetch_factor", "batch_size", "queue_depth")  # fields of LoaderTotals
# Families of numbers by name, with the attribute of RankTotals.
BY_NAME = {
    "step_duration_squared_seconds_total": "squared_seconds",
    "phase_seconds_total": "phase_seconds",
    "step_component_seconds_total": "component_seconds",
    "step_component_device_seconds_total": "device_seconds",
    "account_seconds_total": "spent",
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
        self.families = tuple(self._families.values())

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
        self._families["run_ended_info"].publish(dict.fromkeys(self._endings(runs).items(), 1))
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
        except Exception as error:  # noqa: BLE001 - whatever no check foresaw: a ledger costs only itself
            raise_if_exhausted(error)
            unforeseen = LedgerError(ledger.reader.path, "unreadable", describe(error))
            self.folder.refuse(ledger, error if isinstance(error, LedgerError) else unforeseen)
            return
        if ledger.header.run != ledger.key.run:
            self.folder.rename(ledger)
            return
        self._lost += lost
        if records:
            self.folder.runs[ledger.key].mark(ledger.header.rank, records)
            if self.keep_steps:
                self._steps.append((self._header(ledger), records))


METRICS = """
info stepscope_run_info{run,name,user,attempt,framework,framework_version,
                        world_size,scheduler,scheduler_job,namespace,pod}
    Name, user, framework, size and scheduler of the run; attempt: restarts by its launcher so far.
gauge stepscope_run_launch_unknown{run}
    1: the nodes of the run share no unique text, so another launch of it looks like the same run.
gauge stepscope_run_start_time_seconds{run}
    Start of the run, since the epoch.
gauge stepscope_run_first_step_time_seconds{run}
    Start of the first step, since the epoch.
gauge stepscope_run_last_step_time_seconds{run}
    End of the last step so far, since the epoch.
gauge stepscope_run_end_time_seconds{run}
    End of the last training process, since the epoch.
info stepscope_run_ended_info{run,reason}
    How the run ended: finished, exit status N, signal NAME, out of memory, or unknown.
info stepscope_run_exception_info{run,rank,type,place}
    The exception that ended a rank of a run that has ended: of the rank that ended first.
gauge stepscope_run_age_seconds{run}
    Time since the run's start, while a process of it lives.
gauge stepscope_run_last_step_age_seconds{run}
    Time since a living process of the run last finished a step.
gauge stepscope_phase_age_seconds{run,rank,phase}
    Time that a living rank has spent in its present phase, without a phase ending.
gauge stepscope_run_world_size{run}
    Ranks of the run, on all nodes.
gauge stepscope_rank_component_age_seconds{run,rank,component,operation}
    Time that a living rank has spent in its component, from 10 s on; host: in no component.
gauge stepscope_rank_process_state{run,rank,state}
    1: the rank's process is running (or gets on), waiting, at a prompt, stopped, dead, or has ended.
histogram stepscope_step_duration_seconds{run,rank,phase}
    Duration of steps.
counter stepscope_step_duration_squared_seconds_total{run,rank,phase}
    Sum of the squares of step durations, for their standard deviation.
unknown stepscope_step_duration_bound_seconds{le}
    The bounds of step_duration_seconds as values, so that PromQL can compare with them.
counter stepscope_phase_seconds_total{run,rank,phase}
    Time in steps of each phase, between them (other), before (initialization) and after (finalization).
counter stepscope_step_component_seconds_total{run,rank,component}
    Host time in each component.
counter stepscope_step_component_device_seconds_total{run,rank,component}
    Device time in each component.
counter stepscope_account_seconds_total{run,rank,part}
    Time of the rank's processes by part, as it passes. The parts sum to their wall time: before the
    first step, each component of each phase (host: in none), and between steps.
counter stepscope_step_own_seconds_total{run,rank}
    Time in training steps without communication, in which ranks wait for each other.
counter stepscope_step_own_squared_seconds_total{run,rank}
    Sum of the squares of these times, step by step, for their standard error.
counter stepscope_operator_seconds_total{run,rank,device,operator}
    Time of operators in profile windows, without their calls: 20 per device, and other.
histogram stepscope_dataloader_wait_seconds{run,rank}
    Waits for a batch.
histogram stepscope_dataloader_fetch_seconds{run,rank}
    Fetches of data-loading workers.
gauge stepscope_dataloader_workers{run,rank,phase}
    Data-loading workers.
gauge stepscope_dataloader_pin_memory{run,rank,phase}
    Whether batches are put in pinned memory.
gauge stepscope_dataloader_prefetch_factor{run,rank,phase}
    Batches that each worker prepares ahead.
gauge stepscope_dataloader_batch_size{run,rank,phase}
    Items per batch of this rank.
gauge stepscope_dataloader_queue_depth{run,rank,phase}
    Batches that were ready when training took the last batch.
gauge stepscope_run_gauge{run,rank,name}
    Numbers that the training script or its framework publishes, such as its loss.
counter stepscope_run_counted_total{run,rank,name}
    Totals that the training script counts, such as its tokens, samples and flops, or the latter by a
    profile window.
counter stepscope_ledgers_refused_total{reason}
    Ledgers that were refused, by reason; the log names the files.
counter stepscope_ledger_records_lost_total
    Step records that were overwritten before this exporter read them; their totals are not lost.
"""
# `unknown`, because a gauge may not have the label `le`, on which PromQL joins it.
OF_STEP_BOUNDS: dict[LabelValues, float] = {(number(bound),): bound for bound in STEP_BOUNDS}


class Families(FamilyTable):
    """The metric families of runs, steps, components and data loading (design: "Metrics")."""

    def __init__(self) -> None:
        loading = {"dataloader_wait_seconds": WAIT_BOUNDS, "dataloader_fetch_seconds": FETCH_BOUNDS}
        super().__init__(METRICS, {"step_duration_seconds": STEP_BOUNDS, **loading})

    def publish(self, runs: Mapping[str, Run], now: float, lost: int, refused: Mapping[str, int]) -> None:
        """Publishes all runs. A family has no sample of a run without data for it.

        `now` is the exporter's monotonic time: ages do not depend on any wall clock.
        """
        self["ledgers_refused_total"].publish({(reason,): count for reason, count in refused.items()})
        self["ledger_records_lost_total"].publish({(): lost})
        self._publish_runs(runs)
        self._publish_present(runs, now)
        ranks: dict[LabelValues, tuple[RankTotals, Run, int]] = {
            (name, str(rank)): (totals, run, rank)
            for name, run in runs.items()
            for rank, totals in run.ranks().items()
        }
        totals = {key: entry[0] for key, entry in ranks.items()}
        self["step_duration_seconds"].publish_histograms(
            {
                (*key, phase): histogram.value(run.exemplars(rank, phase))
                for key, (total, run, rank) in ranks.items()
                for phase, histogram in total.steps.items()
            }
        )
        for name, attribute in BY_NAME.items():
            self[name].publish(flat({key: getattr(total, attribute) for key, total in totals.items()}))
        self["run_counted_total"].publish(flat({key: _counts(*entry) for key, entry in ranks.items()}))
        own = {key: total for key, total in totals.items() if "train" in total.steps}
        own = {key: total for key, total in own.items() if not isnan(total.own_seconds)}
        self["step_own_seconds_total"].publish({key: total.own_seconds for key, total in own.items()})
        squares = {key: total.own_squared_seconds for key, total in own.items()}
        self["step_own_squared_seconds_total"].publish(squares)
        operators: dict[LabelValues, dict[str, float]] = {
            (name, str(rank), device): operators.values()
            for name, run in runs.items()
            for (rank, device), operators in run.operators.items()
        }
        self["operator_seconds_total"].publish(flat(operators))
        bounds = OF_STEP_BOUNDS if any(total.steps for total in totals.values()) else {}
        self["step_duration_bound_seconds"].publish(bounds)
        waits = {key: total.waits.value() for key, total in totals.items() if total.waits is not None}
        self["dataloader_wait_seconds"].publish_histograms(waits)
        fetches = {key: total.fetches.value() for key, total in totals.items() if any(total.fetches.counts)}
        self["dataloader_fetch_seconds"].publish_histograms(fetches)

    def _publish_runs(self, runs: Mapping[str, Run]) -> None:
        info = self["run_info"]
        info.publish({_info_labels(info.labels, name, run): 1 for name, run in runs.items()})
        sizes = {name: max(each.header.world_size for each in run.ledgers) for name, run in runs.items()}
        self._publish_known("run_world_size", sizes)
        unknown = {name: None if run.launch_known() else 1 for name, run in runs.items()}
        self._publish_known("run_launch_unknown", unknown)
        times = {name: run.times() for name, run in runs.items()}
        for place, moment in enumerate(("start", "first_step", "last_step")):
            self._publish_known(
                f"run_{moment}_time_seconds", {run: each[place] for run, each in times.items()}
            )
        ended = {name: run.end() for name, run in runs.items()}
        self._publish_known("run_end_time_seconds", ended)
        raised = {run: runs[run].exception() for run, end in ended.items() if end is not None}
        self["run_exception_info"].publish(
            {(run, str(each[0]), *each[1:]): 1 for run, each in raised.items() if each is not None}
        )

    def _publish_known(self, name: str, values: Mapping[str, float | None]) -> None:
        """Publishes a number of each run that has it."""
        self[name].publish({(run,): value for run, value in values.items() if value is not None})

    def _publish_present(self, runs: Mapping[str, Run], now: float) -> None:
        """Publishes what living processes do, and for how long."""
        began = {name: moment for name, run in runs.items() if (moment := run.began()) is not None}
        steps = {name: moment for name, run in runs.items() if (moment := run.last_step()) is not None}
        self["run_age_seconds"].publish({(run,): now - moment for run, moment in began.items()})
        self["run_last_step_age_seconds"].publish({(run,): now - moment for run, moment in steps.items()})
        living: dict[LabelValues, Ledger] = {
            (name, str(rank)): ledger
            for name, run in runs.items()
            for rank, ledger in run.newest().items()
            if ledger.alive
        }
        phases = {(*key, each.ages.phase): now - each.ages.phase_began for key, each in living.items()}
        self["phase_age_seconds"].publish(phases)
        presences: dict[LabelValues, Presence] = {
            (name, str(rank)): each for name, run in runs.items() for rank, each in run.presences().items()
        }
        self["rank_component_age_seconds"].publish(
            {
                (*key, each.place.component, each.place.operation): each.seconds
                for key, each in presences.items()
                if each.place is not None
            }
        )
        states = {(*key, each.state): 1 for key, each in presences.items() if each.state}
        self["rank_process_state"].publish(states)
        loaders = {
            (*key, each.phase): each for key, ledger in living.items() for each in ledger.totals.loaders
        }
        for setting in LOADERS:
            values = {key: getattr(loader, setting) for key, loader in loaders.items()}
            known = {key: int(value) for key, value in values.items() if value is not None}
            self[f"dataloader_{setting}"].publish(known)
        self["run_gauge"].publish(flat({key: ledger.totals.gauges for key, ledger in living.items()}))


def _counts(totals: RankTotals, run: Run, rank: int) -> dict[str, float]:
    """Returns what the rank's script counts, with the operations that a window measured if it counts none."""
    per_step, steps = run.flops_per_step.get(rank), totals.steps.get("train")
    measured = {} if per_step is None or steps is None else {FLOPS: per_step * sum(steps.counts)}
    return measured | totals.counts


def _info_labels(names: Sequence[str], label: str, run: Run) -> LabelValues:
    """Returns the values of the labels of stepscope_run_info, by their names."""
    newest = max(run.ledgers, key=lambda each: (bool(each.header.framework), each.header.start))
    attempts = max(ledger.header.attempt for ledger in run.ledgers)
    known = {"run": label, "user": user_name(newest.key.owner), "attempt": attempts}
    return tuple(str(known[name] if name in known else getattr(newest.header, name)) for name in names)
