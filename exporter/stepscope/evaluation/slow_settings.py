"""Finds settings of PyTorch that cost time, from what hooks say about them and what they cost."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from stepscope.common.words import count, duration, number, share
from stepscope.evaluation.account import HOST, Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.places import MAIN_THREADS, Place, places
from stepscope.evaluation.unexplained import (
    LargePart,
    finding,
    is_busy,
    large_in_loop,
    loop,
    needs_no_tensors,
    of_part,
    own_places,
    own_share,
)
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.data_loading import IN_WORKERS
from stepscope.rules.parts.topics import About
from stepscope.training.layout import (
    ANOMALY_DETECTION,
    DENORMALS,
    DOUBLES,
    EAGER,
    FIRST_LOOK,
    FIRST_OPERATORS,
    FORWARD_UNUSED,
    FORWARD_USED,
    FRAMEWORKS,
    GRAPH_PYTHON,
    HALVES,
    JAX_PYTHON,
    LEAVES,
    LOOKS_EVERY,
    MOST_OPERATORS,
    ONE_SAMPLE,
    OPERATORS,
    PADDING,
    PHASES,
    PROFILED,
    SYNCHRONISED,
    TENSORS,
    THREADS,
    UNTRAINED,
    UNUSED_PARAMETERS,
)

TOO_MANY = 2.0  # threads that compute per core: one of each worker, and as many of the training process
IDLE = 1 / 3  # of the cores: with fewer, more threads cannot help
MORE = 0.1  # cores, than a whole number: processes that use them are not pinned
COMPUTES = 0.5  # of the loop: with less, more threads hardly help; of its steps: faster numbers hardly do
MANY_DENORMALS = 0.1  # of the numbers of a sample
LOOKED_AT, MOSTLY = 4 * FIRST_LOOK, 0.75  # steps, for three looks at settings, and the share of the looks
MANY_TENSORS = 100  # that an optimizer updates one by one
OPTIMIZES = 0.2  # of the run: healthy steps spend less on their optimizer
MANY_OPERATORS, MANY_PER_LEAF = 1000, 10  # of a step, and per parameter: deep models have 1 to 5
SMALL = 40e-6  # seconds: twice what PyTorch takes for an operator and its gradient, whatever they compute
IN_NO_TIME = 2e-6  # seconds: PyTorch needs more for any operator that it records for a gradient
GROWN, CERTAIN = 4.0, 8.0  # times the operators of the first look: sequences of different lengths differ less
LONGER = 3.0  # times what usually takes as long: an optimizer's step, or a forward pass
GRADIENT = 2.0  # times its forward pass: what a backward pass usually takes
OPTIMIZER, FORWARD, BACKWARD, COMMUNICATION, OWN = (
    Key("train", name) for name in ("optimizer", "forward", "backward", "communication", HOST)
)
Parts = tuple[Key, ...]
PASSES: Parts = (FORWARD, BACKWARD)
UNPIN = (
    "Give each process cores of its own. What it starts, such as loader workers, inherits those that it may "
    "use (`os.sched_getaffinity(0)`). Look for taskset, numactl, OMP_PROC_BIND, KMP_AFFINITY, Slurm’s "
    "--cpus-per-task, or a library that pins."
)
START_LATER = (
    "Start fewer of these processes, give them a low priority (`os.nice(19)`), or run them before or after "
    "the training, or on cores of their own."
)
STACK_TRACES = "traceback.format_stack"  # a function that autograd calls per operator to detect anomalies
SWITCH_OFF = "Switch it off once the error is found: it keeps a stack trace of every operation."
IN_BULK = (
    "Compute the whole batch with few operators instead of a loop (broadcasting, `torch.bmm`, `torch.vmap`), "
    "or let `torch.compile` join them. Small operators cost their call, whatever they compute."
)
DETACH = (
    "Detach what is kept from one step to the next: `state = state.detach()`, `total += loss.item()`. A "
    "graph that needs `retain_graph=True` in each step usually contains the steps before."
)
FLUSH = (
    "Call `torch.set_flush_denormal(True)` before training: numbers below 1e-38 become 0. CPUs take several "
    "times as long to compute with them. Or scale the data: they come from tiny gradients."
)
RETAINS = re.compile(r"retain_graph\s*=\s*True")
GO_BACK_ONCE = (
    "Add up the losses, and go back once: `(a + b).backward()`. Each backward pass through a graph that is "
    "kept (`retain_graph=True`) also goes through what the losses have in common."
)
STACK = (
    "Train on batches: `batch_size` of the DataLoader, or `torch.stack` before the model is called. Such an "
    "operator takes hardly longer for 32 samples than for one."
)
EAGERLY = "Eager execution"
OF_THAT = "; how much of that it costs is not known."
# The gauge of what graphs call, the framework, its graph, and how a script calls Python in one.
PYTHON_IN_GRAPHS = (
    (GRAPH_PYTHON, "TensorFlow", "graph", "`tf.py_function`, `tf.numpy_function`"),
    (JAX_PYTHON, "JAX", "compiled function", "`jax.pure_callback`, `io_callback`, `jax.debug.callback`"),
)
SPARSE_ALREADY = "torch.optim.sparse_adam."  # functions that update only the rows of a batch
UPDATE_LESS = (
    "Update less: embeddings of large tables with sparse gradients (`sparse=True` and SparseAdam), larger "
    "batches or accumulated gradients, and `fused=True`."
)
COMPUTE_WITH_TENSORS = (
    "Compute with tensors on whole batches instead of Python and NumPy, or in the data set, before the model "
    "is called. What never changes can be kept."
)
RECORD_LESS = (
    "Call the model under `torch.no_grad()` where nothing is learned from its result, and evaluate every N "
    "steps or epochs. If only the result of the last pass is needed, call the model once."
)
AT_ONCE = (
    "Let the optimizer update all tensors at once: `fused=True` or `foreach=True`, and one parameter group "
    "for all tensors with the same settings."
)
RECOMPUTES = "torch.utils.checkpoint."  # functions that compute forward passes again in backward passes
SPARE = 0.5  # of the memory: with more in use, it may be needed
KEEP_ACTIVATIONS = (
    "Keep activations as far as memory allows: `gradient_checkpointing=False`, or `torch.utils.checkpoint` "
    "for fewer layers."
)
CALLS = (".backward", ".step", ".apply_updates")  # functions of libraries that do not begin with "torch."
CALL_LESS = {
    "backward": "Do this every N steps instead of in each backward pass, or with tensors on the device. "
    "Hooks run for each gradient.",
    "optimizer": "Update all tensors at once (`torch._foreach_add_` and others, or an optimizer of PyTorch "
    "with `fused=True`), without loops in Python and without reading values.",
}


class _Run:
    """A run whose account is known. Its parts are shares of the run, 0..1."""

    def __init__(self, analysis: Analysis, account: Account, seconds: float) -> None:
        self.analysis, self.account, self.seconds = analysis, account, seconds
        self.large, self.is_busy = large_in_loop(account, analysis), is_busy(analysis)
        self.forward, self.backward, self.optimizer, self.own = (
            account.share(*key) for key in (FORWARD, BACKWARD, OPTIMIZER, OWN)
        )
        self.passes, self.computing = self.forward + self.backward, account.useful_share
        self.in_steps = sum(map(account.share, PHASES))
        self.in_no_graph = max(self.optimizer, self.backward - LONGER * self.forward)  # without need
        self.computes_in_loop = self.computing >= max(COMPUTES * loop(account), self.large)
        self.mostly_computes = self.computing >= max(COMPUTES * account.share(FORWARD.part), self.large)
        # What a rank waits for others, beyond the one that communicates least, does not count.
        self.communication = min(account.by_rank(*COMMUNICATION).values(), default=0.0) / seconds
        self.of_tensorflow = analysis.framework.startswith("tensorflow")
        counts = [one.count for one in analysis.steps if one.phase == FORWARD.part]
        self.steps, self.steps_of_a_rank = sum(counts), max(counts, default=0)

    def gauge(self, name: str) -> float:
        return self.analysis.gauges.get(name, 0.0)

    def seconds_with_a_core(self, part: float) -> float:
        """Returns the seconds of a part of training steps in which main threads did not wait for a core."""
        waited = sum(thread.train_core_wait_seconds for thread in self.analysis.main_threads)
        spent = self.account.share(FORWARD.part) * self.account.seconds
        return part * self.account.seconds * (max(1 - waited / spent, 0.0) if spent else 1.0)

    def leaves(self, key: Key) -> list[Leaf]:
        """Returns the leaf of a part of steps, if a framework computes in it; [] if the script itself may.

        A model in NumPy has passes of its own, which its script marks. PyTorch may only load its data.
        """
        name = self.analysis.framework
        looked = name.startswith("pytorch") and self.steps_of_a_rank > FIRST_LOOK
        if not name.startswith(tuple(FRAMEWORKS.values())) or (looked and not self.gauge(OPERATORS)):
            return []
        return [leaf for leaf in self.account.leaves if leaf.key == key]

    def found(
        self, parts: Parts, lost: float, remedy: str, said: str, title: str = "", places: Sequence[str] = ()
    ) -> RuleResult:
        """Returns a finding about the first of these parts. Each lost as much of its time."""
        spent = [self.account.share(*part) for part in parts]
        brings = {
            part.component: lost * each / sum(spent) for part, each in zip(parts, spent, strict=True) if each
        }
        brings.pop(parts[0].component, None)
        large = LargePart(parts[0], lost, remedy, said, title, brings=brings, places=places)
        return of_part(large, self.seconds)


class _Setting(NamedTuple):
    """A setting that costs a part of the run."""

    gauge: str
    parts: Parts  # which it makes longer
    cost: Callable[[_Run, float], float]  # of the run, 0..1, by the value of the gauge
    says: str  # "{part}" and "{number}" are the value
    remedy: str
    title: str = ""  # instead of that of the first part


class _Unknown(NamedTuple):
    """A setting of which nobody knows what it costs."""

    title: str
    is_on: Callable[[_Run], float]
    says: str  # "{}": how many tensors
    remedy: str


KNOWN = (
    _Setting(  # once would do
        SYNCHRONISED,
        (COMMUNICATION,),
        lambda run, passes: run.communication * (1 - 1 / passes) if passes >= 2 else 0.0,
        "Ranks exchange gradients in each of {number} backward passes per step",
        "Put all but the last forward and backward pass of a step into `with model.no_sync():`, so that "
        "ranks exchange the sum of the gradients once.",
    ),
    _Setting(  # the other half of the passes leads to these gradients, and may lead to others
        UNTRAINED,
        (BACKWARD,),
        # Each rank may update its shard of the parameters with the gradients of all (ZeRO).
        lambda run, part: (part - 1 + 1 / max(run.analysis.ranks, 1)) * run.backward / 2,
        "No optimizer uses {part} of the gradients: none has their parameters, or they are cleared first",
        "Switch gradients off for what a pass does not train: `backbone.requires_grad_(False)`, `.detach()` "
        "for what a generator made, or `torch.no_grad()`. The backward pass then ends before it. What never "
        "changes can be kept.",
        "Gradients for nothing",
    ),
    _Setting(
        PADDING,
        PASSES,
        lambda run, part: part * run.passes,
        "{part} of a batch are positions that are padding in all of its samples",
        "Pad each batch to its own longest sample, in the collate function (`padding=True` of a tokenizer, "
        "DataCollatorWithPadding), and batch similar lengths. A compiled model needs few lengths.",
        "Padding",
    ),
    *(
        _Setting(
            gauge,
            (FORWARD,),
            lambda run, seconds: min(seconds / run.seconds, run.in_steps),  # several run at once
            f"It is spent in functions of Python that {graph}s call ({calls})",
            f"Write them with operations of {framework}, which a {graph} runs without Python, or call them "
            f"every N steps, outside the {graph}.",
        )
        for gauge, framework, graph, calls in PYTHON_IN_GRAPHS
    ),
)
UNKNOWN = (
    _Unknown(
        "A profiler that is left on",  # hooks look at steps 20, 40, 80, and so on
        lambda run: run.steps_of_a_rank >= LOOKED_AT and run.gauge(PROFILED) >= MOSTLY,
        "The script's own PyTorch profiler ran in most steps",
        "Profile a few steps: `torch.profiler.schedule` in the script, or `stepscope run --profile 20:27`, "
        "which changes no line.",
    ),
    _Unknown(
        "A search for unused parameters",
        lambda run: run.analysis.gauges.get(UNUSED_PARAMETERS) == 0,
        "DistributedDataParallel searches for unused parameters in every step (find_unused_parameters), and "
        "there are none",
        "Remove `find_unused_parameters=True`: each step searches the whole graph, and finds none. A model "
        "whose branches change needs it.",
    ),
    _Unknown(
        "Double precision",
        lambda run: run.gauge(DOUBLES) * run.mostly_computes,
        "The optimizer updates {} of float64",
        "Convert data and model to float32 (`.float()`) unless they need more: arrays of NumPy are float64. "
        "CPUs compute half as fast with it, and most GPUs much slower.",
    ),
    _Unknown(
        "Half precision on a CPU",
        lambda run: run.gauge(HALVES) * run.mostly_computes,
        "The optimizer updates {} of float16 or bfloat16, which take several times as long as float32 here",
        "Convert data and model to float32 (`.float()`, `dtype=torch.float32`) to train on this CPU: it "
        "computes several times as long in half precision.",
    ),
    _Unknown(
        EAGERLY,
        lambda run: run.gauge(EAGER) and run.computing >= run.large,
        "TensorFlow runs each operation by itself (run_eagerly)",
        "Remove `run_eagerly=True` from `compile`, or `tf.config.run_functions_eagerly(True)`: they are for "
        "debugging. A graph runs many operations in one call.",
    ),
    _Unknown(
        EAGERLY,
        lambda run: run.of_tensorflow and run.in_no_graph >= run.large and not run.gauge(EAGER),
        "TensorFlow runs each operation of a step by itself",
        "Put the whole step into one function with `@tf.function`: forward pass, gradients, from one call of "
        "the tape for all variables, and the optimizer's step. A graph runs many operations in one call.",
    ),
)


def slow_settings(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields a finding per setting that costs time. It has an estimate only where that was measured."""
    if analysis.account is None or not analysis.run_seconds:
        return
    run = _Run(analysis, analysis.account, analysis.run_seconds)
    yield from _anomaly_detection(run)
    on = [each for each in UNKNOWN if each.is_on(run) >= 1]
    computing = f"Computing took {share(run.computing, 1.0)} of the run{OF_THAT}"
    for title, is_on, says, remedy in on:
        said = says.format(count(int(is_on(run)), "tensor"))
        yield finding(title, f"{said}. {computing}", remedy)
    for gauge, parts, cost, says, remedy, title in KNOWN:
        value = run.gauge(gauge)
        if (lost := cost(run, value)) >= run.large:
            said = says.format(part=share(value, 1.0), number=number(round(value)))
            found = run.found(parts, lost, remedy, said, title)
            shared = {"shared_seconds": lost * run.seconds} if gauge == UNTRAINED else {}
            yield replace(found, details=found.details | shared)
    passes = list(_growing_graph(run)) or list(_small_operators(run))
    yield from passes
    alone = list(_one_sample(run)) if not passes else []
    yield from alone
    if not alone and not any(each.title == EAGERLY for each in on):  # which explain what is long
        if not passes:
            unused = list(_unused_results(run)) or list(_without_tensors(run))
            yield from unused or _forward_alone(run)
            yield from list(_kept_graphs(run)) or _called(BACKWARD, run)
            yield from _computed_again(run)
        yield from list(_optimizer(run)) or _called(OPTIMIZER, run)
    yield from _threads(run)


def _anomaly_detection(run: _Run) -> Iterator[RuleResult]:
    """Yields that anomaly detection is on. It costs at least what forward passes spend on stack traces."""
    if not run.gauge(ANOMALY_DETECTION):
        return
    is_on = "`torch.autograd.set_detect_anomaly` is on"
    lines = run.account.whole(*FORWARD).lines
    kept = sum(line.total for line in lines if line.library.endswith(STACK_TRACES))
    lost = run.forward * kept / sum(line.total for line in lines) if kept else 0.0
    if lost >= run.large:
        spent = share(lost, run.forward)
        evidence = f"{is_on}, and forward passes spent {spent} of their time on stack traces"
        found = run.found((FORWARD,), lost, SWITCH_OFF, evidence, "Anomaly detection")
        yield replace(found, details=found.details | {"shared_seconds": (run.passes - lost) * run.seconds})
    else:
        said = f"{is_on}. Both passes took {share(run.passes, 1.0)} of the run{OF_THAT}"
        yield finding("Anomaly detection", said, SWITCH_OFF)


def _growing_graph(run: _Run) -> Iterator[RuleResult]:
    """Yields that backward passes go through more and more operators. Costs what exceeds the first one.

    A graph with all steps before it grows with their number; one of lengths that differ does not.
    """
    first, now, leaves = map(run.gauge, (FIRST_OPERATORS, OPERATORS, LEAVES))
    doubled = math.floor(math.log2(max(min(run.steps_of_a_rank, LOOKS_EVERY) / FIRST_LOOK, 1)))
    least = max(2.0**doubled / 2, GROWN)
    if now + leaves >= MOST_OPERATORS:  # there may be more
        least = min(least, CERTAIN)
    if first and now >= least * first and run.backward >= run.large:
        lost = run.backward * (1 - 2 * first / (first + now))  # on average it was half way between both
        evidence = (
            f"The graph grew from {number(int(first))} to {number(int(now))} operators or more: each "
            "backward pass also goes through steps before"
        )
        yield run.found((BACKWARD,), lost, DETACH, evidence)


def _optimizer(run: _Run) -> Iterator[RuleResult]:
    """Yields that the optimizer's steps take long: of many tensors, denormal numbers, or unknown reasons."""
    tensors, denormal, spent = int(run.gauge(TENSORS)), run.gauge(DENORMALS), run.optimizer
    if spent < OPTIMIZES:
        return
    if denormal >= MANY_DENORMALS and spent > run.passes > 0:
        evidence = f"{share(denormal, 1.0)} of the numbers that it updates are below 1e-38, but not 0"
        yield run.found((OPTIMIZER,), spent, FLUSH, evidence)
    elif tensors >= MANY_TENSORS:
        yield run.found((OPTIMIZER,), spent, AT_ONCE, f"It updates {number(tensors)} tensors one by one")
    elif spent > LONGER * run.passes > 0 and not run.analysis.uses_gpus:
        mostly = [place.line.library for place in run.account.whole(*OPTIMIZER).places[:1]]
        if not any(called.startswith(SPARSE_ALREADY) for called in mostly):
            times = number(round(spent / run.passes, 1))
            evidence = f"It takes {times} times as long as forward and backward pass"
            yield run.found((OPTIMIZER,), spent, UPDATE_LESS, evidence)


def _unused_results(run: _Run) -> Iterator[RuleResult]:
    """Yields that most of the forward time is for results that no backward pass goes through.

    What is not used in each step as in the looks is not counted: a look may be where the script evaluates.
    """
    used, unused = run.gauge(FORWARD_USED), run.gauge(FORWARD_UNUSED)
    if unused <= used or not run.steps:
        return
    part = unused / (used + unused)
    lost = min(part * run.forward, run.forward - used * run.steps / run.account.seconds)
    if lost >= run.large:
        evidence = (
            "Autograd records forward passes of the model that no backward pass follows: "
            f"{share(part, 1.0)} of the forward time in the steps that hooks looked at"
        )
        yield run.found((FORWARD,), lost, RECORD_LESS, evidence, "Forward passes without a backward pass")


def _forward_alone(run: _Run) -> Iterator[RuleResult]:
    """Yields own code in forward passes that take much longer than backward passes.

    These usually take longer. Frozen modules and teachers have no backward pass, but are no own code.
    """
    own = sum(leaf.share * own_share(leaf) for leaf in run.leaves(FORWARD))
    is_long = run.forward > LONGER * run.backward > 0 and own >= max(run.large, run.forward / 2)
    if is_long and not run.analysis.uses_gpus:
        times = number(round(run.forward / run.backward, 1))
        evidence = (
            f"The forward pass takes {times} times as long as the backward pass, and usually takes less: "
            "these lines run Python, or compute what no backward pass follows"
        )
        yield run.found((FORWARD,), min(own, run.forward - run.backward), COMPUTE_WITH_TENSORS, evidence)


def _kept_graphs(run: _Run) -> Iterator[RuleResult]:
    """Yields that backward passes keep their graph, and take much longer than one pass usually takes."""
    usual = GRADIENT * (run.forward + run.own)
    for leaf in run.leaves(BACKWARD):
        kept = leaf.share_in(lambda line: RETAINS.search(line.text) is not None)
        if kept > LONGER * usual > 0 and (lost := kept - usual) >= run.large:
            times = number(round(kept / usual, 1))
            evidence = (
                f"Backward passes that keep their graph take {times} times as long as one pass usually does "
                "after such a forward pass"
            )
            yield run.found((BACKWARD,), lost, GO_BACK_ONCE, evidence)


def _called(key: Key, run: _Run) -> Iterator[RuleResult]:
    """Yields lines of the script that backward passes or optimizers call, such as hooks, if they take long.

    What forward passes run as well is computed again to save memory. Tensors may be what gradients of own
    functions take long for, unless backward passes take much longer than usual.
    """
    known = {place.line.place for leaf in run.account.leaves if leaf.key == FORWARD for place in leaf.places}
    usual = GRADIENT * (run.forward + run.own)
    for leaf in run.leaves(key) if not run.is_busy else ():
        own = [each for each in own_places(leaf) if each.line.place not in known]
        called = [each for each in own if not each.line.library.endswith(CALLS)]
        gradients = [each for each in called if key.component in (each.function, each.line.caller)]
        if not leaf.share > LONGER * usual > 0:
            called = [each for each in called if each not in gradients or needs_no_tensors(each.line)]
        if called and (lost := leaf.share * own_share(leaf, called)) >= run.large:
            evidence = f"{share(lost, leaf.share)} of this part is your own code that it calls"
            remedy = COMPUTE_WITH_TENSORS if called[0] in gradients else CALL_LESS[key.component]
            at = tuple(each.line.place for each in called)
            yield run.found((key,), lost, remedy, evidence, places=at)


def _computed_again(run: _Run) -> Iterator[RuleResult]:
    """Yields that backward passes compute forward passes again to save memory of which much is free."""
    used = [each.memory_max / 100 for each in run.analysis.gpu_use if each.by]
    used = used or [each.memory / each.memory_capacity for each in run.analysis.run_use]
    threads = (thread for thread in run.analysis.main_threads if used and max(used) < SPARE)
    stacks = [
        each for thread in threads for each in thread.stacks if (each.phase, each.component) == BACKWARD
    ]
    again = sum(each.seconds for each in stacks if _is_again(each.functions))
    if again and (lost := run.backward * again / sum(each.seconds for each in stacks)) >= run.large:
        evidence = (
            f"{share(lost, run.backward)} of this part computes activations again "
            f"(`torch.utils.checkpoint`), and the run used at most {share(max(used), 1.0)} of the memory"
        )
        yield run.found((BACKWARD,), lost, KEEP_ACTIVATIONS, evidence, "Activations that are not kept")


def _is_again(functions: Sequence[str]) -> bool:
    """Returns whether a stack is in a forward pass that is computed again, and in no backward pass of it."""
    passes = [name for name in functions if name.startswith((RECOMPUTES, "torch.autograd."))]
    return bool(passes) and passes[-1].startswith(RECOMPUTES)


def _small_operators(run: _Run) -> Iterator[RuleResult]:
    """Yields that forward and backward pass loop over very many, very small operators.

    If the forward pass is too short for that, own code calls most of them, in a loss for example.
    """
    operators, leaves = int(run.gauge(OPERATORS)), int(run.gauge(LEAVES))
    few = operators < max(MANY_OPERATORS, MANY_PER_LEAF * leaves)
    if few or not run.steps or run.passes < run.large or run.is_busy:
        return
    parts, spent, calls = PASSES, run.passes, run.steps * operators
    if run.seconds_with_a_core(run.forward) < IN_NO_TIME * calls and run.own >= run.large:
        parts, spent = (OWN, *parts), spent + run.own
    each = run.seconds_with_a_core(spent) / calls
    if each <= SMALL:
        some = "at least " if operators + leaves >= MOST_OPERATORS else ""
        evidence = (
            f"It and the backward pass go through {some}{number(operators)} operators per step, "
            f"{duration(each)} each: the call of each costs more than what it computes"
        )
        yield run.found(parts, spent, IN_BULK, evidence)


def _one_sample(run: _Run) -> Iterator[RuleResult]:
    """Yields that steps compute with one sample, in operators that are too small for that."""
    operators = int(run.gauge(OPERATORS))
    calls = run.steps * operators
    if not run.gauge(ONE_SAMPLE) or not calls or run.computing < run.large or run.is_busy:
        return
    each = run.seconds_with_a_core(run.passes) / calls
    if each <= SMALL:
        evidence = (
            f"The model gets one sample per pass. Its {number(operators)} operators take "
            f"{duration(each)} each: the call of each costs more than what it computes"
        )
        yield run.found((*PASSES, OPTIMIZER), run.computing, STACK, evidence, "Batches of one sample")


def _without_tensors(run: _Run) -> Iterator[RuleResult]:
    """Yields lines of forward passes that run functions of other libraries, such as NumPy, for long."""
    for leaf in run.leaves(FORWARD) if not run.is_busy else ():
        slow = [each for each in leaf.lines if each.place and needs_no_tensors(each)]
        ran = sum(each.running for each in slow)
        if ran and (lost := leaf.share * ran / sum(each.total for each in leaf.lines)) >= run.large:
            evidence = f"{share(lost, leaf.share)} of this part runs functions that compute with no tensors"
            at = tuple(each.place for each in slow)
            yield run.found((FORWARD,), lost, COMPUTE_WITH_TENSORS, evidence, places=at)


def _threads(run: _Run) -> Iterator[RuleResult]:
    """Yields that more threads compute than there are cores, or far fewer; other processes do not count.

    Processes that share a core while others are idle were pinned to it. Loader workers with one thread each
    are not too many threads: they may sleep most of the time, and no setting makes them fewer threads.
    """
    analysis = run.analysis
    threads, ranks = int(run.gauge(THREADS)), max(analysis.ranks, 1)
    allowed, own, others = (
        sum(getattr(cores, name) for cores in analysis.run_cores) for name in ("allowed", "own", "others")
    )
    if not threads or not own + others > 0:
        return
    of_workers = sum(
        loader["worker_threads"] or 0
        for loader in analysis.loaders
        if (loader["worker_threads"] or 0) > (loader["workers"] or 0)
    )
    wanted = threads * ranks + of_workers
    waited = analysis.core_wait_seconds * own / (own + others)
    is_own = own > others and waited >= analysis.large * run.seconds  # that they wait long
    each, cores = max(1, round(allowed / ranks)), sum(analysis.cores.values())
    of_run, idle = share(waited, run.seconds), allowed - own - others
    is_idle = idle >= IDLE * allowed
    for_a_core = f"The main thread waited {duration(waited)} for a core, {of_run} of the run"
    if wanted > TOO_MANY * allowed and is_own:
        workers = f", {of_workers} of them in loader workers" if of_workers else ""
        said = f"{count(wanted, 'thread')} compute on {count(round(allowed), 'core')}{workers}. {for_a_core}."
        remedies = []
        if threads > each:
            per_process = f"Use {count(each, 'thread')} per process"
            remedies.append(f"{per_process}: OMP_NUM_THREADS={each}, torch.set_num_threads.")
        if of_workers:
            remedies.append(f"Give each worker one thread: {IN_WORKERS}.")
        # Threads of one operator wait for each other: at worst it takes a turn of all threads instead of one.
        computing = run.computing * run.seconds * (1 - allowed / wanted)
        shared = max(computing - waited, 0.0)
        details: dict[str, Any] = {} if of_workers else {"shared_seconds": shared}
        yield finding("Too many threads", said, " ".join(remedies), waited, **details)
    elif is_own and ((is_idle and own <= round(own) + MORE) or allowed <= ranks < cores):
        said = (
            f"{for_a_core}: the run’s processes share {number(round(own, 1))} of {count(cores, 'core')}, and "
            f"may use {number(round(allowed))}."
        )
        yield _taken("Processes on too few cores", said, UNPIN, waited, run)
    elif is_own and (children := _most_of_children(analysis)):
        said = f"{for_a_core}, while processes that it started mostly used them: {children.words}."
        yield _taken("The run’s own processes on its cores", said, START_LATER, waited, run)
    elif 2 * threads * ranks <= allowed and is_idle and run.computes_in_loop and not analysis.uses_gpus:
        said = (
            f"PyTorch computes with {count(threads, 'thread')} per process, and "
            f"{number(round(idle, 1))} of {count(round(allowed), 'core')} are idle. How "
            "much faster more threads are is not known."
        )
        remedy = (
            f"Try OMP_NUM_THREADS={each}, or torch.set_num_threads({each}). torchrun sets one thread per "
            "process unless OMP_NUM_THREADS is set."
        )
        yield finding("Few threads and idle cores", said, remedy)


def _taken(title: str, said: str, remedy: str, waited: float, run: _Run) -> RuleResult:
    """Returns that main threads waited for cores. Late data are an effect, unless they cost much more."""
    costs_less = waited < run.account.share(FORWARD.part, "data_wait") * run.seconds / 2
    about = None if costs_less else About(title, topic=DataStarved.topic, distance=-1)
    return finding(title, said, remedy, waited, about, shared_seconds=0.0)


def _most_of_children(analysis: Analysis) -> Place | None:
    """Returns what other processes of the script did, if they ran longer than its main threads."""
    children = [thread for thread in analysis.threads if thread.role == "child"]
    main = (thread.ran_seconds for thread in analysis.threads if thread.role in MAIN_THREADS)
    if sum(thread.ran_seconds for thread in children) <= sum(main):
        return None
    return next(iter(places(line for thread in children for line in thread.lines)), None)
