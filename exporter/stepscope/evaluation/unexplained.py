"""Finds the large parts of the account that could be avoided and that no rule has judged."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isfinite
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import count, duration, listing, share, uncapitalised
from stepscope.evaluation.account import (
    AFTER,
    BEFORE,
    BETWEEN,
    HOST,
    INTERPRETER_LOCK,
    PROFILING,
    RESTART,
    UNFINISHED,
    UNKNOWN,
    Account,
    Key,
    Leaf,
    lines_of,
    name_of,
)
from stepscope.evaluation.analysis import ACCOUNT, Analysis, GpuUse, RuleResult
from stepscope.evaluation.places import Place, places, waits, worth_a_name
from stepscope.measurements.hangs import COMMUNICATION, STOPPED
from stepscope.measurements.own_times import slow_ranks
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.max_initialization_time import MaxInitializationTime
from stepscope.rules.parts.remedies import HAND_OVER_LESS, PAUSED_RANK
from stepscope.rules.parts.topics import About
from stepscope.rules.step_outlier import StepOutlier
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import PHASES, USEFUL, LineTime
from stepscope.training.layout import GRAPHS_FETCH

# Packages whose functions compute with no tensors, and that PyTorch does not call itself for long.
NO_TENSORS = {
    *("numpy", "pandas", "scipy", "sklearn", "skimage", "PIL", "cv2"),
    *("bisect", "copy", "csv", "hashlib", "heapq", "json", "pickle", "random", "re", "statistics"),
}
LARGE_PHASE = 1 / 3  # of the time of steps, for those of phases that the run is not for
LARGE_BEFORE, LARGE_AFTER = 0.2, 0.15  # of the run, in lines of the script outside steps
MOST = 0.5  # of the script's own lines before the first step, in one line
LONG_BEFORE = 30.0  # seconds: a start that only imports a framework is shorter, whatever the loop takes
LATE = 300.0  # seconds: a longer start is large like any other part, from a tenth of the run on
GC, COMPILE = "gc", "compile"
COMPILES_ONCE = 4  # steps at most that compile in a run that compiles each graph once, as a part of its start
LOOP = (*PHASES, BETWEEN, PROFILING, UNFINISHED)
# Functions of frameworks that are a part of each step or set-up; "import" as in training/line_names.py.
USUAL = (
    *("import", "torch.nn.", "torch.optim.", "torch.autograd.", "torch._tensor.backward"),
    *("torch._compile.", "torch._dynamo.", "torch._functorch.", "torch.distributed.", "torch.distributions."),
    *("tensorflow.python.eager.backprop.", "keras.src.optimizers.", "tf_keras.src.optimizers."),
)
# What hands a batch to JAX waits meanwhile for earlier steps, of which only so many may run. Samples count as
# running what waits for a core then, too. A list that is converted waits for no lock.
INTO_JAX, WAITS_FOR_JAX = ("jax._src.numpy.array_constructors.", "jax._src.api.device_put"), 0.1
OBJECTS = re.compile(r"torch\.distributed\..*_object")  # its collectives that pickle what they send
RESTARTS_WORKERS = re.compile(r"torch\.utils\.data\.dataloader\.(__(init|iter|del)__|_shutdown_workers)")
# What no step needs, and so is the script's choice: saved states, averages, remote calls, and methods of
# modules but their calls.
CHOSEN = re.compile(
    rf"{OBJECTS.pattern}|torch\.nn\.modules\.module\.(?!_|forward|zero_grad)|torch\.optim\..*state_dict"
    r"|torch\.distributed\.rpc\.api\.rpc_|torch\.optim\.swa_utils\."
)
# What can be made once, before the loop: optimizers, modules, losses.
MADE = re.compile(r"(torch\.(nn|optim)|(tf_)?keras\.src\.optimizers)\..*\.__init__$")
# Libraries that wait for a device, unless they wait for another process.
DEVICES = re.compile(r"(torch(?!\.distributed\.rpc)|tensorflow|jax|keras|cupy)\.")
# In a framework's loop (`fit: module.function`, line_names.py): what the user gave it to log, save or call.
GIVEN = re.compile("log(?!it)|callback|integration_utils|track|save|checkpoint", re.IGNORECASE)
OF_KERAS = re.compile(r"(tf_)?keras\..*\.(fit|evaluate|predict)")  # its loop, or what this calls elsewhere
IN_KERAS = "{}: (tf_)?keras\\."  # what such a loop calls
CALLED_IN_STEPS = {"eval": "evaluate", "predict": "predict"}  # loops that a script calls in its own steps
NO_FORWARD = 0.1  # of the backward passes: modules with less time are a loss at most
KNOWN = 0.05  # of the run: with more unknown, nobody knows whether it was healthy
MOST_NAMED = 4  # ranks of several that make the others wait
PLAIN_PYTHON = 1e-4  # seconds that a step without own work is outside of modules: its calls, loss and clock
SEEN = 0.5  # of a part's time in samples: with less, many pauses were too short to be seen in any line
BUSY_GPU = 70.0  # percent, on average
OWN_CODE = (
    "Make this code cheaper, or run it less often: vectorise it, do it every N steps, or move it out of the "
    "loop. Values that stay on the device need no {} or `print` in every step."
)
REMEDIES = {
    HOST: OWN_CODE.format("`.item()`, `.cpu()`"),
    "data_wait": "Make the next batch ready while the step computes: DataLoader workers, a cheaper "
    "transform, or data that is decoded once and cached.",
    "communication": "Let communication overlap with the backward pass, or send less: larger buckets, half "
    "precision, gradient accumulation.",
    "host_to_device": "Use pinned memory and copy with `non_blocking=True`, or keep the data on the device.",
    "checkpoint": "Save less often, or asynchronously: `torch.distributed.checkpoint.async_save`.",
    "compile": "Let shapes repeat: pad to a few sizes, or compile with `dynamic=True`. Each new model that "
    "is compiled compiles again: do it once, outside of loops. "
    "`TORCH_LOGS=recompiles` gives the reason of each compilation.",
    GC: "Call `gc.freeze()` after the set-up, and collect garbage every N steps instead of inside them.",
    BETWEEN: "Look at what runs between steps: logging, saving, evaluation without steps of its own, or a "
    "loader that starts its workers again at each epoch.",
}
OF_TENSORFLOW = REMEDIES | {
    HOST: OWN_CODE.format("`.numpy()`"),
    "data_wait": "Make the next batch ready while the step computes: `prefetch`, parallel calls of `map`, or "
    "data that is decoded once and cached.",
    "checkpoint": "Save less often, or weights only: `save_freq` and `save_weights_only` of ModelCheckpoint.",
    "compile": "Let shapes repeat: `drop_remainder=True`, or pad to a few sizes. Pass tensors to a "
    "`tf.function` instead of Python numbers, or give it an `input_signature`. Each new model or "
    "`tf.function` compiles again: make it once, outside of loops.",
}
SAVE_LESS_IN_JAX = "Save less often, or asynchronously: `AsyncCheckpointer` of Orbax."
OF_JAX = REMEDIES | {
    "checkpoint": SAVE_LESS_IN_JAX,
    HOST: OWN_CODE.format("`float()`"),
    "compile": "Let shapes repeat: pad to a few sizes. Pass numbers that change as arrays instead of static "
    "arguments. Each new function that is compiled compiles again: call `jax.jit` once, outside of loops. "
    "`JAX_EXPLAIN_CACHE_MISSES=1` gives the reason of each compilation.",
}
# If a line mostly waits, by what the kernel showed of its thread (STATES of the samples):
WAIT_LESS = {
    "child": "This line waits for a process that it starts. Start it once and keep it, or ask it every N "
    "steps: to start a process takes longer than most answers.",
    "disk": "This line waits for a disk. Write every N steps or from a thread, without `fsync`; read ahead "
    "of the step, and keep files open.",
    "lock": "This line waits for another thread or process: one that holds a lock, or that makes what it "
    "needs, such as threads of a library, which compute. Hold the lock for less, compute less, or let "
    "several make it ahead of the step, such as DataLoader workers.",
    "other": "This line waits, for a network, a timer or another process, and computes nothing. Do it in a "
    "thread with a queue, collect several into one, or do it every N steps.",
}
WAIT_LESS_FOR_JAX = (
    "This line waits: for what JAX still computes, if it reads an array (`np.asarray`), otherwise for "
    "another thread or process. Leave results on the device, and read them every N steps."
)
COMPILE_STEP = (
    "Compile the step: decorate its function with `jax.jit` (or `nnx.jit`, `eqx.filter_jit`). Outside of "
    "compiled functions, Python calls each operation by itself."
)
FLATTEN_LESS = (
    "This line calls a compiled function, and flattens its arguments in Python at each call. Do that once "
    "(`nnx.cached_partial`, `nnx.split`, `eqx.partition`), or let a call make several steps (`jax.lax.scan`)."
)
JITTED = re.compile(r"jax\._src\.pjit\.cache_miss$")  # calls a compiled function, which is compiled first
COMPILE_LESS = (
    "JAX compiles the function that this line calls. It unrolls Python loops: write them with "
    "`jax.lax.scan` or `jax.lax.fori_loop`, which compile one turn."
)
# Operations and transformations of JAX, but no array that is made, read, printed or saved.
DISPATCHES = re.compile(
    r"(jax|optax|flax|equinox)\."
    r"(?!_src\.(array\.|numpy\.array_constructors|api\.(device|block)|pjit\.cache_miss)"
    r"|serialization\.|training\.checkpoints\.)"
)
RECEIVES = "torch.multiprocessing.reductions."  # what another process hands over, tensor by tensor
# What a line of own code calls, and what to do about it.
DO_LESS = {
    r"multiprocessing\.pool\.|concurrent\.futures\.|queue\.get": "This line waits for what other processes "
    "or threads compute. Ask for it while a step computes, and take the result in the next one "
    "(`apply_async`, `submit`), or let DataLoader workers compute it.",
    r"multiprocessing\.(queues\.get|connection\.recv|managers\._call)": "This line takes what another "
    "process pickles and sends through a pipe. Send less, or keep arrays in shared memory (tensors in queues "
    "of `torch.multiprocessing`). If it mostly waits, let several processes make it, such as DataLoader "
    "workers.",
    r"flax\.(serialization|training\.checkpoints)\.|orbax\.": SAVE_LESS_IN_JAX,
    MADE.pattern: "This line makes in each step what can be made once, before the loop, and kept.",
    OBJECTS.pattern: "Collectives of objects pickle, send and unpickle them. Gather tensors "
    "(`dist.all_gather_into_tensor`), or collect on each rank and gather once, at the end.",
}
# Functions of multiprocessing and concurrent.futures that start or end processes.
STARTS_PROCESSES = re.compile(
    r"multiprocessing\.(context\.Pool|pool\.(__init__|__exit__|terminate|join)|process\.start)"
    r"|concurrent\.futures\.process\.(__init__|submit)"
)
START_ONCE = (
    "This line starts or ends processes. Make the pool once, before the loop, and keep it: to start a "
    "process takes longer than most of what it computes in a step."
)
KEEP_COMPILED = (
    "Keep what was compiled from run to run (the cache of torch.compile, `jax_compilation_cache_dir`), or "
    "compile less of the model."
)
SET_UP_EARLIER = (
    "This line waits, for a file, a network, a timer or another process, and computes nothing. Make what it "
    "waits for ready before the job starts, or let a thread wait during the rest of the set-up."
)
FETCH_LATER = (
    "This line fetches batches before the first step. Skip what a resumed run has seen in the sampler, which "
    "makes no items, and keep statistics of the data from run to run."
)
SET_UP_LESS = "Cache what this line computes, or load only what the first steps need."
LOSE_LESS = "Do it less often, or in another job: the devices wait meanwhile."
END_SOONER = (
    "The script has ended, but a thread or process that it started has not. Let that work while steps run, "
    "send several results at once, or do it in another job."
)
TAKE_EQUAL = (
    "Give all ranks equal work in each step: batches of equal length, sorted or packed by the sum of lengths "
    "instead of the number of samples."
)
DEAL_EQUALLY = (
    "Give all ranks as many batches: with a DistributedSampler, or shards of equal size. What ranks wait on "
    "average is saved."
)
HOLD_LESS = (
    "Move what these threads do into another process (multiprocessing, DataLoader workers), or let them do "
    "it less often. While a thread runs Python, no other thread of the process does."
)
SHARE_WORK = (
    "Let every rank do its part of it (a DistributedSampler for evaluation), or do it less often. Without a "
    "barrier, the others do not have to wait."
)
SHORT_LOOPS = (
    "Make epochs longer: each starts its pipeline again (`repeat()` the dataset and pass `steps_per_epoch`). "
    "Let each call compute several batches: larger ones, or `steps_per_execution` of `compile`."
)
CALL_ONCE = (
    "Each call of `fit`, `evaluate` or `predict` prepares its data and its loop again: call it once for all "
    "batches. For one batch, call the model itself, or `train_on_batch`."
)
EVALUATE_LESS = "Evaluate less often or on fewer batches, without gradients and in larger batches."
KEEP_WORKERS = (
    "The loader starts and ends its workers at each evaluation. Make it once (persistent_workers=True), or "
    "load few batches without workers (num_workers=0)."
)
EVALUATES = re.compile(r"(^|\.)_?(run_)?(evaluate|validate|validation|sanity_check)(_\w+)?$")
VALIDATE_LATER = (
    "Validate on a few batches before training (`num_sanity_val_steps=2` of Lightning’s Trainer), or only "
    "once something was learned."
)
# Functions in which an environment makes a step: passes without gradients choose its actions then.
ENVIRONMENT = re.compile(r"(^|\.)_?step(_\w+)?$|rollout|collector")
ACT_AT_ONCE = (
    "Let one pass of the model choose the actions of several environments (a vectorised environment), and "
    "run slow environments in processes of their own."
)
ACT_ELSEWHERE = (
    "This line waits for environments in other processes. Run as many as there are cores, with cheaper "
    "steps; cheap ones are faster in this process, because each step is sent through pipes."
)
VALIDATE_LESS = (
    "Validate less often (`validation_freq`), on fewer batches (`validation_steps`) or in larger ones "
    "(`validation_batch_size`)."
)


class LargePart(NamedTuple):
    """A part of the account that could be avoided, and how."""

    key: Key
    share: float  # of the run
    remedy: str
    evidence: str
    title: str = ""  # instead of the key's
    rank: int | None = None  # if one rank alone is the reason,
    explains: str = ""  # and the component in which the others wait for it
    brings: Mapping[str, float] = {}  # of the share: what other components of steps have of it
    places: Sequence[str] = ()  # the lines that it is about; (): all of the part


def unexplained(analysis: Analysis) -> list[RuleResult]:
    """Returns a finding for each large part that no rule has judged, the largest first."""
    account, run_seconds = analysis.account, analysis.run_seconds
    if account is None or run_seconds is None:
        return []
    lock = list(_interpreter_lock(account, analysis, run_seconds))
    components = list(_components(account, analysis, sum(one.share for one in lock)))
    alone = [*_on_one_rank(account, _least_alone(account, analysis)), *_stopped(analysis, account)]
    large = [
        *(*lock, *_outside(account, analysis), *components, *alone, *_by_turns(account, analysis)),
        *_ends_early(account, analysis),
        *_evaluation(account, analysis, {one.key.part for one in alone}, components),
        *_before_training(account, analysis),
    ]
    return [of_part(one, run_seconds) for one in sorted(large, key=lambda one: -one.share)]


def is_accounted(account: Account | None) -> bool:
    """Returns whether it is known where the time of steps went."""
    return account is not None and bool(account.useful_share) and account.share(UNKNOWN) < KNOWN


def large_in_loop(account: Account, analysis: Analysis) -> float:
    """Returns the share of the run from which on a cause that was measured is large, 0..1: that of the loop.

    How long a short run took to start says nothing about its steps. First calls are large in a few seconds.
    """
    in_loop = 1 - sum(map(account.share, (BEFORE, RESTART, AFTER)))
    return analysis.large * max(in_loop, min(analysis.shortest * account.ranks / account.seconds, 1.0))


def unseen(analysis: Analysis) -> float:
    """Returns the share of the run in the script's own code in steps, if large and hardly seen in lines.

    It is 0 if a rule judged this part, or no line of the run was sampled at all: then `unexplained` has it.
    """
    account = analysis.account
    if account is None or HOST in _judged(analysis) or not any(leaf.lines for leaf in account.leaves):
        return 0.0
    own = account.whole(account.main_phase, HOST)
    return own.share if own.share >= analysis.large and _seen(own) < SEEN else 0.0


def fetching(analysis: Analysis) -> float:
    """Returns the share of the run in graphs of TensorFlow that may wait for batches inside, if large."""
    if analysis.account is None or not analysis.gauges.get(GRAPHS_FETCH):
        return 0.0
    spent = analysis.account.share("train", "forward")
    return spent if spent >= analysis.large else 0.0


def is_busy(analysis: Analysis) -> bool:
    """Returns whether the run's GPUs are so busy that the host waits for them, whatever line it is in."""
    known = [use.mean for use in analysis.gpu_use if isfinite(use.mean)]
    return bool(known) and fmean(known) >= BUSY_GPU


def perhaps_idle(analysis: Analysis) -> tuple[GpuUse, RuleResult] | None:
    """Returns the run's GPU that was used least, if LowGPUUtilization may fire on it once it can decide.

    If no GPU is known to be the run's, each that somebody used may be.
    """
    rule = analysis.result_of(LowGPUUtilization)
    if rule is None or rule.status not in (Status.NOT_ENOUGH_DATA, Status.COLLECTING):
        return None
    threshold = float(rule.parameters["threshold_p95"] or 0)
    own = [use for use in analysis.gpu_use if use.by or (not analysis.uses_gpus and use.max > 0)]
    low = [use for use in own if use.p95 < threshold]
    return (min(low, key=lambda use: use.p95), rule) if low else None


def _outside(account: Account, analysis: Analysis) -> Iterator[LargePart]:
    """Yields the time in lines of the script before the first step, if mostly in one, or after the last."""
    for leaf in map(account.whole, (BEFORE, AFTER)):
        is_start = leaf.key.part == BEFORE
        limit = LARGE_BEFORE if is_start else LARGE_AFTER
        if alone := _alone(leaf.key, account, analysis, limit):
            yield alone
            continue
        if is_start and (not leaf.share or analysis.found(MaxInitializationTime)):
            continue
        # Only what was sampled: Python's own start and end never are.
        jax = analysis.framework.startswith("jax")
        found = [place for place in worth_a_name(leaf.places) if _is_of_script(place.line, leaf.key, jax)]
        seconds = sum(place.seconds for place in found)
        own = min(seconds / account.seconds, leaf.share)
        if own >= limit and (not is_start or found[0].seconds > MOST * seconds):
            evidence = f"That is {share(own, leaf.share)} of the time {uncapitalised(name_of(leaf.key))}"
            at = tuple(place.line.place for place in found)
            yield LargePart(leaf.key, own, _less_outside(is_start, found[0].line), evidence, places=at)
        elif is_start and _is_long_start(leaf, loop(account), account, analysis, LATE):
            evidence = f"From the first step to the last it took {share(loop(account), 1.0)}. {_where(leaf)}"
            yield LargePart(leaf.key, leaf.share, MaxInitializationTime.recommendation, evidence)


def _is_of_script(line: LineTime, key: Key, jax: bool) -> bool:
    """Returns whether a line is the script's own, or waits at Python's end for what the script started.

    With JAX, a library that waits for a lock waits for threads of JAX, which compile and compute.
    """
    if jax and line.library and line.seconds.get("lock", 0.0) > line.total / 2:
        return False
    return _is_own(line) or (key.part == AFTER and not line.place and _waits(line))


def _less_outside(is_start: bool, line: LineTime) -> str:
    """Returns what to do about a line before the first step, or after the last."""
    if not is_start:
        return LOSE_LESS if line.place else END_SOONER
    if line.library.startswith(("torch.utils.data.", RECEIVES)):
        return FETCH_LATER
    return SET_UP_EARLIER if _waits(line) else SET_UP_LESS


def _alone(key: Key, account: Account, analysis: Analysis, large: float) -> LargePart | None:
    """Returns what one rank spends in lines of its own, if that is a large share more than any other does.

    Lines that wait do not count if no rank does with them: they may wait for this rank.
    """
    for ignored in (lambda _: False, _waits):
        found: dict[int, list[Place]] = defaultdict(list)
        for thread in analysis.main_threads:
            own = own_places(Leaf(key, 0.0, {}, tuple(lines_of(key, [thread]))))
            if thread.rank is not None:
                found[thread.rank] += [place for place in own if not ignored(place.line)]
        spent = sorted(((sum(each.seconds for each in found[rank]), rank) for rank in found), reverse=True)
        if len(spent) < 2:
            return None
        (seconds, rank), (others, _) = spent[:2]
        more = seconds - others
        if key.part == AFTER:  # others do not wait while they train
            more = min([more, *account.by_rank(AFTER).values()])
        if (more := more * account.ranks / account.seconds) >= large:
            evidence = f"Rank {rank} spends {duration(seconds)} in lines of its own, and the others do not"
            first = max(found[rank], key=lambda place: place.seconds).line
            return LargePart(key, more, _less_outside(key.part == BEFORE, first), evidence, rank=rank)
    return None


def loop(account: Account) -> float:
    """Returns the share of the run from the first step to the last."""
    return sum(map(account.share, LOOP))


def _is_long_start(leaf: Leaf, loop: float, account: Account, analysis: Analysis, late: float = inf) -> bool:
    """Returns whether a run that came to its own end spent long in this part of its start.

    It spent more time there than later, or `late` seconds. `loop`: the share of the run from there on.
    """
    cut_short = analysis.end is None or bool(analysis.exit_status or analysis.stopped_by)
    seconds = leaf.seconds / account.ranks - analysis.core_wait_seconds  # NoisyNeighbour has that
    is_late = seconds >= late and leaf.share >= analysis.large
    return not cut_short and loop > 0 and (is_late or (seconds >= LONG_BEFORE and leaf.share > loop))


def _where(leaf: Leaf) -> str:
    """Returns "The time before it went into load, train.py:8 (62 %) and import (30 %)"."""
    words = [f"{place.words} ({share(place.share, 1.0)})" for place in worth_a_name(leaf.places)]
    return (
        f"The time before it went into {listing(words)}"
        if words
        else "Which lines took the time before it was not sampled"
    )


def _by_turns(account: Account, analysis: Analysis) -> Iterator[LargePart]:
    """Yields the wait for a rank that is the slowest by turns, which is no rank in particular."""
    waited = analysis.waited_by_turns * account.share("train")
    if waited >= large_in_loop(account, analysis) and not analysis.found(Straggler):
        key, title = Key("train", analysis.uneven_component or COMMUNICATION), "Uneven work of ranks"
        evidence = "By turns, a rank has more work than the others, which wait for it"
        if analysis.uneven_component:
            evidence += f": most is {uncapitalised(name_of(key))}"
        yield LargePart(key, waited, TAKE_EQUAL, evidence, title, explains=COMMUNICATION)


def _ends_early(account: Account, analysis: Analysis) -> Iterator[LargePart]:
    """Yields the wait of ranks that have no more batches, while others train on."""
    after = account.by_rank(AFTER)
    steps = {each.rank: each for each in analysis.steps if each.phase == "train"}
    known = [rank for rank in after if rank in steps]
    if len(known) < 2:
        return
    first, last = (most(known, key=lambda rank: after[rank]) for most in (max, min))
    waits = sum(after[rank] - after[last] for rank in known) / account.seconds
    fewer, more, early = steps[first].count, steps[last].count, after[first] - after[last]
    if waits >= analysis.large and (more - fewer) * steps[last].mean > early / 2:
        evidence = (
            f"Rank {first} had no more batches {duration(early)} before rank {last}: they made {fewer} and "
            f"{count(more, 'training step')}"
        )
        yield LargePart(Key(AFTER), waits, DEAL_EQUALLY, evidence, "Uneven numbers of batches")


def _interpreter_lock(account: Account, analysis: Analysis, run_seconds: float) -> Iterator[LargePart]:
    """Yields the wait for other threads of the process that hold Python's interpreter lock."""
    thread = max(analysis.main_threads, key=lambda each: each.interpreter_wait_seconds, default=None)
    least = large_in_loop(account, analysis) * run_seconds
    if thread is None or thread.interpreter_wait_seconds < least:
        return
    waited, holds = thread.interpreter_wait_seconds, places(thread.others)[0]
    of_rank = f" of rank {thread.rank}" if thread.rank is not None and analysis.ranks > 1 else ""
    evidence = (
        f"The main thread{of_rank} waited {duration(waited)} for other threads that ran Python: "
        f"{holds.words} used a core for {duration(holds.seconds)}"
    )
    key = Key(account.main_phase, INTERPRETER_LOCK)
    yield LargePart(key, waited / run_seconds, HOLD_LESS, evidence, rank=thread.rank)


def _components(account: Account, analysis: Analysis, waited: float) -> Iterator[LargePart]:
    """Yields large components that no rule judges. `waited`: for the interpreter lock, in any of them."""
    judged, main, remedies = _judged(analysis), account.main_phase, _remedies(analysis)
    for leaf in account.leaves:
        part, component = leaf.key
        if component in judged or (leaf.share < analysis.large and component != HOST):
            continue
        if component == COMPILE and part in PHASES and 0 < analysis.compiled_steps <= COMPILES_ONCE:
            if _is_long_start(leaf, loop(account) - leaf.share, account, analysis):
                evidence = f"Compiling took {count(analysis.compiled_steps, 'step')}"
                yield LargePart(leaf.key, leaf.share, KEEP_COMPILED, evidence)
        elif part == BETWEEN:
            first = leaf.places[0].line.place if leaf.places else ""
            called = [line.library for line in leaf.lines if first and line.place == first]
            by_keras = any(re.match(IN_KERAS.format("(fit|evaluate|predict)"), each) for each in called)
            remedy = CALL_ONCE if by_keras else REMEDIES[BETWEEN]
            yield LargePart(leaf.key, leaf.share, remedy, "No step was running")
        elif leaf.key == Key(main, HOST):
            yield from _own_code(leaf, account, analysis, waited)
        elif part == main and component in remedies:
            receives = component == "data_wait" and any(
                place.line.library.startswith(RECEIVES) for place in leaf.places[:1]
            )
            remedy = HAND_OVER_LESS if receives else remedies[component]
            evidence = f"{share(leaf.share, account.share(main))} of the time of steps"
            yield LargePart(leaf.key, leaf.share, remedy, evidence)


def _own_code(leaf: Leaf, account: Account, analysis: Analysis, waited: float) -> Iterator[LargePart]:
    """Yields what the script does in no component of its steps, and what the loop of Keras does there.

    What it brings about in components is a part of it. Without lines and without components, nobody knows it.
    """
    part, whole = leaf.key.part, account.share(leaf.key.part)
    if sampled := any(each.lines for each in account.leaves):
        loops = _loops(account)
        own = [place for place in own_places(leaf) if (place.line.place, place.line.library) not in loops]
    elif leaf.share == whole:
        return
    else:
        own = []
    # Lines that exchange objects pickle and unpickle them, too: that is own code.
    objects = {place.line.place for place in own if OBJECTS.match(place.line.library)}
    communication = account.whole(part, COMMUNICATION)
    exchanged = communication.share_in(lambda line: line.place in objects)
    exchanged = 0.0 if analysis.found(Straggler) else exchanged
    # A class that replaces `Module.__call__`, as in GPyTorch, and functions of tensors have no module whose
    # forward pass is timed: lines of own code take it, for about as long as the backward pass.
    forward, backward = (account.share(part, name) for name in ("forward", "backward"))
    untimed = backward if forward < NO_FORWARD * backward else 0.0
    spent = leaf.share * (own_share(leaf, own) if sampled else 1.0) - waited - untimed + exchanged
    steps = sum(each.count for each in analysis.steps if each.phase == part)
    if spent >= analysis.large + PLAIN_PYTHON * steps / account.seconds:
        # Python collects when enough objects were made, in the line that makes them.
        collected, lines = account.whole(part, GC), {place.line.place for place in own}
        mostly = collected.share_in(lambda line: line.place in lines) > MOST * collected.share
        garbage = collected.share if mostly and collected.share < spent else 0.0
        lost, brings = spent + garbage, {COMMUNICATION: exchanged, GC: garbage}
        evidence = f"{share(lost, whole)} of the time of steps"
        evidence += f", {share(garbage, whole)} to collect the garbage of these lines" if garbage else ""
        at = tuple(place.line.place for place in own)
        remedy = _of_own_code(own, account, analysis)
        yield LargePart(leaf.key, lost, remedy, evidence, brings=brings, places=at)
    of_keras = leaf.share_in(_is_of_keras)
    # Without time that it computes, nobody timed the graphs that its loop calls.
    if of_keras >= analysis.large and any(account.share(part, each) for each in USEFUL):
        evidence = "Between batches, Keras starts and ends its epochs and calls its callbacks"
        yield LargePart(leaf.key, of_keras, SHORT_LOOPS, evidence, "Keras’s own loop")


def _loops(account: Account) -> set[tuple[str, str]]:
    """Returns the places, and what they call, in which a library runs whole steps, as SVI of Pyro does."""
    backward, optimizer = (
        {(line.place, line.library) for line in account.whole(account.main_phase, name).lines}
        for name in ("backward", "optimizer")
    )
    return {called for called in backward & optimizer if called[1]}


def _judged(analysis: Analysis) -> set[str]:
    """Returns the components that rules have judged, and own code if the GPUs are busy meanwhile."""
    judged = {each for rule in analysis.rules if rule.status.judged for each in rule.about.judges}
    return judged | {HOST} if is_busy(analysis) else judged


def _remedies(analysis: Analysis) -> dict[str, str]:
    """Returns the remedies by component, in the words of the framework that trains."""
    name, _, _ = analysis.framework.partition(" ")
    on_torch = analysis.framework.endswith(" on torch")  # the backend of Keras
    if name == "jax":
        return OF_JAX
    return OF_TENSORFLOW if name in ("keras", "tensorflow") and not on_torch else REMEDIES


def _of_own_code(own: Sequence[Place], account: Account, analysis: Analysis) -> str:
    """Returns what to do about own code: by what its first line calls, or waits for."""
    remedies = _remedies(analysis)
    if not own:
        return remedies[HOST]
    first = own[0].line
    if any(STARTS_PROCESSES.match(place.line.library) for place in own):
        return START_ONCE
    if remedies is OF_JAX and DISPATCHES.match(first.library):
        forward = account.whole(account.main_phase, "forward")
        return FLATTEN_LESS if any(line.place == first.place for line in forward.lines) else COMPILE_STEP
    for called, less in DO_LESS.items():
        if re.match(called, first.library):
            return less
    state = max(first.seconds, key=lambda each: first.seconds[each])
    if not _waits(first) or state == "running":
        return remedies[HOST]
    if remedies is OF_JAX and state == "lock":
        return WAIT_LESS_FOR_JAX
    return WAIT_LESS["child" if first.library.startswith("subprocess.") else state]  # it may read its output


def _waits(line: LineTime) -> bool:
    """Returns whether a line mostly waits for something other than a device."""
    return waits(line) and not DEVICES.match(line.library)


def own_share(leaf: Leaf, own: Sequence[Place] | None = None) -> float:
    """Returns the share of the leaf's time in lines of the script that do not run what each training runs.

    A loss function that the script calls itself computes, for example. Many short pauses are seen in no line:
    unless most of the time was, the sampled seconds are a limit too.
    """
    own = own_places(leaf) if own is None else own
    part = sum(place.share for place in own)
    return part if _seen(leaf) >= SEEN else min(part, sum(place.seconds for place in own) / leaf.seconds)


def _seen(leaf: Leaf) -> float:
    """Returns the share of the leaf's time in samples."""
    return sum(place.seconds for place in leaf.places) / leaf.seconds


def own_places(leaf: Leaf) -> list[Place]:
    return [place for place in worth_a_name(leaf.places) if _is_own(place.line)]


def _is_own(line: LineTime) -> bool:
    of_a_loop = ": " in line.library and not (GIVEN.search(line.library) or needs_no_tensors(line))
    of_any_loop = of_a_loop or _is_of_keras(line)
    waits = line.seconds.get("lock", 0.0) > WAITS_FOR_JAX * line.total and line.library.startswith(INTO_JAX)
    is_made = line.phase in PHASES and MADE.match(line.library)
    usual = waits or (line.library.startswith(USUAL) and not (is_made or CHOSEN.match(line.library)))
    return bool(line.place) and not of_any_loop and not usual


def needs_no_tensors(line: LineTime) -> bool:
    """Returns whether it calls a package that computes with no tensors, such as `fit: sklearn.tree.fit`."""
    return line.library.rpartition(": ")[2].partition(".")[0] in NO_TENSORS


def _is_of_keras(line: LineTime) -> bool:
    return OF_KERAS.fullmatch(line.library) is not None


def _evaluation(
    account: Account, analysis: Analysis, explained: Collection[str], found: Sequence[LargePart]
) -> Iterator[LargePart]:
    """Yields large phases next to training, without the parts of them that were `found`."""
    main = account.main_phase
    if main in CALLED_IN_STEPS:
        return  # a script that evaluates and predicts, but trains nothing
    own_code = account.whole(main, HOST)
    steps = sum(account.share(phase) for phase in PHASES)
    least = max(analysis.large, LARGE_PHASE * steps)
    for phase in PHASES:
        calls = IN_KERAS.format(CALLED_IN_STEPS.get(phase, "no loop"))
        of_calls = (place.share for place in own_code.places if re.match(calls, place.line.library))
        called = own_code.share * sum(of_calls)
        part = account.share(phase) + called - sum(one.share for one in found if one.key.part == phase)
        if phase in (main, "global", *explained) or part < least:
            continue
        evidence = f"Steps of training took {share(account.share(main) - called, 1.0)} of the run"
        validates = phase == "eval" and analysis.framework.startswith("keras")
        remedy = less = VALIDATE_LESS if validates else EVALUATE_LESS
        spent, own, key, title = part, account.share(phase, HOST), Key(phase), ""
        if rollouts := _rollouts(phase, account):
            named = worth_a_name(rollouts.places)
            acts = [place for place in named if _is_own(place.line) or _waits(place.line)]
            spent = own = rollouts.share * own_share(rollouts, acts)
            if (evaluates := _evaluates_policy(analysis, steps)) >= least:
                evidence = f"{share(evaluates, steps)} of the time of steps is in functions that evaluate"
                spent, own = evaluates, 0.0
            elif own < max(analysis.large, LARGE_PHASE * part):
                continue  # they collect what is trained on
            else:
                key, title = rollouts.key, name_of(Key("rollouts"))
                less = ACT_ELSEWHERE if _waits(acts[0].line) else ACT_AT_ONCE
        if title or own > MOST * part:
            evidence += f". {share(own, part)} of this part is your own code around forward passes"
            remedy = f"{_remedies(analysis)[HOST]} {less}"
        if called > MOST * part:
            remedy = CALL_ONCE
        elif _of_restarts(phase, analysis) * account.share(phase, "data_wait") > MOST * part:
            remedy = f"{KEEP_WORKERS} {less}"
        yield LargePart(key, spent, remedy, evidence, title)


def _before_training(account: Account, analysis: Analysis) -> Iterator[LargePart]:
    """Yields evaluation before the first training step, if stacks show that it is one: nothing was learned.

    Other passes without gradients may be a part of the start, such as those that make features.
    """
    early = 0.0
    for phases in (timeline.phase_seconds for timeline in analysis.timelines):
        until = next((at for at, seconds in enumerate(phases.get("train", ()), 1) if seconds), 0)
        early += sum(phases.get("eval", ())[:until]) / account.seconds
    stacks = [each for thread in analysis.main_threads for each in thread.stacks if each.phase == "eval"]
    inside = sum(stack.seconds for stack in stacks if any(map(_evaluates, stack.functions)))
    if early >= analysis.large and inside > MOST * sum(stack.seconds for stack in stacks):
        evidence = f"That is {share(early, account.share('eval'))} of all evaluation"
        yield LargePart(Key("eval"), early, VALIDATE_LATER, evidence, "Evaluation before training")


def _evaluates(function: str) -> bool:
    """Returns whether a function of a whole stack, such as "validate, train.py:14", evaluates."""
    return EVALUATES.search(function.partition(",")[0]) is not None


def _evaluates_policy(analysis: Analysis, steps: float) -> float:
    """Returns the share of the run in functions that evaluate in an environment, by whole stacks.

    They are in the same phase as rollouts. `steps`: the share of the run in steps.
    """
    found = [each for thread in analysis.main_threads for each in thread.stacks if each.phase in PHASES]
    acts = {each for stack in found for each in stack.functions if ENVIRONMENT.search(each.partition(",")[0])}
    acting = (each.functions for each in found if acts.intersection(each.functions))
    evaluate = {each for functions in acting for each in functions if _evaluates(each)}
    inside = sum(each.seconds for each in found if evaluate.intersection(each.functions))
    return steps * inside / sum(each.seconds for each in found) if inside else 0.0


def _rollouts(phase: str, account: Account) -> Leaf | None:
    """Returns the script's own part of passes without gradients if an environment makes steps in it."""
    own = account.whole(phase, HOST)
    names = (name for line in own.lines for name in (line.function, line.library))
    makes_steps = phase == "eval" and not account.share(phase, "data_wait")
    return own if makes_steps and any(map(ENVIRONMENT.search, names)) else None


def _of_restarts(phase: str, analysis: Analysis) -> float:
    """Returns the share of the waits for data in which main threads start or end loader workers."""
    lines = [line for thread in analysis.main_threads for line in thread.lines if line.phase == phase]
    lines = [line for line in lines if line.component == "data_wait"]
    restarts = sum(line.total for line in lines if RESTARTS_WORKERS.fullmatch(line.library))
    return restarts / sum(line.total for line in lines) if restarts else 0.0


def _stopped(analysis: Analysis, account: Account) -> Iterator[LargePart]:
    """Yields for how long signals stopped one rank: if it waited for the others then, no step shows it."""
    stopped, run_seconds = analysis.stopped_seconds, account.seconds / account.ranks
    rank = max(stopped, key=lambda each: stopped[each], default=None)
    if rank is None or len(stopped) < 2 or analysis.found(Straggler):
        return
    more = stopped[rank] - median(seconds for each, seconds in stopped.items() if each != rank)
    lost = min(more / run_seconds, account.share(account.main_phase))
    if lost >= large_in_loop(account, analysis):
        evidence = f"Signals stopped rank {rank} for {duration(more)} more than the others, which wait for it"
        key, title = Key(account.main_phase, STOPPED), "A rank that was stopped"
        yield LargePart(key, lost, PAUSED_RANK[STOPPED], evidence, title, rank, COMMUNICATION)


def _least_alone(account: Account, analysis: Analysis) -> float:
    """Returns the share of the run that is large for one rank: less if it explains steps that only wait."""
    long, large = analysis.result_of(StepOutlier), large_in_loop(account, analysis)
    if long is None or not analysis.found(StepOutlier) or long.details.get("component") != COMMUNICATION:
        return large
    return min(large, long.seconds_lost / 2 * account.ranks / account.seconds)


def _on_one_rank(account: Account, large: float) -> Iterator[LargePart]:
    """Yields what one rank, or a few, do while the others wait: checkpoints, and all outside of main steps.

    The finding is about the rank with most of it, and names the others.
    """
    main = account.main_phase
    waited = account.by_rank(main, COMMUNICATION)
    outside = [Key(part) for part in (*PHASES, BETWEEN) if part != main]
    for key in (*outside, Key(main, "checkpoint")):
        of_ranks = account.by_rank(key.part, key.component or None)
        if len(of_ranks) < 2:
            continue
        rank = max(of_ranks, key=lambda each: of_ranks[each])
        slow = slow_ranks(np.array(list(of_ranks.values()))[:, None])[:, 0]
        do_it = [each for each, is_slow in zip(of_ranks, slow, strict=True) if is_slow or each == rank]
        others = [each for each in of_ranks if each not in do_it]
        more = of_ranks[rank] - median(of_ranks[each] for each in others)
        longer = median(waited.get(each, 0.0) for each in others) - waited.get(rank, 0.0)
        lost = min(more, longer) * account.ranks / account.seconds
        if rank is not None and lost >= large:
            what = uncapitalised(name_of(key))
            who, wait = f"{_named(do_it)} spend up to", "the others wait for them"
            if len(do_it) == 1:
                who, wait = f"Rank {rank} spends", "they wait for it"
            evidence = f"{who} {duration(more)} more than the others in {what}, and {wait}"
            remedy = REMEDIES.get(key.component, SHARE_WORK)
            yield LargePart(key, lost, remedy, evidence, rank=rank, explains=COMMUNICATION)


def _named(ranks: Sequence[int | None]) -> str:
    """Returns "Ranks 0 and 4", "Ranks 0, 8, 16, 24 and 4 more"."""
    named = [str(rank) for rank in ranks[:MOST_NAMED]]
    more = len(ranks) - len(named)
    return f"Ranks {listing([*named, *([f'{more} more'] if more else [])])}"


def of_part(found: LargePart, run_seconds: float) -> RuleResult:
    """Returns the finding, which costs the share of the run."""
    title, seconds = found.title or name_of(found.key), found.share * run_seconds
    said = f"{share(found.share, 1.0)} of the run, {duration(seconds)}. {found.evidence}."
    known = {"rank": found.rank, "explains": found.explains or None, "places": found.places or None}
    details = found.key._asdict() | {name: value for name, value in known.items() if value is not None}
    brings = {name: part * run_seconds for name, part in found.brings.items()}
    return finding(title, said, found.remedy, seconds, **details, brings=brings)


def finding(
    title: str, said: str, remedy: str, lost: float = 0.0, about: About | None = None, **details: object
) -> RuleResult:
    """Returns a finding of no rule. `lost`: an estimate of the time lost, in seconds; 0 if there is none."""
    return RuleResult(
        rule=ACCOUNT,
        question="Where did the time go?",
        description="A large part of the run's time that no rule explains.",
        recommendation=remedy,
        status=Status.FOUND,
        finding=said,
        triggered=1,
        violations=0,
        datapoints=0,
        parameters={},
        about=about or About(title, topic=f"account: {title}"),
        seconds_lost=lost,
        details=details,
    )
