"""What a job does from its begin to its end: its steps, its pauses, the load and the memory of its GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import exp, inf, log
from random import Random

import numpy as np
from numpy.typing import NDArray

from trials.day.jobs import GPUS, HOUR, MINUTE, Job, Range

TICK = 0.5  # seconds between two samples of the exporter
IDLE_MEMORY = 0.005  # share of a GPU's memory that is in use without a process
# By fault, the share of each step in which a rank waits for data, or all others wait for the first one.
WAITS = {"starved loader": 0.45, "noisy neighbour": 0.3, "CPU limit": 0.35, "slow storage": 0.65}
HELD_UP = {"slow rank": 0.35, "low clocks": 0.2}
SLOWER = {"hot GPU": 1.15}  # the whole step, on all ranks

# What ranks are in while these last.
PAUSES = {"storage outage": "data_wait", "suspension": "backward", "lunch": "host"}
# These come back: seconds between two, how long one takes, and what ranks are in.
REPEATED = {"elastic": (5 * MINUTE, 45.0, "initialization")}

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class State(IntEnum):
    """What a job is at."""

    STARTING, COMPUTING, VALIDATING, SAVING, GENERATING, IDLE, HANGING = range(7)


@dataclass(frozen=True)
class Pause:
    """A time without a finished step, in a component; `host` is none."""

    begin: float
    end: float
    component: str
    alone: bool = False  # only the first rank is busy, the others wait for it in a collective


@dataclass(frozen=True)
class Steps:
    """The finished steps of all ranks, in seconds since the job's begin."""

    ends: Floats
    durations: Floats
    waits: Floats  # for data
    exchanges: Floats  # communication of the slowest rank
    validating: NDArray[np.bool_]  # whether in the phase `eval` of a job that trains
    held_up: Floats  # time for which all ranks wait for the first one, which has a fault


class Activity:
    """What a job does. Times are seconds since its begin."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.length = job.end - job.begin
        self.ticks = int(self.length / TICK)
        self.pauses: list[Pause] = []
        self._states: list[tuple[float, State]] = [(0.0, State.STARTING)]
        fault = job.fault
        self.fault = fault.name if fault else ""
        self.faulty = (fault.begin - job.begin, fault.end - job.begin) if fault else (inf, inf)
        self._random = job.random("activity")
        self._numbers = np.random.default_rng(self._random.getrandbits(64))
        self.first_step = inf
        self._set_habits()
        if job.kind.step is None:
            self.steps = None
            self._use_now_and_then()
        else:
            self.steps = self._train(job.kind.step)
        self.states = self._by_tick()

    def _set_habits(self) -> None:
        """Draws what distinguishes this job from others of its kind."""
        kind, random = self.job.kind, self._random
        self.load = random.uniform(*kind.load)
        self._load_width = random.uniform(0.01, 0.07)
        self._other_load = random.uniform(0.5, 0.95)  # while it validates
        self._saves_alone = self.job.ranks > 1 and random.random() < 0.4
        self._save_is_known = random.random() < 0.85  # others do not use torch.save
        self._validation_has_steps = random.random() < 0.9  # others generate text, or compute on the CPU
        self._width = log_uniform(random, 0.005, 0.15)  # of the duration of steps
        self._hiccups = log_uniform(random, 0.0003, 0.006)  # share of steps that take longer
        self._peak = 0.965 if random.random() < 0.1 else random.uniform(0.4, 0.93)
        if self.fault == "GPU memory leak":  # with room for it
            self._peak = random.uniform(0.4, 0.75)
        self._grows_for = random.uniform(40, 70) * MINUTE if random.random() < 0.08 else 0.0
        self._grows_by = random.uniform(0.04, 0.15)
        self._host = random.uniform(0.02, 0.12)
        self._host_grows = random.uniform(0.05, 0.25) if random.random() < 0.1 else 0.0
        self.hot_core = random.uniform(0.05, 0.7)  # share of samples with a core above 90 %
        self.io = random.uniform(0.0, 0.03)  # share of samples with a core that waits for I/O
        self.cpu = random.uniform(0.1, 0.6)
        self.workers = random.choice((2, 4, 4, 8, 8, 12))

    # -- steps and pauses

    def _train(self, step: Range) -> Steps:
        kind, random = self.job.kind, self._random
        base = log_uniform(random, *step)
        due = {
            State.SAVING: _first(kind.checkpoint_every, random),
            State.VALIDATING: _first(kind.validation_every, random),
            State.GENERATING: _first(kind.generation_every, random),
        }
        every = {state: random.uniform(*_of(kind, state)[0]) if due[state] < inf else inf for state in due}
        lasts = {state: random.uniform(*_of(kind, state)[1]) for state in due}
        wait, exchange = random.uniform(*kind.data_wait), 0.0
        if self.job.ranks > 1:
            exchange = random.uniform(*kind.communication)
        now = random.uniform(*kind.startup)
        self.first_step = now if now < self.length else inf
        due = {state: now + moment for state, moment in due.items()}
        if self.fault in REPEATED:
            due[State.STARTING] = self.faulty[0]
            every[State.STARTING], lasts[State.STARTING], _ = REPEATED[self.fault]
        none = np.zeros(0)
        parts = [Steps(none, none, none, none, np.zeros(0, np.bool_), none)]
        while now < self.length:
            until = min(*due.values(), self.length, *(edge for edge in self.faulty if edge > now))
            if self.fault in PAUSES and self.faulty[0] <= now < self.faulty[1]:
                self._states.append((now, State.IDLE))
                self.pauses.append(Pause(now, self.faulty[1], PAUSES[self.fault]))
                now = self.faulty[1]
                continue
            if self.fault == "hang" and now >= self.faulty[0]:
                self._states.append((now, State.HANGING))
                self.pauses.append(Pause(now, self.length, "host", alone=True))
                break
            self._states.append((now, State.COMPUTING))
            part = self._some_steps(now, until, base, wait, exchange)
            parts.append(part)
            now = float(part.ends[-1])
            state = min(due, key=lambda each: due[each])
            if now >= self.length or due[state] > now:  # a fault begins or ends
                continue
            seconds = lasts[state] * random.uniform(0.85, 1.15)
            due[state] = now + every[state]
            self._states.append((now, state))
            if state is State.VALIDATING and self._validation_has_steps:
                part = self._some_steps(
                    now, now + seconds, base * 0.4, 2 * wait, 0.3 * exchange, validating=True
                )
                parts.append(part)
                now = float(part.ends[-1])
            else:
                self._pause(now, now + seconds, state)
                now += seconds
        ended = np.concatenate([part.ends for part in parts]) <= self.length
        return Steps(
            *(
                np.concatenate([getattr(part, name) for part in parts])[ended]
                for name in ("ends", "durations", "waits", "exchanges", "validating", "held_up")
            )
        )

    def _some_steps(
        self, begin: float, end: float, base: float, wait: float, exchange: float, validating: bool = False
    ) -> Steps:
        """Returns steps until one ends at or after `end`."""
        slower, held_up = 1.0, 0.0
        if self.faulty[0] <= begin < self.faulty[1]:
            more_wait = WAITS.get(self.fault, 0.0)
            held_up = HELD_UP.get(self.fault, 0.0)
            slower = SLOWER.get(self.fault, 1 / (1 - more_wait - held_up))
            wait = wait / slower + more_wait
        base *= slower
        count = max(2, int(1.5 * (end - begin) / base) + 20)
        numbers = self._numbers
        durations = base * np.exp(numbers.normal(0, self._width, count))
        late = numbers.random(count) < self._hiccups
        durations[late] *= numbers.uniform(1.3, 4.0, int(late.sum()))
        ends = begin + np.cumsum(durations)
        count = min(count, int(np.searchsorted(ends, end)) + 1)
        durations = durations[:count]
        return Steps(
            ends[:count],
            durations,
            durations * np.minimum(0.95, wait * numbers.gamma(4.0, 0.25, count)),
            durations * exchange * numbers.uniform(0.8, 1.2, count),
            np.full(count, validating),
            durations * held_up,
        )

    def _pause(self, begin: float, end: float, state: State) -> None:
        alone = False
        if state is State.SAVING:
            component, alone = "checkpoint" if self._save_is_known else "host", self._saves_alone
        else:
            component = REPEATED[self.fault][2] if state is State.STARTING else "host"
        self.pauses.append(Pause(begin, min(end, self.length), component, alone))

    def _use_now_and_then(self) -> None:
        """Plays a notebook, whose user thinks, or a server, for which somebody always has a request."""
        now, random = self._random.uniform(30, 120), self._random
        serving = self.job.kind.name == "inference server"
        while now < self.length:
            self._states.append((now, State.COMPUTING))
            now += random.expovariate(1 / 5) if serving else random.expovariate(1 / 90)
            self._states.append((now, State.IDLE))
            if self.faulty[0] <= now < self.faulty[1]:
                now = self.faulty[1]
                continue
            idle = now
            if serving:
                by_night = 0.2 + 0.8 * abs(((self.job.begin + now) / HOUR - 14) / 12)
                now += random.expovariate(1 / (30 * by_night))
            else:
                now += random.lognormvariate(log(3 * MINUTE), 1.1)
            if (
                idle < self.faulty[0] < now
            ):  # the user works before leaving: no time without work began earlier
                now = self.faulty[0]

    def _by_tick(self) -> NDArray[np.int8]:
        """Returns the state at each tick."""
        begins = np.array([begin for begin, _ in self._states])
        states = np.array([state for _, state in self._states], np.int8)
        ticks: Floats = TICK * np.arange(self.ticks, dtype=np.float64)
        return states[np.searchsorted(begins, ticks, "right") - 1]

    def has_left(self, rank: int, times: Floats) -> NDArray[np.bool_]:
        """Returns when the rank has left an elastic job, whose second half sits out every other turn."""
        if self.fault != "elastic":
            return np.zeros(len(times), np.bool_)
        restarts = [each.begin for each in self.pauses if each.component == "initialization"]
        left = np.searchsorted(restarts, times, "right") % 2 == 1
        return np.asarray(left & (rank >= self.job.ranks // 2))

    # -- GPUs

    def loads(self, gpu: int) -> Floats:
        """Returns the utilisation of a GPU, by the job's own number, at each tick: whole per cent."""
        numbers = np.random.default_rng(self.job.random(f"load {gpu}").getrandbits(64))
        mean = np.array([0.0, self.load, self._other_load, 0.0, 0.9, 0.0, 0.0])
        if gpu > 0:  # a collective's kernel waits
            mean[State.SAVING] = float(self._saves_alone)
            mean[State.HANGING] = 1.0
        width = np.array([0.0, self._load_width, 0.12, 0.0, 0.05, 0.0, 0.0])
        found = mean[self.states] + width[self.states] * numbers.standard_normal(self.ticks)
        share = WAITS.get(self.fault, 0.0)
        if share:
            first, last = (int(edge / TICK) for edge in self.faulty)
            found[first:last] *= numbers.random(len(found[first:last])) >= share
        found *= ~self.has_left(gpu, TICK * np.arange(self.ticks, dtype=np.float64))
        return np.asarray(np.round(np.clip(found, 0.0, 1.0), 2))

    def memory(self, gpu: int) -> Floats:
        """Returns the used share of a GPU's memory at each tick."""
        ticks: Floats = TICK * np.arange(self.ticks, dtype=np.float64)
        peak = min(0.97, self._peak + self.job.random(f"memory {gpu}").uniform(-0.004, 0.004))
        if self._peak == 0.965:
            peak = self._peak
        started = self._states[1][0] if len(self._states) > 1 else self.length
        since = np.maximum(0.0, ticks - started)
        share = peak * (0.7 + 0.3 * (1 - np.exp(-since / 20.0)))
        if self._grows_for:
            share -= self._grows_by * np.maximum(0.0, 1 - since / self._grows_for)
        if self.fault == "GPU memory leak" and gpu == 0:
            share = np.minimum(0.985, share + 0.0045 * self._leaked(ticks))
        return np.asarray(np.where(ticks < 0.5 * started, IDLE_MEMORY, np.maximum(share, IDLE_MEMORY)))

    def _leaked(self, times: Floats) -> Floats:
        """Returns for how many minutes memory has leaked."""
        return np.asarray(np.clip(times - self.faulty[0], 0.0, self.faulty[1] - self.faulty[0]) / MINUTE)

    def host_memory(self, times: Floats) -> Floats:
        """Returns the share of the node's memory that the job's processes use."""
        grown = self._host_grows * np.minimum(1.0, times / HOUR)
        if self.fault == "host memory leak":
            grown = grown + 0.012 * self._leaked(times)
        return np.asarray(
            (self._host + grown) * min(1.0, len(next(iter(self.job.parts.values()))) / GPUS + 0.3)
        )


def log_uniform(random: Random, low: float, high: float) -> float:
    return exp(random.uniform(log(low), log(high)))


def _of(kind: object, state: State) -> tuple[Range, Range]:
    """Returns how often a kind of job is at this, and for how long."""
    name = {State.SAVING: "checkpoint", State.VALIDATING: "validation", State.GENERATING: "generation"}[state]
    return getattr(kind, f"{name}_every"), getattr(kind, f"{name}_lasts")


def _first(every: Range, random: Random) -> float:
    """Returns the seconds until something happens for the first time."""
    return inf if every[0] == inf else random.uniform(*every)


def spans(times: Floats, pauses: list[Pause]) -> Iterator[tuple[Pause, Integers]]:
    """Yields each pause with the indices of the times in it."""
    for pause in pauses:
        first, last = np.searchsorted(times, (pause.begin, pause.end))
        if first < last:
            yield pause, np.arange(first, last)
