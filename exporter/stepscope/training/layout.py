"""The layout of a ledger file, shared by the writer (training process) and the reader (exporter).

    header    4096 bytes      the writer: run, rank, pid, devices; where the sections are
    counters  doubles         totals that only grow, histograms, one block per data loader
    workers   doubles         one slot per data-loading worker, written by the worker that holds its lock
    ring      doubles         the last RING_RECORDS finished steps
    gauges    name, double    numbers that the training script names itself
    counts    name, double    totals that the training script names itself
    exception text            type and place of what ended the process
    window    doubles, text   a profile window that `stepscope profile` asks for, and the answer
    traces    text            the folder of the traces of profile windows

All values are little-endian doubles (exact for counts up to 2**53), all times are seconds. Moments are
on the writer's `time.perf_counter()`; add the header's clock offset for seconds since the epoch.

The counters are the truth: who reads them late or seldom misses no step. The ring only says more about
steps. A step record has running totals of its phase and of the components, so one write updates
the record and the counters. `COUNTER_RECORDED` is stored after the record is complete: it is the sequence
number up to which records can be trusted. It is stored through a `memoryview` of doubles, which never tore in
3,000,000 reads (`struct.pack_into` tore in 6.3 %).

A later version may append sections, longer items and fields of the header. It says in READABLE_FROM which
readers it still suits.
"""

from __future__ import annotations

from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    Field = tuple[str, int, int, float, bool]

MAGIC = b"SSLEDGER"
VERSION = 1
READABLE_FROM = 1  # the oldest version whose reader understands this layout
SUFFIX = ".ledger"

PHASES = ("train", "eval", "predict", "global")
COMPONENTS = (
    "data_wait",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "host_to_device",
    "checkpoint",
    "compile",
    "gc",
)

# Frameworks as ledgers name them, by module. Keras is last: its module imports one of the others.
FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax", "keras": "keras"}

OPERATIONS = (  # of communication, as torch.distributed names them
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "gradients",  # the reducer waits at the end of the backward pass
    "wait",  # for an operation that was started before
    "init_process_group",
    "other",
)

# Four bounds per decade (the E4 series: 1, 1.8, 3.2, 5.6) give quantiles to within about 30 % at any
# scale; rounded decimals keep the `le` labels short.
_E4 = (1.0, 1.8, 3.2, 5.6)


def _bounds(first: int, last: int) -> tuple[float, ...]:
    """Returns the E4 bounds from 10**first to 10**last seconds, both included."""
    decades = tuple(float(f"{step}e{power}") for power in range(first, last) for step in _E4)
    return (*decades, float(f"1e{last}"))


STEP_BOUNDS = (*_bounds(-3, 3), 1800.0, 3600.0, 7200.0, 14400.0)  # 1 ms .. 4 h
WAIT_BOUNDS = _bounds(-5, 2)  # 10 us (a batch that was ready) .. 100 s
FETCH_BOUNDS = _bounds(-4, 2)  # 100 us .. 100 s

# -- header ------------------------------------------------------------------------------------------
HEADER_BYTES = 4096
# magic, version, file size, pid, rank, local rank (-1: unknown), world size, start (epoch), clock offset
HEADER = Struct("<8sqqqqqqdd")
IDENTITY_AT = HEADER.size
IDENTITY = Struct("<qq")  # READABLE_FROM, attempt
SECTIONS_AT = IDENTITY_AT + IDENTITY.size  # per section: offset, items, bytes per item
SECTION = Struct("<qqq")
# The number of the writer's descriptor of a file without a name, where a worker locks the byte of its slot.
# Other users can open the ledger, and so hold locks on it that no worker could then take.
SLOTS_FD_AT, SLOTS_FD = SECTIONS_AT + 5 * SECTION.size, Struct("<q")
EXCEPTION_OFFSET_AT, EXCEPTION_OFFSET = SLOTS_FD_AT + SLOTS_FD.size, Struct("<q")  # 0: an earlier version
WINDOW_OFFSET_AT, WINDOW_OFFSET = EXCEPTION_OFFSET_AT + EXCEPTION_OFFSET.size, Struct("<q")  # likewise
TRACES_OFFSET_AT, TRACES_OFFSET = WINDOW_OFFSET_AT + WINDOW_OFFSET.size, Struct("<q")  # likewise
# Texts: UTF-8, ended by NUL; "": not known.
RUN_AT, RUN_BYTES = 256, 512  # the label; it may be known only at the first step
FRAMEWORK_AT, FRAMEWORK_BYTES = 768, 64
FRAMEWORK_VERSION_AT, FRAMEWORK_VERSION_BYTES = 832, 64
LAUNCH_KEY_AT, LAUNCH_KEY_BYTES = 896, 128  # equal on all ranks of one launch; "": reruns look alike
DEVICES_AT, DEVICE_BYTES, DEVICES = 1024, 64, 16  # UUIDs of the devices in use, as NVML writes them
NAME_AT, NAME_BYTES = 2048, 512  # of the run, for people: equal in each launch of a script
SCHEDULER_AT, SCHEDULER_BYTES = 2560, 64
SCHEDULER_JOB_AT, SCHEDULER_JOB_BYTES = 2624, 128
NAMESPACE_AT, NAMESPACE_BYTES = 2752, 64  # of Kubernetes
POD_AT, POD_BYTES = 2816, 256
VISIBLE_DEVICES_AT, VISIBLE_DEVICES_BYTES = 3072, 1024  # CUDA_VISIBLE_DEVICES; "-1" if that is set, but empty
MAX_RANK = 2**31 - 1  # also of world sizes, attempts and pids
LONGEST_STEP = 1e9  # seconds: durations and components below it never add up to LARGEST

# The most that a number can be. Beyond it, a ledger is refused: no column could hold it.
MOST = 2.0**53  # of what is counted: up to it, doubles are exact
LATEST = 1e11  # of a moment, in seconds since the epoch or on the writer's clock: in the year 5138
LARGEST = 1e30  # of a total of seconds, of their squares, or of what the script counts

DOUBLE = Struct("<d")

# -- counters: indices of doubles after the header ---------------------------------------------------
COUNTERS_AT = HEADER_BYTES
COUNTER_RECORDED = 0  # step records completed so far
COUNTER_ENDED = 1  # when the run ended cleanly, epoch; 0: it did not
COUNTER_FIRST_STEP = 2  # when the first step started, writer's clock; 0: none
COUNTER_STEP_SINCE = 3  # when the open step began, writer's clock; older than the newest record: none is open
COUNTER_PHASE_STEPS = 4  # one per phase; for the newest record's phase, the record has the valid totals
COUNTER_PHASE_SECONDS = 8
COUNTER_PHASE_SQUARES = 12
COUNTER_OUTSIDE = 16  # component seconds that belong to no finished step
COUNTER_STEP_PHASE = 25  # the phase of the newest step, open or finished
COUNTER_WAIT_SINCE = 26  # when the batch that training waits for was requested, writer's clock; 0: none
COUNTER_GAUGES = 28  # gauges named so far
COUNTER_COMPONENT = 29  # 1 + index of the component that training is in now; 0: none of them
COUNTER_COMPONENT_SINCE = 30  # since when it is, writer's clock; 0: this writer does not say
COUNTER_OPERATION = 31  # 1 + index of the operation that it waits in; 0: unknown
COUNTER_DEVICE = 32  # component seconds on the device, if a framework integration measures them
COUNTER_OWN = 41  # seconds of training steps without communication, then the sum of their squares
COUNTER_OWN_OTHERS = 43  # the same of steps of other phases, which nobody reads
COUNTER_COUNTS = 45  # counts named so far
COUNTER_LOOK_AT = 46  # the writer looks for windows and tools once it has recorded so many steps; NEVER: not
NEVER = 2.0**53
COUNTER_TRACED = 47  # 1 + the last training step of a window that has a trace of operators; 0: none has
COUNTER_STEP_HISTOGRAM = 48  # one block of STEP_BUCKETS per phase
STEP_BUCKETS = len(STEP_BOUNDS) + 1
COUNTER_LOADERS = COUNTER_STEP_HISTOGRAM + len(PHASES) * STEP_BUCKETS  # one block per phase
LOADER_KNOWN, LOADER_WORKERS, LOADER_PIN_MEMORY, LOADER_PREFETCH, LOADER_QUEUE, LOADER_WAIT_SUM = range(6)
LOADER_BATCH_SIZE = 6  # 0: unknown
LOADER_WAIT_COUNTS = 8
WAIT_BUCKETS = len(WAIT_BOUNDS) + 1
LOADER_DOUBLES = LOADER_WAIT_COUNTS + WAIT_BUCKETS
# Component seconds within steps, one block per phase; the newest record's phase has the rest of its totals.
COUNTER_PHASE_COMPONENTS = COUNTER_LOADERS + len(PHASES) * LOADER_DOUBLES
# How each phase's loader starts again, one block per phase: 1 + whether its workers persist (0: not known),
# and seconds of waits for the first batch of each pass but the first.
COUNTER_LOADER_PASSES = COUNTER_PHASE_COMPONENTS + len(PHASES) * len(COMPONENTS)
LOADER_PERSISTENT, LOADER_RESTARTS, LOADER_PASSES = 0, 1, 2
COUNTER_DOUBLES = COUNTER_LOADER_PASSES + len(PHASES) * LOADER_PASSES
UNKNOWN = -1.0  # a loader's setting that was not given


def _of_loaders(name: str, first: int, items: int, most: float, falls: bool) -> tuple[Field, ...]:
    at = range(COUNTER_LOADERS + first, COUNTER_PHASE_COMPONENTS, LOADER_DOUBLES)
    return tuple((name, start, items, most, falls) for start in at)


# Every field of the counters: name, first index, items, the most that each can be, and whether it can fall,
# or be below 0. A counter that is not here (of a later version) is a total of at most LARGEST.
FIELDS: tuple[Field, ...] = (
    ("count of steps", COUNTER_RECORDED, 1, MOST, False),
    ("end", COUNTER_ENDED, 1, LATEST, False),
    ("first step's start", COUNTER_FIRST_STEP, 1, LATEST, True),
    ("open step's start", COUNTER_STEP_SINCE, 1, LATEST, True),
    ("count of steps of a phase", COUNTER_PHASE_STEPS, len(PHASES), MOST, False),
    ("sum of seconds", COUNTER_PHASE_SECONDS, len(PHASES), LARGEST, False),
    ("sum of squared seconds", COUNTER_PHASE_SQUARES, len(PHASES), LARGEST, False),
    ("sum of seconds outside steps", COUNTER_OUTSIDE, len(COMPONENTS), LARGEST, False),
    ("phase", COUNTER_STEP_PHASE, 1, MOST, True),
    ("wait's start", COUNTER_WAIT_SINCE, 1, LATEST, True),
    ("count of gauges", COUNTER_GAUGES, 1, MOST, False),
    ("component", COUNTER_COMPONENT, 1, MOST, True),
    ("component's start", COUNTER_COMPONENT_SINCE, 1, LATEST, True),
    ("operation", COUNTER_OPERATION, 1, MOST, True),
    ("sum of device seconds", COUNTER_DEVICE, len(COMPONENTS), LARGEST, False),
    ("sum of own seconds", COUNTER_OWN, 4, LARGEST, False),
    ("count of counts", COUNTER_COUNTS, 1, MOST, False),
    ("count of steps at which to look", COUNTER_LOOK_AT, 1, MOST, True),
    ("count of traced steps", COUNTER_TRACED, 1, MOST, False),
    ("count of steps of a duration", COUNTER_STEP_HISTOGRAM, len(PHASES) * STEP_BUCKETS, MOST, False),
    *_of_loaders("loader's setting", LOADER_KNOWN, LOADER_QUEUE + 1, MOST, True),
    *_of_loaders("sum of seconds of waits", LOADER_WAIT_SUM, 1, LARGEST, False),
    *_of_loaders("batch size", LOADER_BATCH_SIZE, 1, MOST, True),
    *_of_loaders("count of waits", LOADER_WAIT_COUNTS, WAIT_BUCKETS, MOST, False),
    ("sum of seconds", COUNTER_PHASE_COMPONENTS, len(PHASES) * len(COMPONENTS), LARGEST, False),
    *(
        ("loader's setting", COUNTER_LOADER_PASSES + i * LOADER_PASSES, 1, MOST, True)
        for i in range(len(PHASES))
    ),
)

# -- worker slots ------------------------------------------------------------------------------------
WORKERS_AT = COUNTERS_AT + -(-COUNTER_DOUBLES * 8 // 4096) * 4096
WORKER_SLOTS = 128
WORKER_SECONDS, WORKER_CPU_SECONDS, WORKER_CORE_WAIT_SECONDS = 0, 1, 2
WORKER_COUNTS = 3
FETCH_BUCKETS = len(FETCH_BOUNDS) + 1
WORKER_THREADS = WORKER_COUNTS + FETCH_BUCKETS  # that compute in this worker; 0: not known
WORKER_DOUBLES = 32
WORKER_FIELDS: tuple[Field, ...] = (  # as FIELDS, of the sum of all slots
    ("sum of seconds of fetches", WORKER_SECONDS, WORKER_COUNTS, LARGEST, False),
    ("count of fetches", WORKER_COUNTS, FETCH_BUCKETS, MOST, False),
    ("count of threads", WORKER_THREADS, 1, MOST, False),
)

# -- ring --------------------------------------------------------------------------------------------
RING_AT = WORKERS_AT + WORKER_SLOTS * WORKER_DOUBLES * 8
RING_RECORDS = 8192
# index (from 1), start, duration, phase, how many of the records so far are of other phases,
# running seconds and squares of the phase, running seconds of the nine components
RECORD = Struct("<7d9d")
RECORD_BYTES = RECORD.size
RING_END = RING_AT + RING_RECORDS * RECORD_BYTES

# -- gauges of the training script, of its framework, and of the hooks --------------------------------
GAUGES_AT = RING_END
SCRIPT_GAUGES, FRAMEWORK_GAUGES, HOOK_GAUGES = 32, 16, 32  # at most
# Gauges of the hooks: 1 if autograd's anomaly detection was on, PyTorch's threads in this process, how many
# tensors the optimizer updates one by one, how many in double precision, the bytes of unused parameters that
# were searched for, and at which share of the looks the script's own profiler ran. Then the operators that
# all backward passes of a step go through, and the tensors that get gradients in one of them, counted until
# they are MOST_OPERATORS together; and the operators at the first look. Then the seconds per step of forward
# passes of the trained model that a backward pass goes through, and of those that none does although autograd
# recorded them. Only if not 0: the share of the gradients that no optimizer used for at least 20 steps; how
# many tensors in half precision are updated on a CPU that is slow with it; the share of denormal numbers of
# some tensors and of their state; 1 if the model gets one sample per pass; the share of a batch that is
# padding in each of its samples. From the second look on: how many times as many numbers models get in a step
# as at the first one.
ANOMALY_DETECTION, THREADS, TENSORS = "anomaly_detection", "torch_threads", "optimizer_single_tensors"
UNUSED_PARAMETERS, DOUBLES, PROFILED = "unused_parameter_bytes", "optimizer_double_tensors", "profiler_ratio"
OPERATORS, LEAVES, MOST_OPERATORS = "graph_operators", "graph_leaves", 5000
FIRST_OPERATORS = "graph_operators_at_first"
FORWARD_USED, FORWARD_UNUSED = "forward_used_seconds", "forward_unused_seconds"
UNTRAINED, HALVES, DENORMALS = "untrained_gradient_ratio", "optimizer_slow_half_tensors", "denormal_ratio"
ONE_SAMPLE, PADDING, GROWTH = "single_sample_passes", "padding_ratio", "input_growth_ratio"
# Steps: hooks look at settings at 20, 40, 80, and so on, and at all multiples of 1,280; at slow numbers at 1,
# too. Then they also watch forward passes, and at all multiples of 100: scripts validate every 50, 100 or
# 1,000 steps.
FIRST_LOOK, LOOKS_EVERY, WATCHED_EVERY = 20, 1280, 100
SYNCHRONISED = "synchronised_backward_passes"  # per step, in which ranks exchange gradients (DDP)
SEQUENTIAL_MAPS = "tf_data_sequential_maps"  # of a pipeline of tf.data, that run without parallel calls
# How many threads or processes make batches of a PyDataset ahead of Keras, 1 if they are processes, and how
# many batches they may make at once.
PY_WORKERS, PY_PROCESSES, PY_QUEUE = (
    "keras_py_dataset_workers",
    "keras_py_dataset_processes",
    "keras_py_dataset_queue",
)
# Seconds so far of functions of Python that graphs call, and CPU seconds of those that tf.data calls.
GRAPH_PYTHON, PIPELINE_PYTHON = "tensorflow_python_seconds", "tf_data_python_seconds"
JAX_PYTHON = "jax_python_seconds"  # so far, of those that compiled functions of JAX call
# 1: ranks wait for each other inside of graphs, and graphs that make steps for their batches.
GRAPHS_WAIT, GRAPHS_FETCH = "tensorflow_graphs_wait", "tensorflow_graphs_fetch"
EAGER = "keras_run_eagerly"  # 1: each operation of TensorFlow runs by itself
SETTINGS = frozenset(  # of the hooks: they say nothing of training
    (
        *(ANOMALY_DETECTION, THREADS, TENSORS, DOUBLES, UNUSED_PARAMETERS, PROFILED),
        *(OPERATORS, LEAVES, FIRST_OPERATORS, FORWARD_USED, FORWARD_UNUSED, SEQUENTIAL_MAPS, EAGER),
        *(UNTRAINED, HALVES, DENORMALS, ONE_SAMPLE, PADDING, GROWTH),
        *(PY_WORKERS, PY_PROCESSES, PY_QUEUE, GRAPH_PYTHON, PIPELINE_PYTHON, JAX_PYTHON),
        *(SYNCHRONISED, GRAPHS_WAIT, GRAPHS_FETCH),
    )
)
GAUGES = SCRIPT_GAUGES + FRAMEWORK_GAUGES + HOOK_GAUGES
GAUGE_NAME_BYTES = 56  # UTF-8, ended by NUL
GAUGE = Struct(f"<d{GAUGE_NAME_BYTES}s")  # value, name

FLOPS, PEAK = "flops", "peak_flops"  # a count; a gauge, per second: both give the model FLOPs utilisation

# -- counts of the training script ---------------------------------------------------------------
COUNTS_AT = GAUGES_AT + GAUGES * GAUGE.size
COUNTS = 16
MOST_AT_ONCE = 1e21  # of one count: a step's FLOPs, and the total stays below LARGEST

COUNTS_END = COUNTS_AT + COUNTS * GAUGE.size

# -- the exception that ended the process ------------------------------------------------------------
EXCEPTION_AT = COUNTS_END
EXCEPTION_TYPE_BYTES, EXCEPTION_PLACE_BYTES = 128, 384  # texts as in the header, one after the other
EXCEPTION_BYTES = EXCEPTION_TYPE_BYTES + EXCEPTION_PLACE_BYTES

# -- a profile window on request (training/window_request.py) ----------------------------------------
WINDOW_AT = EXCEPTION_AT + EXCEPTION_BYTES
# The request: its number (0: none), first step, steps, and 1 for Python functions.
WINDOW_REQUEST = Struct("<4d")
WINDOW_ANSWER = Struct("<4d")  # number of the request that is answered, its state, first and last step
WINDOW_TEXT_BYTES = 1024  # the path of the trace, or why there is none
WINDOW_ANSWER_AT = WINDOW_AT + WINDOW_REQUEST.size
WINDOW_TEXT_AT = WINDOW_ANSWER_AT + WINDOW_ANSWER.size
WINDOW_END = WINDOW_TEXT_AT + WINDOW_TEXT_BYTES

# -- the folder of the traces of windows -----------------------------------------------------------------
TRACES_AT, TRACES_BYTES = WINDOW_END, 1024  # its path; one that is longer is missing

FILE_BYTES = -(-(TRACES_AT + TRACES_BYTES) // 4096) * 4096
MAX_FILE_BYTES = 64 << 20  # of a later version

# The sections in the order of the header's table.
SECTIONS = (
    (COUNTERS_AT, COUNTER_DOUBLES, 8),
    (WORKERS_AT, WORKER_SLOTS, WORKER_DOUBLES * 8),
    (RING_AT, RING_RECORDS, RECORD_BYTES),
    (GAUGES_AT, GAUGES, GAUGE.size),
    (COUNTS_AT, COUNTS, GAUGE.size),
)

# -- a byte of the file that is locked with fcntl.lockf ------------------------------------------------
LOCK_ALIVE = 0  # by the training process, while it lives

assert SECTIONS_AT + len(SECTIONS) * SECTION.size <= SLOTS_FD_AT
assert TRACES_OFFSET_AT + TRACES_OFFSET.size <= RUN_AT
assert COUNTER_TRACED < COUNTER_STEP_HISTOGRAM
assert len(SETTINGS) <= HOOK_GAUGES
assert VISIBLE_DEVICES_AT + VISIBLE_DEVICES_BYTES == HEADER_BYTES
assert WORKER_COUNTS + FETCH_BUCKETS <= WORKER_DOUBLES
