"""In which lines of the user's code the time of each rank goes, and what a command's main thread does.

Lines are compared between the slow rank, if a rule names one, and the rank in the middle.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low

from stepscope.common.words import listing, percent, rate, share
from stepscope.evaluation.account import NAMES
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.places import Place, main_threads, places
from stepscope.evaluation.unexplained import COMPILE_LESS, COMPILE_STEP, DISPATCHES, JITTED
from stepscope.rules.parts.shares import summed
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import LineTime, ThreadTime
from stepscope.training.line_layout import STATES

SHOWN = 3  # lines per part of the run
PARTS = 6  # that are shown
LEAST = 0.02  # of a thread's time, for a part to be shown
MEDIAN_GPU_BUSY = 70.0  # percent
WAITS_FOR_A_CORE, BUSY, ALL_CORES, MORE_THAN_ONE = 0.3, 0.5, 0.8, 1.5
ALONE = 1.2  # times the cores that a main thread uses: with less in use, it does all the work
FULL = 0.9  # of the cores: with fewer in use, a fifth of the time on two cores may be one thread
TURNS = "Threads take turns there, and processes use several cores (multiprocessing, ProcessPoolExecutor)."
COMPONENTS = {"data_wait": "data", "host": "your own code"}  # names in sentences
STARTED = {"loader worker": "loader workers", "child": "other processes"}  # likewise, of roles
# Names of samples in no component. Without a phase there was no ledger: imports, for example.
PHASES = {
    "": "outside training",
    "initialization": "before the first step",
    "train": "training loop",
    "eval": "evaluation loop",
    "finalization": "after the last step",
}
WAITS = {state: f"waits{NAMES[state].removeprefix('Waiting')}" for state in STATES if state != "running"}


# ------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class HotLine:
    """A place, with its share of the time of its part; `typical_share`: of the rank in the middle."""

    place: Place
    typical_share: float | None = None

    @property
    def words(self) -> str:
        """Returns "62 % in load, data.py:14 (json.loads)"."""
        return f"{percent(100 * self.place.share)} in {self.place.words}"


@dataclass(frozen=True)
class Part:
    """The lines of one thread in one phase and component."""

    thread: ThreadTime
    phase: str
    component: str
    seconds: float
    share: float  # of the thread's time
    lines: list[HotLine] = field(default_factory=list)
    typical_rank: int | None = None

    @property
    def name(self) -> str:
        """Returns "data, rank 3", "before the first step, rank 0", "loader workers of rank 0", "script"."""
        what = part_name(self.thread.role, self.phase, self.component)
        return f"{what}, {thread_name(self.thread)}" if what else thread_name(self.thread)

    @property
    def rows(self) -> int:
        return len(self.lines)

    @property
    def words(self) -> str:
        """Returns "data, rank 3: 62 % in load, dataset.py:14 (json.loads)"."""
        return f"{self.name}: {listing([line.words for line in self.lines])}"


def part_name(role: str, phase: str, component: str) -> str:
    """Returns "data" or "before the first step"; "" in a role that makes no steps."""
    if role != "training":
        return ""
    what = COMPONENTS.get(component, component.replace("_", " "))
    if not what:
        return PHASES.get(phase, phase)
    return what if phase in ("train", "") else f"{what} ({phase})"


def thread_name(thread: ThreadTime) -> str:
    """Returns "rank 3", "loader workers of rank 0" or "script"."""
    if named := STARTED.get(thread.role):
        return named if thread.rank is None else f"{named} of rank {thread.rank}"
    return f"rank {thread.rank}" if thread.role == "training" else thread.role


def parts(analysis: Analysis) -> list[Part]:
    """Returns the parts with most time of the slow rank, or of the rank in the middle, and of other roles."""
    found = [part for pair in compared_threads(analysis) for part in _parts(*pair)]
    return sorted(found, key=lambda part: -part.share)[:PARTS]


def compared_threads(analysis: Analysis) -> Iterable[tuple[ThreadTime, ThreadTime | None]]:
    """Yields, by role, the slow rank's threads and those of the rank in the middle, or the latter alone."""
    by_role: dict[str, list[ThreadTime]] = {}
    for thread in analysis.threads:
        by_role.setdefault(thread.role, []).append(thread)
    slow = slow_rank(analysis)
    for threads in by_role.values():
        middle = median_low(map(_ran, threads))  # the rank in the middle by the time that it ran
        typical = next(thread for thread in threads if _ran(thread) == middle)
        chosen = next((thread for thread in threads if thread.rank == slow), typical)
        yield chosen, typical if typical is not chosen else None


def slow_rank(analysis: Analysis) -> int | None:
    """Returns the rank that the rule Straggler accuses, if it accuses one."""
    rank = analysis.details_of(Straggler).get("rank") if analysis.found(Straggler) else None
    return rank if isinstance(rank, int) else None


def _ran(thread: ThreadTime) -> float:
    return thread.ran_seconds / thread.seconds if thread.seconds else 0.0


def _parts(thread: ThreadTime, typical: ThreadTime | None) -> Iterable[Part]:
    whole = sum(line.total for line in thread.lines)
    others = _by_part(typical.lines) if typical is not None else {}
    for key, lines in _by_part(thread.lines).items():
        seconds = sum(line.total for line in lines)
        if not whole or seconds < LEAST * whole:
            continue
        typical_shares = {_key(place): place.share for place in places(others.get(key, []))}
        yield Part(
            thread,
            *key,
            seconds=seconds,
            share=seconds / whole,
            lines=[
                HotLine(place, typical_shares.get(_key(place), 0.0) if typical_shares else None)
                for place in places(lines)[:SHOWN]
                if place.share >= LEAST
            ],
            typical_rank=typical.rank if typical is not None else None,
        )


def _by_part(lines: Iterable[LineTime]) -> Mapping[tuple[str, str], list[LineTime]]:
    found: dict[tuple[str, str], list[LineTime]] = {}
    for line in lines:
        found.setdefault((line.phase, line.component), []).append(line)
    return found


def _key(place: Place) -> str:
    return place.line.place or place.line.library


# ----------------------------------------------------------------------------------------- processes


def process_verdict(analysis: Analysis) -> list[str]:
    """Says what a command's processes do, if it has recorded no step; [] if that is not known."""
    if analysis.steps:
        return []
    main = _main_thread(analysis)
    own, allowed = _cores(analysis)
    if main is None and math.isnan(own):
        return []
    crowded = sum(cores.own - cores.others for cores in analysis.run_cores) > 0
    sentences = [_thread_words(main, own, allowed, crowded) if main else _cores_words(analysis, own, allowed)]
    if (gpu := _gpu_use(analysis)) >= MEDIAN_GPU_BUSY:
        sentences.append(f"The GPU is busy: {percent(gpu)} in half of the samples.")
    if main and _waits_for_a_core(main) and crowded:
        sentences.append("Start fewer processes, or give each fewer threads (OMP_NUM_THREADS=1).")
    elif main and (advice := _advice_on_jax(main)):
        sentences.append(advice)
    elif main and own < MORE_THAN_ONE and sum(line.total for line in main.others) > BUSY * main.seconds:
        sentences.append(f"Its other threads run Python on one core: {places(main.others)[0].words}. {TURNS}")
    shown = [] if main is None else [place for place in places(main.lines)[:SHOWN] if place.share >= LEAST]
    if len(shown) > 1:
        words = [f"{share(place.share, 1.0)} in {place.words}" for place in shown]
        sentences.append(f"Its time by lines: {listing(words)}.")
    return [*sentences, *_use(analysis, own, allowed)]


def _advice_on_jax(thread: ThreadTime) -> str:
    """Returns what helps a thread that mostly calls operations of JAX one by one, or compiles; "": else."""
    for calls, advice in ((DISPATCHES, COMPILE_STEP), (JITTED, COMPILE_LESS)):
        if sum(line.total for line in thread.lines if calls.match(line.library)) > BUSY * thread.seconds:
            return advice
    return ""


def knows_lines(analysis: Analysis) -> bool:
    """Returns whether lines of a main thread were sampled."""
    main = _main_thread(analysis)
    return main is not None and bool(main.lines)


def keeps_cores_busy(analysis: Analysis) -> bool:
    """Returns whether several threads of a command without steps use nearly all cores that others leave.

    They must compute in a library, as nobody knows whether own Python could do less, and wait for no core.
    """
    main = _main_thread(analysis)
    own, allowed = _cores(analysis)
    if analysis.steps or main is None or not main.lines or _waits_for_a_core(main):
        return False
    is_long = (analysis.run_seconds or 0.0) >= analysis.shortest
    others = sum(cores.others for cores in analysis.run_cores if not math.isnan(cores.others))
    ran = _ran(main)
    several = own >= ALONE * ran if ran > BUSY else own >= max(MORE_THAN_ONE, ALL_CORES * allowed)
    in_library = bool(places(main.lines)[0].line.library)
    return is_long and several and in_library and own + others >= FULL * allowed


def _main_thread(analysis: Analysis) -> ThreadTime | None:
    """Returns the main thread; of several processes one that does what they do, unless all of them wait."""
    threads = main_threads(analysis.threads, math.inf)
    main = max(threads, key=lambda thread: thread.seconds, default=None)
    if main is None or main.processes == 1:
        return main
    busy = main.ran_seconds + main.core_wait_seconds
    seconds = max(min(main.seconds, analysis.run_seconds or main.seconds), busy)
    ran = [replace(each, seconds={"running": each.running}) for each in main.lines]
    lines = [line for line in ran if line.total] if busy > BUSY * seconds else main.lines
    return replace(main, seconds=seconds, lines=tuple(lines))


def _cores(analysis: Analysis) -> tuple[float, float]:
    """Returns the cores that the processes used on average, and those that they may use; NaN: not known."""
    own, allowed = (_known(analysis, name) for name in ("cores", "allowed"))
    known = sum(allowed) or float(sum(analysis.cores.values())) or math.nan
    return (sum(own) if own else math.nan), known


def _known(analysis: Analysis, name: str) -> list[float]:
    """Returns a field of the use of each node on which it was measured."""
    return [value for use in analysis.run_use if not math.isnan(value := getattr(use, name))]


def _waits_for_a_core(thread: ThreadTime) -> bool:
    waited = thread.core_wait_seconds / thread.seconds
    return waited > WAITS_FOR_A_CORE and waited > _ran(thread) / 2


def _thread_words(thread: ThreadTime, own: float, allowed: float, crowded: bool) -> str:
    """Says what the thread does. `crowded`: the command itself uses most of the cores that are in use."""
    spent = dict.fromkeys(("running", *WAITS), 0.0) | summed(line.seconds for line in thread.lines)
    whole = sum(spent.values()) or 1.0
    ran, waited = _ran(thread), thread.core_wait_seconds / thread.seconds
    if not ran and not waited:  # the kernel does not tell
        ran = spent["running"] / whole
    if _waits_for_a_core(thread):
        why = "its own threads and processes use" if crowded else "something else uses"
        waits = "The main thread waits" if thread.processes == 1 else "Its processes wait"
        return (
            f"{waits} for a core {percent(100 * waited)} of the time, because {why} the "
            f"cores{_in(thread, 'running')}."
        )
    held = thread.interpreter_wait_seconds / thread.seconds
    if held > WAITS_FOR_A_CORE and held > ran / 2:
        return (
            f"The main thread waits for Python’s interpreter lock {percent(100 * held)} of the time, while "
            f"other threads run Python: {places(thread.others)[0].words}."
        )
    if ran > BUSY:
        if math.isnan(own) or own < ALONE * ran:
            return f"One thread does all the work on {_of_cores('1', allowed)}{_in(thread, 'running')}."
        busy = _of_cores(f"{own:.1f}", allowed)
        work = "The main thread works on one" if thread.processes == 1 else "Its processes work on some"
        return f"{busy} are busy. {work} of them{_in(thread, 'running')}."
    state = max(WAITS, key=lambda name: spent[name])
    if own >= MORE_THAN_ONE and own >= ALL_CORES * allowed:
        return f"All {allowed:g} cores are busy{_in(thread, state)}."
    rest = own - ran
    works = f", while the rest of the command uses {_of_cores(f'{rest:.1f}', allowed)}" if rest > BUSY else ""
    waits = f"The main thread {WAITS[state]} {percent(100 * spent[state] / whole)} of the time"
    return f"{waits}{works}{_in(thread, state)}."


def _in(thread: ThreadTime, state: str) -> str:
    """Returns where the thread mostly is in this state: ": 62 % in load, data.py:14 (json.loads)"."""
    most = next(iter(places(thread.lines, state)), None)
    if most is None:
        return ""
    return f": {share(most.seconds, sum(line.total for line in thread.lines))} in {most.words}"


def _cores_words(analysis: Analysis, own: float, allowed: float) -> str:
    waited = max(_known(analysis, "waited_share"), default=0.0)
    if waited > WAITS_FOR_A_CORE and own < ALL_CORES * allowed:
        return (
            f"The command waits for a core {percent(100 * waited)} of the time in which it could run: "
            "something else uses the cores."
        )
    if allowed > 1 and own >= ALL_CORES * allowed:
        return f"All {allowed:g} cores are busy: the command uses {_of_cores(f'{own:.1f}', allowed)}."
    if own >= MORE_THAN_ONE:
        return f"The command uses {_of_cores(f'{own:.1f}', allowed)}."
    if own >= BUSY:
        return f"About {_of_cores('one', allowed)} is busy: a single thread may limit the command."
    return "The command hardly uses a core: it waits for something else."


def _of_cores(number: str, allowed: float) -> str:
    """Returns "1.5 of 4 cores", or "1.5 cores" if it is not known how many the command may use."""
    if math.isnan(allowed):
        return f"{number} core{'' if number in ('1', 'one') else 's'}"
    return f"{number} of {allowed:g} {'core' if allowed == 1 else 'cores'}"


def _gpu_use(analysis: Analysis) -> float:
    """Returns how busy a GPU is in half of the samples, in percent, of that used most; NaN: none was read."""
    return max((row.p50 for row in analysis.gpu_use if not math.isnan(row.p50)), default=math.nan)


def _use(analysis: Analysis, own: float, allowed: float) -> list[str]:
    words = [] if math.isnan(own) else [f"use {_of_cores(f'{own:.2g}', allowed)}"]
    for name, verb in (("read_per_second", "read"), ("written_per_second", "write")):
        if values := _known(analysis, name):
            words.append(f"{verb} {rate(sum(values))} {'from' if verb == 'read' else 'to'} disks")
    if (gpu := _gpu_use(analysis)) < MEDIAN_GPU_BUSY:
        words.append(f"leave the GPUs at {percent(gpu)} in half of the samples")
    return [f"On average its processes {listing(words)}."] if words else []
