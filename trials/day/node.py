"""What the exporter of a node shows at each scrape."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan
from time import gmtime, strftime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from stepscope.exporter.collectors import discover
from stepscope.exporter.ledgers.presence import LASTING_SECONDS, PROMPT, RUNNING, STOPPED, WAITING
from stepscope.exporter.sampling.exposition import number
from stepscope.exporter.sampling.profiles import LEAN
from stepscope.exporter.sampling.sample_tally import BOUNDS
from stepscope.training.layout import STEP_BOUNDS

from trials.day.activity import IDLE_MEMORY, TICK, Activity, Floats, Integers, State, Steps, spans
from trials.day.jobs import CORES_PER_GPU, GPUS, MINUTE, Day, Job
from trials.day.rules import Reads
from trials.shared_cluster.plan import START

AT_PROMPT = ("lunch",)  # faults during which a process waits for its user
RETENTION = 5 * MINUTE  # of what an exporter shows of a run that has ended
DOWN = 4.0  # seconds for which a restarted exporter is gone
MEMORY_BYTES = 80 * 2**30
HOST_BYTES = 2**40
HOT_CORE, HOT_IO, IDLE_LOAD = "0.9", "0.5", "0.1"  # the thresholds of the default rules


@dataclass
class Scraped:
    """A series: `values` at the scrapes from number `first` on; NaN where it is absent."""

    labels: dict[str, str]  # with `__name__`
    first: int
    values: Floats


@dataclass
class ScrapedNode:
    """The series of a node, and when it was scraped: milliseconds since the epoch."""

    times: Integers
    failed: NDArray[np.bool_]
    series: list[Scraped]


def scraped(day: Day, number: int, read: Reads) -> ScrapedNode:
    """Returns the series of a node that the rules read."""
    return _Exporter(day, number, read).scraped()


class _Add(Protocol):
    """Adds a series of a job, with values at its scrapes."""

    def __call__(
        self, metric: str, values: Floats | float, where: NDArray[np.bool_] | None = None, /, **labels: str
    ) -> None: ...


@dataclass
class _Use:
    """A job's use of this node: its own numbers of the GPUs, and the node's."""

    activity: Activity
    first_rank: int
    gpus: Sequence[int]
    loads: list[Floats]
    memories: list[Floats]

    @property
    def job(self) -> Job:
        return self.activity.job


class _Exporter:
    """Simulates the exporter of a node. Times are seconds since the start of the day."""

    def __init__(self, day: Day, place: int, read: Reads) -> None:
        self._place = place
        self._day, self._node = day, day.nodes[place]
        self._read = read
        self._numbers = np.random.default_rng((day.seed, place))
        phase = self._numbers.uniform(0, day.interval)
        scrapes = np.arange(phase, day.seconds, day.interval)
        self._scrapes = scrapes[~_during(scrapes, self._node.unknown)]
        self._failed = np.zeros(len(self._scrapes), np.bool_)
        for begin, end in [*self._node.unscraped, *((at, at + DOWN) for at in self._node.restarts)]:
            self._failed |= _during(self._scrapes, (begin, end))
        ticks = TICK * np.arange(int(day.seconds / TICK) + 1)
        self._sampled = np.ones(len(ticks), np.bool_)
        for at in self._node.restarts:
            self._sampled &= (ticks < at) | (ticks >= at + DOWN)
        self._uses = [self._use(job) for job in day.jobs if place in job.parts]
        self._series: list[Scraped] = []

    def scraped(self) -> ScrapedNode:
        self._add_exporter()
        for gpu in range(GPUS if self._node.devices != "none" else 0):
            self._add_gpu(gpu)
        for use in self._uses:
            if use.job.run:
                self._add_job(use)
        for run, begin, end, uses in self._unnamed():
            self._add_samples(run, uses, begin, end)
        times = np.rint(1000 * (START + self._scrapes)).astype(np.int64)
        return ScrapedNode(times, self._failed, self._series)

    def _use(self, job: Job) -> _Use:
        activity = Activity(job)
        gpus = job.parts[self._place]
        first = sum(len(own) for node, own in job.parts.items() if node < self._place)
        numbers = range(first, first + len(gpus))
        return _Use(activity, first, gpus, [*map(activity.loads, numbers)], [*map(activity.memory, numbers)])

    def _add(self, name: str, labels: Mapping[str, str], first: int, values: Floats) -> None:
        name = name if name == "up" or name.startswith("process_") else f"stepscope_{name}"
        if name in self._read and len(values):
            if self._node.lean < inf and not _is_lean(name, labels):
                at = self._scrapes[first : first + len(values)]
                values = np.where(at < self._node.lean, values, nan)
            target = {"__name__": name, "job": "stepscope", "instance": self._node.name}
            self._series.append(Scraped({**target, **labels}, first, np.asarray(values, np.float64)))

    def _bounds(self, histogram: str) -> list[float]:
        """Returns the bounds of a histogram of samples that rules read."""
        return [bound for bound in BOUNDS if self._read.bound(f"stepscope_{histogram}_bucket", number(bound))]

    def _always(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._add(name, labels, 0, np.full(len(self._scrapes), value))

    # -- the exporter itself, and the node

    def _add_exporter(self) -> None:
        self._add("up", {}, 0, (~self._failed).astype(np.float64))
        for each in discover():
            fails = _during(self._scrapes, self._node.without_driver) & (each.name == "gpu")
            self._add("collector_success", {"collector": each.name}, 0, (~fails).astype(np.float64))
        changes = [-inf, *(sorted(self._node.restarts) if self._node.upgraded else []), inf]
        for version, span in enumerate(pairwise(changes)):
            for profile, since in (("default", (-inf, self._node.lean)), ("lean", (self._node.lean, inf))):
                labels = {"version": f"simulated {version}", "profile": profile}
                shown = _during(self._scrapes, span) & _during(self._scrapes, since)
                if shown.any():
                    self._add("exporter_build_info", labels, 0, np.where(shown, 1.0, nan))
        started = np.full(len(self._scrapes), -MINUTE)
        for at in self._node.restarts:
            started[self._scrapes >= at] = at
        self._add("process_start_time_seconds", {}, 0, START + started)
        self._add("sampler_ticks_total", {}, 0, np.floor((self._scrapes - started) / TICK))
        self._always("sampler_ticks_missed_total", {}, 0.0)
        for bound in STEP_BOUNDS:
            self._always("step_duration_bound_seconds", {"le": number(bound)}, bound)

    def _label(self, gpu: int) -> str:
        """Returns the label of a GPU or, of two for each GPU, of a MIG device."""
        return f"{gpu // 2}:{gpu % 2}" if self._node.devices == "mig" else str(gpu)

    def _add_gpu(self, gpu: int) -> None:
        is_whole = self._node.devices == "gpus"
        scrapes = self._scrapes
        lost, absent = (_during(scrapes, span) for span in (self._node.lost, self._node.without_driver))
        absent |= (scrapes >= self._node.smaller) & (gpu == GPUS - 1)
        hot, errors, share = (
            np.zeros(len(scrapes)),
            np.zeros(len(scrapes)),
            np.full(len(scrapes), IDLE_MEMORY),
        )
        for use in self._uses:
            if gpu in use.gpus:
                own = list(use.gpus).index(gpu)
                first, times = self._times(use.job, after=0.0)
                index = _tick(times, use.activity)
                share[first : first + len(times)] = use.memories[own][index]
                if is_whole:  # MIG devices have no utilisation
                    self._add_holder(use, own, first, times, index)
                if use.job.fault and own == 0:
                    begin, end = use.job.fault.begin, use.job.fault.end
                    if use.job.fault.name == "lost GPU":
                        lost |= (scrapes >= begin) & (scrapes < end)
                    elif use.job.fault.name == "hot GPU":
                        hot += np.clip(scrapes - begin, 0, end - begin)
                    elif use.job.fault.name == "GPU memory error":
                        errors += 2 * (scrapes >= begin)

        device = self._label(gpu)
        whole = device.partition(":")[0]

        def add(name: str, values: Floats | float, **labels: str) -> None:
            self._add(name, {"gpu": whole, **labels}, 0, np.where(lost | absent, nan, values))

        add("gpu_memory_total_bytes", MEMORY_BYTES, gpu=device)
        add("gpu_memory_used_bytes", np.round(share * MEMORY_BYTES).astype(np.float64), gpu=device)
        if not is_whole and gpu % 2:  # the first MIG device has added the GPU
            return
        self._add("gpu_up", {"gpu": whole}, 0, np.where(absent, nan, (~lost).astype(np.float64)))
        add("gpu_throttle_seconds_total", 0.4 * hot, reason="sw_thermal")
        add("gpu_throttle_seconds_total", 0.0, reason="hw_thermal")
        add("gpu_ecc_errors_total", 0.0, severity="corrected")
        add("gpu_ecc_errors_total", errors, severity="uncorrected")

    def _add_holder(self, use: _Use, own: int, first: int, times: Floats, index: Integers) -> None:
        """Adds for how long a process has held a GPU without work; it starts at 0 with an exporter."""
        busy = np.flatnonzero(use.loads[own] > 0)
        before = np.searchsorted(busy, index, "right")
        last = np.where(before > 0, busy[np.maximum(before - 1, 0)] if len(busy) else 0, 0)
        idle: Floats = TICK * (index - last).astype(np.float64)
        for at in self._node.restarts:
            since = times + use.job.begin - at
            idle = np.where(since >= 0, np.minimum(idle, since), idle)
        labels = {
            "gpu": str(use.gpus[own]),
            "run": use.job.run,
            "user": use.job.user,
            "pid": str(10_000 + 20 * use.job.number + own),
        }
        self._add("gpu_held_idle_seconds", labels, first, idle)

    # -- runs

    def _times(self, job: Job, after: float = RETENTION) -> tuple[int, Floats]:
        """Returns the number of the job's first scrape, and the times of all, in seconds since its begin."""
        first, last = np.searchsorted(self._scrapes, (job.begin + TICK, job.end + after))
        return int(first), self._scrapes[first:last] - job.begin

    def _add_job(self, use: _Use) -> None:
        activity, job = use.activity, use.job
        first, times = self._times(job)
        if not len(times):
            return
        alive = times <= activity.length
        run = {"run": job.run}

        def add(
            metric: str, values: Floats | float, where: NDArray[np.bool_] | None = None, /, **labels: str
        ) -> None:
            values = np.broadcast_to(np.asarray(values, np.float64), times.shape)
            self._add(
                metric, {**run, **labels}, first, values if where is None else np.where(where, values, nan)
            )

        wall = START + self._node.skew + job.begin
        add("run_info", 1.0, name=job.kind.name, user=job.user, world_size=str(job.ranks))
        add("run_world_size", float(job.ranks))
        add("run_start_time_seconds", wall)
        add("run_first_step_time_seconds", wall + activity.first_step, times >= activity.first_step)
        add("run_age_seconds", times, alive)
        ended = job.end < self._day.seconds
        if ended:
            add("run_end_time_seconds", wall + activity.length, ~alive)
            add("run_ended_info", 1.0, ~alive, reason=job.ended)
            if job.ended.startswith("exit status"):
                add("run_exception_info", 1.0, ~alive, rank="0", type="RuntimeError", place="train.py:100")
        self._add_host(use, times, alive, add)
        steps = activity.steps
        assert steps is not None
        finished = np.searchsorted(steps.ends, np.minimum(times, activity.length), "right")
        last = np.where(finished > 0, steps.ends[finished - 1] if len(steps.ends) else 0.0, nan)
        add("run_last_step_age_seconds", times - last, alive)
        for own in range(len(use.gpus)):
            self._add_rank(use, own, times, alive, steps, finished, add)
        self._add_samples(job.run, [use], job.begin, job.end)

    def _add_host(self, use: _Use, times: Floats, alive: NDArray[np.bool_], add: _Add) -> None:
        """Adds what the processes of a run use of the host."""
        activity, cores = use.activity, CORES_PER_GPU * len(use.gpus)
        random = use.job.random("host")
        ran = random.choice((0.95, 0.9, 0.6, 0.02))  # of its main threads: some sleep while the GPU works
        waited = random.uniform(0.0005, 0.004)
        others = random.uniform(0.0, 0.3)
        alive_for = np.minimum(times, activity.length)
        noise = 1 + 0.05 * np.sin(alive_for / 200.0)
        add("run_cpus", float(cores), alive)
        add("run_cpu_seconds_total", activity.cpu * cores * alive_for)
        faulty = (
            np.clip(alive_for - activity.faulty[0], 0.0, activity.faulty[1] - activity.faulty[0])
            if activity.fault
            else 0.0
        )
        crowded = faulty if activity.fault == "noisy neighbour" else 0.0
        add("run_other_cpu_seconds_total", cores * (others * alive_for + 0.6 * crowded))
        add("run_main_threads_ran_seconds_total", len(use.gpus) * (ran * alive_for - 0.4 * ran * crowded))
        add(
            "run_main_threads_waited_seconds_total",
            len(use.gpus) * (waited * alive_for + 0.4 * ran * crowded),
        )
        if random.random() < 0.3 or activity.fault == "CPU limit":
            limit = float(cores)
            stopped = 0.3 * faulty if activity.fault == "CPU limit" else 0.0
            add("run_cpu_limit_cores", limit, alive)
            add("run_cpu_throttled_seconds_total", limit * (random.uniform(0, 0.01) * alive_for + stopped))
        for resource in ("cpu", "io", "memory"):
            share = {"cpu": 0.02, "io": 0.03, "memory": 0.0}[resource] * random.random()
            add("run_pressure_waiting_seconds_total", share * alive_for, resource=resource)
        add("run_memory_capacity_bytes", HOST_BYTES, alive)
        add("run_anonymous_memory_bytes", activity.host_memory(times) * HOST_BYTES * noise, alive)

    def _add_rank(
        self,
        use: _Use,
        own: int,
        times: Floats,
        alive: NDArray[np.bool_],
        steps: Steps,
        finished: Integers,
        add: _Add,
    ) -> None:
        activity, rank = use.activity, use.first_rank + own
        alive, there = alive & ~activity.has_left(rank, times), ~activity.has_left(rank, steps.ends)
        label = {"rank": str(rank)}
        numbers = np.random.default_rng(use.job.random(f"rank {rank}").getrandbits(64))
        begins = steps.ends - steps.durations
        main = use.job.kind.phase
        phases = (
            {main: ~steps.validating, "eval": steps.validating}
            if main == "train"
            else {main: ~steps.validating}
        )
        for phase, every in phases.items():
            mask = every & there
            if not mask.any():
                continue
            seen = finished >= np.flatnonzero(mask)[0] + 1
            self._add_durations(
                add, {**label, "phase": phase}, np.where(mask, steps.durations, 0.0), mask, finished, seen
            )
        between = np.diff(steps.ends, prepend=activity.first_step) - steps.durations
        begun = np.searchsorted(begins, np.minimum(times, activity.length), "right")
        add(
            "phase_seconds_total",
            np.minimum(times, min(activity.first_step, activity.length)),
            None,
            **label,
            phase="initialization",
        )
        add(
            "phase_seconds_total",
            _total(np.maximum(0.0, between) * there, begun),
            times >= activity.first_step,
            **label,
            phase="other",
        )
        # Ranks differ a little, for the whole run and in each step.
        slower = 1 - abs(numbers.normal(0, 0.004))
        exchanged = np.maximum(0.0, steps.exchanges + (1 - slower) * steps.durations * (use.job.ranks > 1))
        if rank > 0:
            exchanged = exchanged + steps.held_up
        exchanged, waits = exchanged * there, there * steps.waits * numbers.uniform(0.9, 1.0)
        started = times >= activity.first_step
        add("step_component_seconds_total", _total(waits, finished), started, **label, component="data_wait")
        if use.job.ranks > 1:
            add(
                "step_component_seconds_total",
                _total(exchanged, finished),
                started,
                **label,
                component="communication",
            )
        if main == "train":
            jitter = numbers.normal(0, 0.01, len(steps.ends))
            work = np.where(steps.validating | ~there, 0.0, (steps.durations - exchanged) * (1 + jitter))
            add("step_own_seconds_total", _total(work, finished), started, **label)
            add("step_own_squared_seconds_total", _total(work**2, finished), started, **label)
        for reason in ("stopped", "no_core", "throttled"):
            share = numbers.uniform(0, 0.002) if reason == "no_core" else 0.0
            add(
                "rank_paused_seconds_total",
                share * np.minimum(times, activity.length),
                None,
                **label,
                reason=reason,
            )
        add("dataloader_workers", float(activity.workers), alive & started, **label, phase=main)
        self._add_presence(use, own, times, alive, add)

    def _add_durations(
        self,
        add: _Add,
        label: Mapping[str, str],
        durations: Floats,
        mask: NDArray[np.bool_],
        finished: Integers,
        seen: NDArray[np.bool_],
    ) -> None:
        """Adds the steps of a phase, without the buckets that stay empty or always have all steps."""
        add("step_duration_seconds_count", _total(mask, finished), seen, **label)
        add("step_duration_seconds_sum", _total(durations, finished), seen, **label)
        add("step_duration_squared_seconds_total", _total(durations**2, finished), seen, **label)
        add("phase_seconds_total", _total(durations, finished), seen, **label)
        shortest, longest = durations[mask].min(), durations[mask].max()
        for low, bound in zip((0.0, *STEP_BOUNDS), STEP_BOUNDS, strict=False):
            if bound >= shortest and low < longest:
                add(
                    "step_duration_seconds_bucket",
                    _total(mask & (durations <= bound), finished),
                    seen,
                    **label,
                    le=number(bound),
                )

    def _add_presence(self, use: _Use, own: int, times: Floats, alive: NDArray[np.bool_], add: _Add) -> None:
        """Adds where a rank is once it has been there for long, and what its process does then."""
        activity, label = use.activity, {"rank": str(use.first_rank + own)}
        ages: dict[tuple[str, str], Floats] = {}
        states = np.full(len(times), RUNNING, object)

        def stay(component: str, operation: str, where: Integers, begin: float) -> None:
            lasting = where[times[where] - begin >= LASTING_SECONDS]
            into = ages.setdefault((component, operation), np.full(len(times), nan))
            into[lasting] = times[lasting] - begin
            if activity.fault in AT_PROMPT and begin >= activity.faulty[0]:
                states[lasting] = PROMPT
            elif component in ("checkpoint", "initialization"):
                states[lasting] = WAITING

        stay("initialization", "", np.flatnonzero(times < min(activity.first_step, activity.length)), 0.0)
        for pause, where in spans(times, activity.pauses):
            if pause.alone and use.first_rank + own > 0:
                stay("communication", "barrier", where, pause.begin)
            else:
                stay(pause.component, "", where, pause.begin)
        for (component, operation), values in ages.items():
            if not np.isnan(values).all():
                add(
                    "rank_component_age_seconds",
                    values,
                    alive,
                    **label,
                    component=component,
                    operation=operation,
                )
        if activity.fault == "suspension":
            states[_during(times, activity.faulty)] = STOPPED
        for state in sorted({RUNNING, *states}):
            add("rank_process_state", 1.0, alive & (states == state), **label, state=state)
        if not alive.all():
            gone = "dead" if use.job.ended == "out of memory" or activity.fault == "elastic" else "ended"
            add("rank_process_state", 1.0, ~alive, **label, state=gone)

    # -- the samples of runs

    def _unnamed(self) -> Iterable[tuple[str, float, float, list[_Use]]]:
        """Yields the unnamed runs: while a process without Stepscope holds a GPU, and no run is active."""
        named = [(use.job.begin, use.job.end) for use in self._uses if use.job.run]
        others = [use for use in self._uses if not use.job.run]
        moments = sorted({moment for use in self._uses for moment in (use.job.begin, use.job.end)})
        begin: float | None = None
        for moment in [*moments, inf]:
            active = any(use.job.begin <= moment < use.job.end for use in others)
            judged = active and not any(start <= moment < end for start, end in named)
            if judged and begin is None:
                begin = moment
            elif begin is not None and not judged:
                uses = [use for use in others if use.job.begin < moment and use.job.end > begin]
                wall = START + self._node.skew + begin
                yield (
                    strftime("unnamed-%Y%m%dT%H%M%S", gmtime(wall)),
                    begin,
                    min(moment, self._day.seconds),
                    uses,
                )
                begin = None

    def _add_samples(self, run: str, uses: Sequence[_Use], begin: float, end: float) -> None:
        """Adds the counted samples of a run from its begin to its end."""
        first, last = np.searchsorted(self._scrapes, (begin + TICK, end + RETENTION))
        first_tick, last_tick = int(begin / TICK), int(end / TICK)
        count = last_tick - first_tick
        index = np.clip(((self._scrapes[first:last] - begin) / TICK).astype(np.int64), 0, count)
        sampled = self._sampled[first_tick:last_tick]
        label = {"run": run}

        def add(name: str, ticks: NDArray[np.bool_] | Floats, **labels: str) -> None:
            self._add(name, {**label, **labels}, int(first), _total(ticks * sampled, index))

        add("samples_total", np.ones(count))
        lowest = np.ones(count)
        numbers = np.random.default_rng((self._day.seed, self._place, first_tick))
        cpu = numbers.normal(uses[0].activity.cpu, 0.05, count)
        add("cpu_utilization_samples_count", np.ones(count))
        for bound in self._bounds("cpu_utilization_samples"):
            add("cpu_utilization_samples_bucket", cpu <= bound, le=number(bound))
        has_load, has_gpus = self._node.devices == "gpus", self._node.devices != "none"
        gpus = sorted({gpu for use in uses for gpu in use.gpus}) if has_gpus else []
        for gpu in gpus:
            load, memory, present = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_)
            for use in uses:
                if gpu in use.gpus:
                    own = list(use.gpus).index(gpu)
                    offset = int(use.job.begin / TICK) - first_tick
                    low, high = max(0, offset), min(count, offset + use.activity.ticks)
                    load[low:high] = use.loads[own][low - offset : high - offset]
                    memory[low:high] = use.memories[own][low - offset : high - offset]
                    times: Floats = TICK * np.arange(low - offset, high - offset, dtype=np.float64)
                    present[low:high] = ~use.activity.has_left(use.first_rank + own, times)
            lowest = np.where(present, np.minimum(lowest, load), lowest)
            measured = {"gpu_memory_samples": memory} | (
                {"gpu_utilization_samples": load} if has_load else {}
            )
            device = self._label(gpu)
            for name, values in measured.items():
                add(f"{name}_count", present, gpu=device)
                add(f"{name}_sum", np.where(present, values, 0.0), gpu=device)
                for bound in self._bounds(name):
                    add(f"{name}_bucket", present & (values <= bound + 1e-9), gpu=device, le=number(bound))
        if not has_load:
            return
        activity = uses[0].activity
        busy = np.ones(count, np.int8)
        if len(uses) == 1 and activity.ticks:
            busy = np.resize(activity.states, count)
        at_disk = np.isin(busy, (State.STARTING, State.SAVING))
        hot = numbers.random(count) < activity.hot_core
        waits = numbers.random(count) < np.where(at_disk, 0.3, activity.io)
        idle = lowest < 0.1
        if activity.fault in ("slow storage", "suspension"):
            faulty = slice(*(int(edge / TICK) for edge in activity.faulty))
            if activity.fault == "slow storage":
                waits[faulty] |= numbers.random(len(waits[faulty])) < 0.95
            else:  # the exporter counts no sample in which the run uses no core
                idle[faulty] = False
        for cause, above, ticks in (("cpu", HOT_CORE, hot), ("io", HOT_IO, waits)):
            add(
                "gpu_starved_samples_total", ticks & idle, cause=cause, cause_above=above, gpu_below=IDLE_LOAD
            )


def _during(times: Floats, span: tuple[float, float]) -> NDArray[np.bool_]:
    """Returns which of the times are in a span."""
    return (times >= span[0]) & (times < span[1])


def _is_lean(name: str, labels: Mapping[str, str]) -> bool:
    """Returns whether the lean profile has a series."""
    family = (
        name if name in LEAN else name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
    )
    chosen = {**labels, "le": labels.get("le", "+Inf")}
    parts = {label: (*values, "+Inf", "1.0") for label, values in LEAN.get(family, {}).items()}
    return name == "up" or (family in LEAN and all(chosen[label] in parts[label] for label in parts))


def _tick(times: Floats, activity: Activity) -> Integers:
    return np.clip((times / TICK).astype(np.int64), 0, max(0, activity.ticks - 1))


def _total(values: NDArray[np.bool_] | Floats, counts: Integers) -> Floats:
    """Returns the sums of the first `counts` values."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return np.asarray(sums[counts])
