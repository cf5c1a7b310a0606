"""The layout of a file of line samples, shared by the writer (any Python process) and the reader (exporter).

    header    1024 bytes      the writer: run, rank, pid, role; totals
    slots     320 bytes each  a place in the code: how often the main thread was seen there, by its state
    nodes     128 bytes each  a tree of whole stacks: how often a stack of the main thread ended there

All numbers are little-endian. Counts are ticks of TICK_SECONDS. A slot has a checksum, because its writer may
replace a rarely seen place while the file is read. The counts of the old place move to slot 0: all others.
"""

from __future__ import annotations

from binascii import crc32
from struct import Struct

MAGIC = b"SSLINES\0"
VERSION = 1
SUFFIX = ".lines"
TICK_SECONDS = 0.05

# In paths of code that AutoGraph and TorchInductor generate, into files that nobody has written.
GENERATED = ("/__autograph_generated_file", "/torchinductor_", "/torch_geometric.")

ROLES = ("script", "training", "loader worker", "child")
# The main thread had or wanted a core ("running"), or slept in the kernel for one of these.
STATES = ("running", "disk", "lock", "child", "other")
# "": no ledger. "other thread": not of the main thread, but the CPU time of another one, by what it runs.
PHASES = ("", "initialization", "train", "eval", "predict", "global", "finalization", "other thread")
FIRST_PHASE = PHASES.index("train")  # the first of layout.PHASES
FINALIZATION, OTHER_THREAD = PHASES.index("finalization"), PHASES.index("other thread")
# The component: its place in layout.COMPONENTS, from 1. 0: unknown, or outside a step.
# Before the first step, only those of BEFORE_STEPS are distinguished.
BEFORE_STEPS = (5, 8)  # communication, compile
HOST = 10  # in a step, and in no component
TOOL = 11  # with OTHER_THREAD: no thread, but for how long a tool such as a tracer was on
LONG = 128  # is added to a code: of a step that lasts longer than TOO_LONG times the usual
TOO_LONG = 2.0

HEADER_BYTES = 1024
HEADER = Struct("<8s6qd")  # magic, version, file size, slots, nodes, pid, rank (-1: none), start (epoch)
RUN_AT, RUN_BYTES = 256, 512  # the label, UTF-8, ended by NUL; "": not known yet
NUMBERS_AT = 768  # doubles:
# USED: slots. SECONDS: that were sampled. RAN, CORE_WAIT: of the main thread. OWN_CPU: of the sampler itself.
# KNOWN: of SECONDS, those in which the kernel showed what the main thread waited for.
# USED_NODES: of the tree of stacks. LONG_CORE_WAIT: of CORE_WAIT, in steps that became LONG.
# TRAIN: of RAN and CORE_WAIT, in training steps.
ROLE, USED, RANK, TICKS, SECONDS, RAN_SECONDS, CORE_WAIT_SECONDS, OWN_CPU_SECONDS, KNOWN_SECONDS = range(9)
USED_NODES, LONG_CORE_WAIT_SECONDS, TRAIN_RAN_SECONDS, TRAIN_CORE_WAIT_SECONDS = range(9, 13)
NUMBERS = 13

SLOT_BYTES = 320
SLOT = Struct("<qq")  # CRC-32 of the second number and the text; the code: 16 x phase + component (+ LONG)
COUNTS = 2  # the doubles of a slot before its counts
TEXT_AT = 8 * (COUNTS + len(STATES))
TEXT_BYTES = SLOT_BYTES - TEXT_AT
# The fields of a text, one per line. Places are file:line; "": there is none.
FIELDS = ("place", "function", "library", "caller_place", "caller")
SLOTS = 512
WORKER_SLOTS = 128  # of loader workers, of which there may be many
MAX_SLOTS = 4096

NODE_BYTES = 128
# CRC-32 of the second number and the text; the node of the caller, which is an earlier one, or for an
# outermost function -1 - (16 x phase + component); ticks.
NODE = Struct("<qqd")
NODE_TEXT_AT = NODE.size
NODE_TEXT_BYTES = NODE_BYTES - NODE_TEXT_AT
SEPARATOR = "\n"  # between the functions of a whole stack, outermost first
NODES = 2048
WORKER_NODES = 256
MAX_NODES = 16384
LOCK_ALIVE = 0  # the byte that the process locks while it lives


def text_checksum(number: int, text: bytes) -> int:
    """Returns the checksum of a slot or a node, for writer and reader."""
    return crc32(text, number & 0xFFFF)
