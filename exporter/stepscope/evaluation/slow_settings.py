"""Finds settings of PyTorch that cost time, from what hooks say about them and what they cost."""

import math
from collections.abc import Iterator
from dataclasses import replace

from stepscope.common.words import count, duration, number, share
from stepscope.evaluation.account import HOST, Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.places import MAIN_THREADS, Place, places
from stepscope.evaluation.unexplained import (
    LargePart,
    finding,
    is_busy,
    needs_no_tensors,
    of_part,
    own_places,
    own_share,
)
from stepscope.rules.data_starved import DataStarved
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
COMPUTES = 0.5  # of the run: with less, more threads hardly help; of its steps: faster numbers hardly do
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
FIND_NO_MORE = (
    "Remove `find_unused_parameters=True`: each step searches the whole graph, and finds none. A model whose "
    "branches change needs it."
)
IN_BULK = (
    "Compute the whole batch with few operators instead of a loop (broadcasting, `torch.bmm`, `torch.vmap`), "
    "or let `torch.compile` join them. Small operators cost their call, whatever they compute."
)
DETACH = (
    "Detach what is kept from one step to the next: `state = state.detach()`, `total += loss.item()`. A "
    "graph that needs `retain_graph=True` in each step usually contains the steps before."
)
IN_SINGLE = (
    "Convert data and model to float32 (`.float()`) unless they need more: arrays of NumPy are float64. "
    "CPUs compute half as fast with it, and most GPUs much slower."
)
SLOW_TENSORS = {  # what an optimizer updates, and what to do about it
    DOUBLES: ("Double precision", "float64", IN_SINGLE),
    HALVES: (
        "Half precision on a CPU",
        "float16 or bfloat16, which take several times as long as float32 here",
        "Convert data and model to float32 (`.float()`, `dtype=torch.float32`) to train on this CPU: it "
        "computes several times as long in half precision.",
    ),
}
FLUSH = (
    "Call `torch.set_flush_denormal(True)` before training: numbers below 1e-38 become 0. CPUs take several "
    "times as long to compute with them. Or scale the data: they come from tiny gradients."
)
FREEZE = (
    "Switch gradients off for what stays as it is: `backbone.requires_grad_(False)`, or call it under "
    "`torch.no_grad()`. The backward pass then ends before it. Results that never change can be kept."
)
PAD_LESS = (
    "Pad each batch to its own longest sample, in the collate function (`padding=True` of a tokenizer, "
    "DataCollatorWithPadding), and batch similar lengths. A compiled model needs few lengths."
)
STACK = (
    "Train on batches: `batch_size` of the DataLoader, or `torch.stack` before the model is called. Such an "
    "operator takes hardly longer for 32 samples than for one."
)
PROFILE_A_FEW = (
    "Profile a few steps: `torch.profiler.schedule` in the script, or `stepscope run --profile 20:27`, "
    "which changes no line."
)
OF_THAT = "; how much of that it costs is not known."
IN_GRAPHS = (
    "Remove `run_eagerly=True` from `compile`, or `tf.config.run_functions_eagerly(True)`: they are for "
    "debugging. A graph runs many operations in one call."
)
INTO_A_GRAPH = (
    "Put the whole step into one function with `@tf.function`: forward pass, gradients and the optimizer's "
    "step. A graph runs many operations in one call."
)
IN_OPERATIONS = (
    "Write them with operations of {}, which a {} runs without Python, or call "
    "them every N steps, outside the {}."
)
# The gauge of what graphs call, the framework, its graph, and how a script calls Python in one.
PYTHON_IN_GRAPHS = (
    (GRAPH_PYTHON, "TensorFlow", "graph", "`tf.py_function`, `tf.numpy_function`"),
    (JAX_PYTHON, "JAX", "compiled function", "`jax.pure_callback`, `io_callback`, `jax.debug.callback`"),
)
WITHOUT_SYNC = (
    "Put all but the last forward and backward pass of a step into `with model.no_sync():`, so that ranks "
    "exchange the sum of the gradients once."
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
CALLS = (".backward", ".step")  # functions of libraries that do not begin with "torch."
CALL_LESS = {
    "backward": "Do this every N steps instead of in each backward pass, or with tensors on the device. "
    "Hooks run for each gradient.",
    "optimizer": "Update all tensors at once (`torch._foreach_add_` and others, or an optimizer of PyTorch "
    "with `fused=True`), without loops in Python and without reading values.",
}


def slow_settings(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields a finding per setting that costs time. It has an estimate only where that was measured."""
    if analysis.account is not None and analysis.run_seconds:
        yield from _anomaly_detection(analysis, analysis.account, analysis.run_seconds)
        yield from _profiler(analysis, analysis.account)
        yield from _unused_parameters(analysis)
        yield from _synchronised(analysis, analysis.account, analysis.run_seconds)
        yield from _slow_numbers(analysis, analysis.account)
        yield from _untrained(analysis, analysis.account, analysis.run_seconds)
        yield from _padding(analysis, analysis.account, analysis.run_seconds)
        grows = list(_growing_graph(analysis, analysis.account, analysis.run_seconds))
        yield from (eager := list(_eagerly(analysis, analysis.account)))
        yield from _python_in_graphs(analysis, analysis.account, analysis.run_seconds)
        passes = grows or list(_small_operators(analysis, analysis.account, analysis.run_seconds))
        yield from passes
        alone = list(_one_sample(analysis, analysis.account, analysis.run_seconds)) if not passes else []
        yield from alone
        if not (eager or alone):  # which explain what takes longer than it should
            if not passes:
                unused = list(_unused_results(analysis, analysis.account, analysis.run_seconds))
                unused = unused or list(_without_tensors(analysis, analysis.account, analysis.run_seconds))
                yield from unused or _forward_alone(analysis, analysis.account, analysis.run_seconds)
                yield from _called(BACKWARD, analysis, analysis.account, analysis.run_seconds)
            optimizer = list(_optimizer(analysis, analysis.account, analysis.run_seconds))
            yield from optimizer or _called(OPTIMIZER, analysis, analysis.account, analysis.run_seconds)
        yield from _threads(analysis, analysis.account, analysis.run_seconds)


def _anomaly_detection(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that anomaly detection is on. It costs at least what forward passes spend on stack traces."""
    if not analysis.gauges.get(ANOMALY_DETECTION):
        return
    is_on = "`torch.autograd.set_detect_anomaly` is on"
    passes = account.share(*FORWARD) + account.share(*BACKWARD)
    lost = sum(leaf.share * _of_stack_traces(leaf) for leaf in account.leaves if leaf.key == FORWARD)
    if lost >= analysis.large:
        spent = share(lost, account.share(*FORWARD))
        evidence = f"{is_on}, and forward passes spent {spent} of their time on stack traces"
        part = LargePart(FORWARD, lost, SWITCH_OFF, evidence, "Anomaly detection")
        found = of_part(part, run_seconds)
        yield replace(found, details=found.details | {"shared_seconds": (passes - lost) * run_seconds})
    else:
        said = f"{is_on}. Both passes took {share(passes, 1.0)} of the run{OF_THAT}"
        yield finding("Anomaly detection", said, SWITCH_OFF)


def _of_stack_traces(leaf: Leaf) -> float:
    """Returns the share of the leaf's sampled time in which stack traces were kept for autograd."""
    kept = sum(line.total for line in leaf.lines if line.library.endswith(STACK_TRACES))
    return kept / sum(line.total for line in leaf.lines) if kept else 0.0


def _profiler(analysis: Analysis, account: Account) -> Iterator[RuleResult]:
    """Yields that the script's own profiler ran at most looks: hooks look at steps 20, 40, 80, and so on."""
    if _most_steps(analysis) >= LOOKED_AT and analysis.gauges.get(PROFILED, 0.0) >= MOSTLY:
        said = f"The script's own PyTorch profiler ran in most steps. {_computing_took(account)}"
        yield finding("A profiler that is left on", said, PROFILE_A_FEW)


def _unused_parameters(analysis: Analysis) -> Iterator[RuleResult]:
    if analysis.gauges.get(UNUSED_PARAMETERS) == 0:
        said = (
            "DistributedDataParallel searches for unused parameters in every step (find_unused_parameters), "
            "and there are none; how much that costs is not known."
        )
        yield finding("A search for unused parameters", said, FIND_NO_MORE)


def _synchronised(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that ranks exchange gradients in several backward passes per step.

    Once would do. What a rank waits for others beyond the one that communicates least is not counted.
    """
    passes = analysis.gauges.get(SYNCHRONISED, 0.0)
    communicated = min(account.by_rank(*COMMUNICATION).values(), default=0.0) / run_seconds
    if passes >= 2 and (lost := communicated * (1 - 1 / passes)) >= analysis.large:
        evidence = f"Ranks exchange gradients in each of {number(round(passes))} backward passes per step"
        yield of_part(LargePart(COMMUNICATION, lost, WITHOUT_SYNC, evidence), run_seconds)


def _slow_numbers(analysis: Analysis, account: Account) -> Iterator[RuleResult]:
    """Yields that the optimizer updates numbers that take long to compute with, if steps mostly compute."""
    if account.useful_share < max(COMPUTES * account.share("train"), analysis.large):
        return
    for gauge, (title, kind, remedy) in SLOW_TENSORS.items():
        if tensors := int(analysis.gauges.get(gauge, 0)):
            said = f"The optimizer updates {count(tensors, 'tensor')} of {kind}. {_computing_took(account)}"
            yield finding(title, said, remedy)


def _untrained(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that gradients are computed that no optimizer uses: about half of the time of backward passes.

    The other half leads to these gradients, and may lead to others.
    """
    part = analysis.gauges.get(UNTRAINED, 0.0)
    if (lost := part * account.share(*BACKWARD) / 2) >= analysis.large:
        evidence = f"{share(part, 1.0)} of the gradients are of parameters that no optimizer updates"
        found = of_part(LargePart(BACKWARD, lost, FREEZE, evidence, "Gradients for nothing"), run_seconds)
        yield replace(found, details=found.details | {"shared_seconds": lost * run_seconds})


def _padding(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that passes compute with padding that no sample of a batch needs."""
    part, spent = analysis.gauges.get(PADDING, 0.0), account.share(*FORWARD) + account.share(*BACKWARD)
    if (lost := part * spent) >= analysis.large:
        evidence = f"{share(part, 1.0)} of a batch are positions that are padding in all of its samples"
        yield of_part(LargePart(FORWARD, lost, PAD_LESS, evidence, "Padding"), run_seconds)


def _growing_graph(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that backward passes go through more and more operators. Costs what exceeds the first one.

    A graph with all steps before it grows with their number; one of lengths that differ does not.
    """
    first, now, leaves = (analysis.gauges.get(name, 0.0) for name in (FIRST_OPERATORS, OPERATORS, LEAVES))
    steps, spent = _most_steps(analysis), account.share(*BACKWARD)
    doubled = math.floor(math.log2(max(min(steps, LOOKS_EVERY) / FIRST_LOOK, 1)))
    least = max(2.0**doubled / 2, GROWN)
    if now + leaves >= MOST_OPERATORS:  # there may be more
        least = min(least, CERTAIN)
    if first and now >= least * first and spent >= analysis.large:
        lost = spent * (1 - 2 * first / (first + now))  # on average it was half way between both
        evidence = (
            f"The graph grew from {number(int(first))} to {number(int(now))} operators or more: each "
            "backward pass also goes through steps before"
        )
        yield of_part(LargePart(BACKWARD, lost, DETACH, evidence), run_seconds)


def _optimizer(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that the optimizer's steps take long: of many tensors, denormal numbers, or unknown reasons."""
    tensors, spent = int(analysis.gauges.get(TENSORS, 0)), account.share(*OPTIMIZER)
    passes = account.share(*FORWARD) + account.share(*BACKWARD)
    if spent < OPTIMIZES:
        return
    part = analysis.gauges.get(DENORMALS, 0.0)
    if part >= MANY_DENORMALS and spent > passes > 0:
        evidence = f"{share(part, 1.0)} of the numbers that it updates are below 1e-38, but not 0"
        yield of_part(LargePart(OPTIMIZER, spent, FLUSH, evidence), run_seconds)
    elif tensors >= MANY_TENSORS:
        evidence = f"It updates {number(tensors)} tensors one by one"
        yield of_part(LargePart(OPTIMIZER, spent, AT_ONCE, evidence), run_seconds)
    elif spent > LONGER * passes > 0 and not analysis.uses_gpus and not _is_sparse(account):
        evidence = f"It takes {number(round(spent / passes, 1))} times as long as forward and backward pass"
        yield of_part(LargePart(OPTIMIZER, spent, UPDATE_LESS, evidence), run_seconds)


def _is_sparse(account: Account) -> bool:
    """Returns whether the optimizer's steps were mostly seen in one that updates rows of embeddings."""
    found = [place for leaf in account.leaves if leaf.key == OPTIMIZER for place in leaf.places[:1]]
    return any(place.line.library.startswith(SPARSE_ALREADY) for place in found)


def _unused_results(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that most of the forward time is for results that no backward pass goes through.

    What is not used in each step as in the looks is not counted: a look may be where the script evaluates.
    """
    used, unused = (analysis.gauges.get(name, 0.0) for name in (FORWARD_USED, FORWARD_UNUSED))
    steps = sum(one.count for one in analysis.steps if one.phase == FORWARD.part)
    if unused <= used or not steps:
        return
    part, spent = unused / (used + unused), account.share(*FORWARD)
    lost = min(part * spent, spent - used * steps / account.seconds)
    if lost >= analysis.large:
        evidence = (
            "Autograd records forward passes of the model that no backward pass follows: "
            f"{share(part, 1.0)} of the forward time in the steps that hooks looked at"
        )
        yield of_part(
            LargePart(FORWARD, lost, RECORD_LESS, evidence, "Forward passes without a backward pass"),
            run_seconds,
        )


def _forward_alone(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields own code in forward passes that take much longer than backward passes.

    These usually take longer. Frozen modules and teachers have no backward pass, but are no own code.
    """
    spent, follows = account.share(*FORWARD), account.share(*BACKWARD)
    own = sum(leaf.share * own_share(leaf) for leaf in _of_passes(FORWARD, analysis, account))
    if spent > LONGER * follows > 0 and own >= max(analysis.large, spent / 2) and not analysis.uses_gpus:
        evidence = (
            f"The forward pass takes {number(round(spent / follows, 1))} times as long as the backward pass, "
            "and usually takes less: these lines run Python, or compute what no backward pass follows"
        )
        lost = min(own, spent - follows)
        yield of_part(LargePart(FORWARD, lost, COMPUTE_WITH_TENSORS, evidence), run_seconds)


def _called(key: Key, analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields lines of the script that backward passes or optimizers call, such as hooks, if they take long.

    What forward passes run as well is computed again to save memory. Tensors may be what gradients of own
    functions take long for, unless backward passes take much longer than usual.
    """
    known = {place.line.place for leaf in account.leaves if leaf.key == FORWARD for place in leaf.places}
    usual = GRADIENT * (account.share(*FORWARD) + account.share(*OWN))
    for leaf in _of_passes(key, analysis, account) if not is_busy(analysis) else ():
        own = [each for each in own_places(leaf) if each.line.place not in known]
        called = [each for each in own if not each.line.library.endswith(CALLS)]
        gradients = [each for each in called if key.component in (each.function, each.line.caller)]
        if not leaf.share > LONGER * usual > 0:
            called = [each for each in called if each not in gradients or needs_no_tensors(each.line)]
        if called and (lost := leaf.share * own_share(leaf, called)) >= analysis.large:
            evidence = f"{share(lost, leaf.share)} of this part is your own code that it calls"
            remedy = COMPUTE_WITH_TENSORS if called[0] in gradients else CALL_LESS[key.component]
            at = tuple(each.line.place for each in called)
            yield of_part(LargePart(key, lost, remedy, evidence, places=at), run_seconds)


def _eagerly(analysis: Analysis, account: Account) -> Iterator[RuleResult]:
    if analysis.gauges.get(EAGER) and account.useful_share >= analysis.large:
        said = f"Keras runs each operation by itself (run_eagerly). {_computing_took(account)}"
        yield finding("Eager execution", said, IN_GRAPHS)
    elif analysis.framework.startswith("tensorflow") and account.share(*OPTIMIZER) >= analysis.large:
        said = f"TensorFlow runs each operation of a step by itself. {_computing_took(account)}"
        yield finding("Eager execution", said, INTO_A_GRAPH)


def _python_in_graphs(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that graphs, or compiled functions, call functions of Python for long.

    Graphs may call several at once. Together, they cost no more than the time of steps.
    """
    steps = sum(map(account.share, PHASES))
    for gauge, framework, graph, calls in PYTHON_IN_GRAPHS:
        lost = min(analysis.gauges.get(gauge, 0.0) / run_seconds, steps)
        if lost >= analysis.large:
            evidence = f"It is spent in functions of Python that {graph}s call ({calls})"
            remedy = IN_OPERATIONS.format(framework, graph, graph)
            yield of_part(LargePart(FORWARD, lost, remedy, evidence), run_seconds)


def _small_operators(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that forward and backward pass loop over very many, very small operators.

    If the forward pass is too short for that, own code calls most of them, in a loss for example.
    """
    operators, leaves = (int(analysis.gauges.get(name, 0)) for name in (OPERATORS, LEAVES))
    steps = sum(one.count for one in analysis.steps if one.phase == FORWARD.part)
    spent = account.share(*FORWARD) + account.share(*BACKWARD)
    few = operators < max(MANY_OPERATORS, MANY_PER_LEAF * leaves)
    if few or not steps or spent < analysis.large or is_busy(analysis):
        return
    begin, own = FORWARD, account.share(*OWN)
    seconds = account.seconds * _with_a_core(analysis, account)
    if account.share(*FORWARD) * seconds < IN_NO_TIME * steps * operators and own >= analysis.large:
        begin, spent = OWN, spent + own
    each = spent * seconds / (steps * operators)
    if each <= SMALL:
        some = "at least " if operators + leaves >= MOST_OPERATORS else ""
        evidence = (
            f"It and the backward pass go through {some}{number(operators)} operators per step, "
            f"{duration(each)} each: the call of each costs more than what it computes"
        )
        yield of_part(LargePart(begin, spent, IN_BULK, evidence), run_seconds)


def _one_sample(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that steps compute with one sample, in operators that are too small for that."""
    operators, lost = analysis.gauges.get(OPERATORS, 0.0), account.useful_share
    steps = sum(one.count for one in analysis.steps if one.phase == FORWARD.part)
    calls = steps * operators
    if not analysis.gauges.get(ONE_SAMPLE) or not calls or lost < analysis.large or is_busy(analysis):
        return
    spent = account.share(*FORWARD) + account.share(*BACKWARD)
    each = spent * account.seconds * _with_a_core(analysis, account) / calls
    if each <= SMALL:
        evidence = (
            f"The model gets one sample per pass. Its {number(int(operators))} operators take "
            f"{duration(each)} each: the call of each costs more than what it computes"
        )
        yield of_part(LargePart(FORWARD, lost, STACK, evidence, "Batches of one sample"), run_seconds)


def _with_a_core(analysis: Analysis, account: Account) -> float:
    """Returns the share of training steps in which main threads did not wait for a core."""
    waited = sum(thread.train_core_wait_seconds for thread in analysis.main_threads)
    spent = account.share(FORWARD.part)
    return max(1 - waited / (spent * account.seconds), 0.0) if spent else 1.0


def _without_tensors(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields lines of forward passes that run functions of other libraries, such as NumPy, for long."""
    for leaf in _of_passes(FORWARD, analysis, account) if not is_busy(analysis) else ():
        slow = [each for each in leaf.lines if each.place and needs_no_tensors(each)]
        ran = sum(each.seconds.get("running", 0.0) for each in slow)
        if not ran:
            continue
        if (lost := leaf.share * ran / sum(each.total for each in leaf.lines)) >= analysis.large:
            evidence = f"{share(lost, leaf.share)} of this part runs functions that compute with no tensors"
            at = tuple(each.place for each in slow)
            yield of_part(LargePart(FORWARD, lost, COMPUTE_WITH_TENSORS, evidence, places=at), run_seconds)


def _of_passes(key: Key, analysis: Analysis, account: Account) -> list[Leaf]:
    """Returns the leaf of a part of steps, if a framework computes in it; [] if the script itself may do so.

    A model in NumPy has passes of its own, which its script marks. PyTorch may only load its data.
    """
    looked = analysis.framework.startswith("pytorch") and _most_steps(analysis) > FIRST_LOOK
    if not analysis.framework.startswith(tuple(FRAMEWORKS.values())) or (
        looked and not analysis.gauges.get(OPERATORS)
    ):
        return []
    return [leaf for leaf in account.leaves if leaf.key == key]


def _threads(analysis: Analysis, account: Account, run_seconds: float) -> Iterator[RuleResult]:
    """Yields that more threads compute than there are cores, or far fewer; other processes do not count.

    Processes that share a core while others are idle were pinned to it. Loader workers with one thread each
    are not too many threads: they may sleep most of the time, and no setting makes them fewer threads.
    """
    threads, ranks = int(analysis.gauges.get(THREADS, 0)), max(analysis.ranks, 1)
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
    waits = (thread.core_wait_seconds for thread in analysis.main_threads)
    waited = max(waits, default=0.0) * own / (own + others)
    is_long, late = waited >= analysis.large * run_seconds, account.share("train", "data_wait") * run_seconds
    each, cores = max(1, round(allowed / ranks)), sum(analysis.cores.values())
    if wanted > TOO_MANY * allowed and own > others and is_long:
        workers = f", {of_workers} of them in loader workers" if of_workers else ""
        said = (
            f"{count(wanted, 'thread')} compute on {count(round(allowed), 'core')}{workers}. The main thread "
            f"waited {duration(waited)} for a core, {share(waited, run_seconds)} of the run."
        )
        remedies = []
        if threads > each:
            per_process = f"Use {count(each, 'thread')} per process"
            remedies.append(f"{per_process}: OMP_NUM_THREADS={each}, torch.set_num_threads.")
        if of_workers:
            remedies.append("Call torch.set_num_threads(1) in workers, in the loader's worker_init_fn.")
        # Threads of one operator wait for each other: at worst it takes a turn of all threads instead of one.
        computing = account.useful_share * run_seconds * (1 - allowed / wanted)
        details = {} if of_workers else {"shared_seconds": max(computing - waited, 0.0)}
        yield replace(
            finding("Too many threads", said, " ".join(remedies)), seconds_lost=waited, details=details
        )
    elif own > others and is_long and (_are_pinned(own, others, allowed) or allowed <= ranks < cores):
        said = (
            f"The main thread waited {duration(waited)} for a core, {share(waited, run_seconds)} of the run: "
            f"the run’s processes share {number(round(own, 1))} of {count(cores, 'core')}, and may use "
            f"{number(round(allowed))}."
        )
        yield _taken("Processes on too few cores", said, UNPIN, waited, late)
    elif own > others and is_long and (children := _most_of_children(analysis)):
        said = (
            f"The main thread waited {duration(waited)} for a core, {share(waited, run_seconds)} of the run, "
            f"while processes that it started mostly used them: {children.words}."
        )
        yield _taken("The run’s own processes on its cores", said, START_LATER, waited, late)
    elif (
        2 * threads * ranks <= allowed
        and allowed - own - others >= IDLE * allowed
        and account.useful_share >= COMPUTES
        and not analysis.uses_gpus
    ):
        said = (
            f"PyTorch computes with {count(threads, 'thread')} per process, and "
            f"{number(round(allowed - own - others, 1))} of {count(round(allowed), 'core')} are idle. How "
            "much faster more threads are is not known."
        )
        remedy = (
            f"Try OMP_NUM_THREADS={each}, or torch.set_num_threads({each}). torchrun sets one thread per "
            "process unless OMP_NUM_THREADS is set."
        )
        yield finding("Few threads and idle cores", said, remedy)


def _are_pinned(own: float, others: float, allowed: float) -> bool:
    """Returns whether processes fill some of the cores, and leave others idle: a whole number of cores."""
    return allowed - own - others >= IDLE * allowed and own <= round(own) + MORE


def _taken(title: str, said: str, remedy: str, waited: float, late: float) -> RuleResult:
    """Returns that main threads waited for cores. Late data are an effect, unless they cost much more."""
    found = finding(title, said, remedy)
    if waited >= late / 2:
        found = replace(found, about=About(title, topic=DataStarved.topic, distance=-1))
    return replace(found, seconds_lost=waited, details={"shared_seconds": 0.0})


def _most_of_children(analysis: Analysis) -> Place | None:
    """Returns what other processes of the script did, if they ran longer than its main threads."""
    children = [thread for thread in analysis.threads if thread.role == "child"]
    main = (thread.ran_seconds for thread in analysis.threads if thread.role in MAIN_THREADS)
    if sum(thread.ran_seconds for thread in children) <= sum(main):
        return None
    return next(iter(places(line for thread in children for line in thread.lines)), None)


def _most_steps(analysis: Analysis) -> int:
    """Returns the training steps of the rank that took the most of them."""
    return max((one.count for one in analysis.steps if one.phase == FORWARD.part), default=0)


def _computing_took(account: Account) -> str:
    return f"Computing took {share(account.useful_share, 1.0)} of the run{OF_THAT}"
