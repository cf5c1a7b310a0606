"""The layout of a ledger file, shared by the writer (training process) and the reader (exporter).

    header    4096 bytes      the writer: run, rank, pid, start, framework; the file's size
    counters  doubles         totals that only grow, histograms, one block per data loader
    workers   doubles         one slot per data-loading worker, written by the worker that holds its lock
    ring      doubles         the last RING_RECORDS finished steps

All values are little-endian doubles (exact for counts up to 2**53), all times are seconds. Moments are
on the writer's `time.perf_counter()`; add the header's clock offset for seconds since the epoch.

A step record has running totals of its phase and of the components, so one write updates the record and
the counters. `COUNTER_RECORDED` is stored after the record is complete: it is the sequence number up to
which records can be trusted.
"""

from __future__ import annotations

from struct import Struct

MAGIC = b"TWLEDGER"
VERSION = 1
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
RUN_AT, RUN_BYTES = 256, 512  # texts: UTF-8, ended by NUL
FRAMEWORK_AT, FRAMEWORK_BYTES = 768, 64
FRAMEWORK_VERSION_AT, FRAMEWORK_VERSION_BYTES = 832, 64

# -- counters: indices of doubles after the header ---------------------------------------------------
COUNTERS_AT = HEADER_BYTES
COUNTER_RECORDED = 0  # step records completed so far
COUNTER_ENDED = 1  # when the run ended cleanly, epoch; 0: it did not
COUNTER_FIRST_STEP = 2  # when the first step started, writer's clock; 0: none
COUNTER_PHASE_STEPS = 4  # one per phase; for the newest record's phase, the record has the valid totals
COUNTER_PHASE_SECONDS = 8
COUNTER_PHASE_SQUARES = 12
COUNTER_OUTSIDE = 16  # component seconds that belong to no finished step
COUNTER_DEVICE = 32  # component seconds on the device, if a framework integration measures them
COUNTER_STEP_HISTOGRAM = 48  # one block of STEP_BUCKETS per phase
STEP_BUCKETS = len(STEP_BOUNDS) + 1
COUNTER_LOADERS = COUNTER_STEP_HISTOGRAM + len(PHASES) * STEP_BUCKETS  # one block per phase
LOADER_KNOWN, LOADER_WORKERS, LOADER_PIN_MEMORY, LOADER_PREFETCH, LOADER_QUEUE, LOADER_WAIT_SUM = range(6)
LOADER_BATCH_SIZE = 6  # 0: unknown, as in ledgers of earlier versions
LOADER_WAIT_COUNTS = 8
WAIT_BUCKETS = len(WAIT_BOUNDS) + 1
LOADER_DOUBLES = LOADER_WAIT_COUNTS + WAIT_BUCKETS
COUNTER_DOUBLES = COUNTER_LOADERS + len(PHASES) * LOADER_DOUBLES
UNKNOWN = -1.0  # a loader's setting that was not given

# -- worker slots ------------------------------------------------------------------------------------
WORKERS_AT = COUNTERS_AT + -(-COUNTER_DOUBLES * 8 // 4096) * 4096
WORKER_SLOTS = 128
WORKER_SECONDS, WORKER_CPU_SECONDS, WORKER_CORE_WAIT_SECONDS = 0, 1, 2
WORKER_COUNTS = 3
FETCH_BUCKETS = len(FETCH_BOUNDS) + 1
WORKER_DOUBLES = 32

# -- ring --------------------------------------------------------------------------------------------
RING_AT = WORKERS_AT + WORKER_SLOTS * WORKER_DOUBLES * 8
RING_RECORDS = 8192
# index (from 1), start, duration, phase, how many of the records so far are of other phases,
# running seconds and squares of the phase, running seconds of the nine components
RECORD = Struct("<7d9d")
RECORD_BYTES = RECORD.size
FILE_BYTES = RING_AT + RING_RECORDS * RECORD_BYTES

# -- locks: byte ranges of the file, held with fcntl.lockf -------------------------------------------
LOCK_ALIVE = 0  # the training process, while it lives
LOCK_WORKERS = 1  # + slot: the worker that writes the slot

assert WORKER_COUNTS + FETCH_BUCKETS <= WORKER_DOUBLES
