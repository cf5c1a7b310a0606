"""Accounts for the time of a run: disjoint parts that sum to the wall time of all its ranks.

docs/report.md explains the parts. Time that was not measured is a part too: `unknown`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from stepscope.evaluation.places import LEAST_PLACE, MAIN_THREADS, Place, main_threads, places, waits
from stepscope.exporter.ledgers.ages import HOST as HOST
from stepscope.exporter.ledgers.spent import BEFORE as BEFORE
from stepscope.exporter.ledgers.spent import BETWEEN as BETWEEN
from stepscope.exporter.ledgers.spent import Key as Key
from stepscope.exporter.ledgers.spent import from_first_step_to_last, main_phase
from stepscope.rules.parts.shares import summed
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    USEFUL,
    LineTime,
    ProfileWindow,
    RankFacts,
    ThreadTime,
    Times,
)

UNFINISHED, AFTER = "unfinished_step", "after_last_step"
WITHOUT_STEPS, UNKNOWN = "without_steps", "unknown"
RESTART = "restart"  # from the end of an attempt to the first step of the next one
IMPORTS, SET_UP = "imports", "set_up"  # of the time before the first step, if it was sampled
PROFILING = "profiling"  # between steps: a profile window is begun, ended or written
PARTS = (BEFORE, *PHASES, BETWEEN, PROFILING, RESTART, UNFINISHED, AFTER, WITHOUT_STEPS, UNKNOWN)
INTERPRETER_LOCK = "interpreter_lock"  # of a main thread, in any part: another thread holds it
CORE = "core"  # of a main thread: ready to run, but no core was free
# Roles of processes that work while main threads wait in a component. Children are of a loader that is not
# PyTorch's, or step the environments of a rollout.
WAITED_FOR = {"data_wait": ("loader worker", "child"), HOST: ("child",)}


@dataclass(frozen=True)
class Leaf:
    """One part of the time."""

    key: Key
    share: float  # of the run, 0..1
    by_rank: Mapping[int | None, float]  # seconds of each rank; None: a run without ranks
    lines: tuple[LineTime, ...] = ()  # of main threads; of loader workers while waiting for data

    @property
    def seconds(self) -> float:
        """Returns the sum over ranks."""
        return sum(self.by_rank.values())

    @property
    def rank(self) -> int | None:
        """Returns the rank that spent most time here."""
        return max(self.by_rank, key=lambda rank: self.by_rank[rank])

    @property
    def rank_seconds(self) -> float:
        """Returns the seconds of that rank."""
        return self.by_rank[self.rank]

    @property
    def places(self) -> list[Place]:
        """Returns where the time passed in the user's code, most time first."""
        part, component = self.key
        return places(self.lines, component if part == WITHOUT_STEPS and component != CORE else "")

    def share_in(self, chosen: Callable[[LineTime], bool]) -> float:
        """Returns the share of the run, 0..1, in the chosen of its lines."""
        return self.share * sum(place.share for place in self.places if chosen(place.line))


@dataclass(frozen=True)
class Account:
    """The time of a run. `seconds` is the wall time times the ranks; the leaves sum to it."""

    seconds: float
    ranks: int
    leaves: tuple[Leaf, ...]  # in the order of PARTS and COMPONENTS

    def share(self, part: str, component: str | None = None) -> float:
        """Returns the share (0..1) of a part, or of a component of it."""
        return sum(leaf.share for leaf in self._leaves(part, component))

    def by_rank(self, part: str, component: str | None = None) -> Mapping[int | None, float]:
        """Returns the seconds of each rank in a part, or in a component of it; {}: there is no such part."""
        return summed(leaf.by_rank for leaf in self._leaves(part, component))

    def whole(self, part: str, component: str | None = None) -> Leaf:
        """Returns a part, or a component of it, as one leaf; of no share if the run has no such part."""
        lines = tuple(line for leaf in self._leaves(part, component) for line in leaf.lines)
        key = Key(part, component or "")
        return Leaf(key, self.share(part, component), self.by_rank(part, component), lines)

    def _leaves(self, part: str, component: str | None) -> list[Leaf]:
        of_part = (leaf for leaf in self.leaves if leaf.key.part == part)
        return [leaf for leaf in of_part if component in (None, leaf.key.component)]

    @property
    def useful_share(self) -> float:
        """Returns the share of computing in steps: forward and backward pass, and the optimizer."""
        return sum(leaf.share for leaf in self.leaves if leaf.key.component in USEFUL)

    @property
    def main_phase(self) -> str:
        """Returns the phase that the run is for: training, or otherwise the one with most time."""
        return main_phase({phase: self.share(phase) for phase in PHASES})


def account(
    start: float | None,
    end: float | None,
    ranks: Sequence[RankFacts],
    recorded: Mapping[tuple[int, str], Times],
    threads: Sequence[ThreadTime],
    windows: Sequence[ProfileWindow] = (),
) -> Account | None:
    """Returns the account of a run from `start` to `end`, seconds since the epoch; None without both.

    `recorded`: seconds per component of the recorded steps, by rank and phase.
    """
    if start is None or end is None or not end > start:
        return None
    by_rank = sorted(ranks, key=lambda rank: (rank.rank, rank.start))
    seconds: dict[int | None, dict[Key, float]] = {
        rank: _of_rank(start, end, list(attempts), recorded, threads)
        for rank, attempts in groupby(by_rank, key=lambda rank: rank.rank)
    }
    for rank, leaves in seconds.items():
        paused = sum(window.pause_seconds for window in windows if window.rank == rank)
        if paused and (spent := min(paused, leaves.get(Key(BETWEEN), 0.0))):
            leaves[Key(BETWEEN)] -= spent
            leaves[Key(PROFILING)] = spent
    if not seconds:
        seconds[None] = _closed(_main_thread(threads, end - start), end - start)
    return _account(seconds, threads)


def _account(seconds: Mapping[int | None, Mapping[Key, float]], threads: Sequence[ThreadTime]) -> Account:
    whole = sum(sum(leaves.values()) for leaves in seconds.values())
    rounding = 1e-9 * whole
    keys = {key for leaves in seconds.values() for key, value in leaves.items() if value > rounding}
    found = []
    for key in sorted(keys, key=_place):
        by_rank = {rank: leaves.get(key, 0.0) for rank, leaves in seconds.items()}
        lines = tuple(lines_of(key, threads))
        found.append(Leaf(key, sum(by_rank.values()) / whole, by_rank, lines))
    return Account(whole, len(seconds), tuple(found))


def _place(key: Key) -> tuple[int, int, str]:
    known = COMPONENTS.index(key.component) if key.component in COMPONENTS else len(COMPONENTS)
    return PARTS.index(key.part), known, key.component


def _of_rank(
    start: float,
    end: float,
    attempts: Sequence[RankFacts],
    recorded: Mapping[tuple[int, str], Times],
    threads: Sequence[ThreadTime],
) -> dict[Key, float]:
    """Returns the seconds of a rank: `attempts` are its processes, one after another."""
    found: dict[Key, float] = defaultdict(float)
    at, within = start, 0.0  # within: from each attempt's first step to its last
    for attempt, following in zip(attempts, [*attempts[1:], None], strict=True):
        known = attempt.end if attempt.end is not None else (following.start if following else end)
        stop = min(max(known, at), end)
        first, last = attempt.first_step_start, attempt.last_step_end
        before = Key(RESTART if attempt.attempt > attempts[0].attempt else BEFORE)
        if first is None or last is None:
            found[before] += stop - at
        else:
            first = min(max(first, at), stop)
            last = min(max(last, first), stop)
            found[before] += first - at
            within += last - first
            ended = attempt.end is not None and not attempt.killed
            found[Key(AFTER if ended else UNFINISHED)] += stop - last
        at = stop
    found[Key(AFTER)] += end - at
    if all(attempt.first_step_start is None for attempt in attempts):
        rank = attempts[0].rank
        found = defaultdict(float, _main_thread([one for one in threads if one.rank == rank], end - start))
    phases = summed(attempt.phase_seconds for attempt in attempts)
    components = summed(attempt.component_seconds for attempt in attempts)
    inside = {phase: sums.tolist() for (rank, phase), sums in recorded.items() if rank == attempts[0].rank}
    if any(attempt.records_lost for attempt in attempts):
        inside.pop(main_phase(phases), None)
    spent = from_first_step_to_last(phases, components, inside)
    counted = sum(spent.values())
    shrink = min(1.0, within / counted) if counted else 1.0  # attempts that overlap, or two clocks
    for key, amount in spent.items():
        found[key] += shrink * amount
    start_up = found[Key(BEFORE)] + found[Key(RESTART)]
    found |= _of_start(found.pop(Key(BEFORE)), start_up, attempts[0].rank, threads)
    return _closed(found, end - start)


def _of_start(seconds: float, sampled: float, rank: int, threads: Iterable[ThreadTime]) -> dict[Key, float]:
    """Returns the time before the first step by component; undivided if no line of it was sampled.

    `sampled`: the seconds that lines may be of, restarts included. What was not sampled is set-up.
    """
    found: dict[Key, float] = defaultdict(float)
    for thread in threads:
        for line in thread.lines if thread.rank == rank and thread.role in MAIN_THREADS else ():
            if _is_of(line, BEFORE, ""):
                found[Key(BEFORE, _component_of_start(line))] += line.total
    if not found:
        return {Key(BEFORE): seconds}
    scale = seconds / max(sum(found.values()), sampled) if seconds else 0.0
    found = {key: scale * amount for key, amount in found.items() if key.component != SET_UP}
    return {**found, Key(BEFORE, SET_UP): seconds - sum(found.values())}


def _component_of_start(line: LineTime) -> str:
    return IMPORTS if line.library == "import" else line.component or SET_UP


def _main_thread(threads: Iterable[ThreadTime], seconds: float) -> dict[Key, float]:
    """Returns what the main thread of a process without steps does, in at most `seconds`."""
    thread = max(main_threads(threads, seconds), key=lambda thread: thread.seconds, default=None)
    sampled = summed(line.seconds for line in thread.lines) if thread else {}
    if thread is None or not any(sampled.values()):
        return {}
    factor = min(thread.seconds, seconds) / sum(sampled.values())
    running = factor * sampled.pop("running", 0.0)
    waited = min(thread.core_wait_seconds, running)
    found = {Key(WITHOUT_STEPS, state): factor * amount for state, amount in sampled.items()}
    return {**found, Key(WITHOUT_STEPS, "running"): running - waited, Key(WITHOUT_STEPS, CORE): waited}


def _closed(leaves: Mapping[Key, float], seconds: float) -> dict[Key, float]:
    """Adds what the leaves lack of `seconds`, as unknown."""
    return {**leaves, Key(UNKNOWN): max(seconds - sum(leaves.values()), 0.0)}


def lines_of(key: Key, threads: Iterable[ThreadTime]) -> list[LineTime]:
    """Returns the lines of a part: of main threads, or of who they wait for.

    Loader workers load the data, and other threads hold the interpreter lock. A script that starts the ranks
    and waits for them does nothing itself. Some processes say when they are in no step.
    """
    threads = list(threads)
    outside = BETWEEN if any(line.component == HOST for each in threads for line in each.lines) else HOST
    main = [thread for thread in threads if thread.role in MAIN_THREADS]
    if key.component == INTERPRETER_LOCK:
        return [line for thread in main for line in thread.others]
    starts = any(thread.role == "training" for thread in main)
    found = [
        line
        for thread in main
        for line in thread.lines
        if _is_of(line, *key, outside) and not (starts and thread.role == "script" and waits(line))
    ]
    for role in WAITED_FOR.get(key.component, ()):
        workers = (thread for thread in threads if thread.role == role)
        works = [line for thread in workers for line in thread.lines if line.place]
        if works and _wait_for(works, found, key.component):
            return works
    return found


def _wait_for(works: Iterable[LineTime], lines: Sequence[LineTime], component: str) -> bool:
    """Returns whether these lines of main threads wait for what others work: else they do it themselves.

    Own code that waits for environments is in the loop of a framework. Workers that were hardly seen at work
    only hand over what they have.
    """
    if not lines:
        return component != HOST
    whole = sum(line.total for line in lines)
    may_wait = [line for line in lines if component != HOST or ": " in line.library]
    waited = sum(line.total - line.running for line in may_wait)
    return waited >= whole / 2 and sum(line.total for line in works) >= LEAST_PLACE * whole


def _is_of(line: LineTime, part: str, component: str, outside: str = HOST) -> bool:
    """Returns whether a line is of this part. `outside`: what lines of no component are of."""
    if part == WITHOUT_STEPS:
        return line.seconds.get("running" if component == CORE else component, 0.0) > 0
    if part == BETWEEN:
        return line.phase in PHASES and outside == BETWEEN and not line.component
    if part in PHASES:
        return line.phase == part and component in ("", line.component or outside)
    if part == BEFORE:  # not: all others, of any phase
        is_before = line.phase == "initialization" or (not line.phase and (line.place or line.library) != "")
        return is_before and component in ("", _component_of_start(line))
    return part == AFTER and line.phase == "finalization"


# ------------------------------------------------------------------------------------------- words

NAMES = {
    BEFORE: "Before the first step",
    f"{BEFORE}/{IMPORTS}": "Before the first step: imports",
    f"{BEFORE}/{SET_UP}": "Before the first step: set-up",
    f"{BEFORE}/communication": "Before the first step: waiting for the other ranks",
    f"{BEFORE}/compile": "Before the first step: compiling",
    "train": "Training steps",
    "eval": "Evaluation steps",
    "rollouts": "Rollouts",  # evaluation steps in which an environment makes steps
    "predict": "Prediction steps",
    "global": "Steps of no phase",
    BETWEEN: "Between steps",
    PROFILING: "Profile windows",
    RESTART: "Restarts",
    UNFINISHED: "In an unfinished step",
    AFTER: "After the last step",
    WITHOUT_STEPS: "Main thread",
    UNKNOWN: "Not known",
    "data_wait": "Waiting for data",
    "forward": "Forward pass",
    "backward": "Backward pass",
    "optimizer": "Optimizer",
    "communication": "Communication",
    "host_to_device": "Copying to the device",
    "checkpoint": "Checkpoint",
    "compile": "Compiling",
    "gc": "Garbage collection",
    HOST: "Your own code",
    "running": "Running",
    "disk": "Waiting for a disk",
    "lock": "Waiting for a lock",
    "child": "Waiting for a child process",
    "other": "Waiting for a timer, a socket or a pipe",
    CORE: "Waiting for a core",
    INTERPRETER_LOCK: "Waiting for Python’s interpreter lock",
}


def name_of(key: Key) -> str:
    """Returns "Forward pass", "Evaluation steps: forward pass", "Before the first step"."""
    if key.label in NAMES:
        return NAMES[key.label]
    component = NAMES.get(key.component, key.component)
    if not component or key.part == "train":
        return component or NAMES[key.part]
    return f"{NAMES[key.part]}: {component[0].lower()}{component[1:]}"
