"""Recognises collective operations in a trace, and what the profiler knows about each.

On a device they are kernels of NCCL, RCCL and oneCCL (and their older kernels), of DeepEP, NVSHMEM and
PyTorch's symmetric memory (multimem). In XLA they are operations. On the CPU they are operators of gloo, MPI
and UCC. An operator `c10d::` or `nccl:` only starts a collective. The arguments are those of PyTorch's
record_param_comms (torch/csrc/profiler/util.cpp).
"""

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from stepscope.runs.malformed import whole

# The first group that matches is the operation.
_DEVICE = (
    re.compile(r"(?:nccl|rccl|oneccl|hccl)(?:Sym)?(?:Dev)?Kernel_?([A-Za-z]+)", re.IGNORECASE),
    # NCCL before 2.5: ncclAllReduceRingLLKernel_sum_f32
    re.compile(r"nccl([A-Z][A-Za-z]+?)(?:Ring|Tree|CollNet)\w*Kernel"),
    re.compile(r"(rccl_main_kernel|mscclKernel)\w*"),
    re.compile(r".*\bdeep_ep::(?:\w+::)*(?:\w*_)?(dispatch|combine|barrier)\b"),
    re.compile(r".*?\bnvshmem[a-z]*_(\w+?)(?:_kernel|_on_stream)?\b"),
    re.compile(
        r".*?\b(?:\w+_shot_|multimem_|symm_mem_)+(all_reduce|all_gather|reduce_scatter|reduce)(?![a-z])"
    ),
    re.compile(r".*?\b(cross_device_reduce)\w*"),  # the all-reduce of vLLM
    re.compile(r"hcom_([A-Za-z]+)_"),  # of Ascend
    # XLA: all-reduce.3, all-gather-start, all-reduce fusion
    re.compile(
        r"(all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-permute|"
        r"collective-broadcast|send|recv)(?:-start|-done|-scatter)?(?:[ .]|$)"
    ),
)
_HOST = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
_SIZES = {
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float16": 2, "int16": 2, "uint16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4, "uint32": 4,
    "double": 8, "long": 8, "float64": 8, "int64": 8, "uint64": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def operation_of(name: str, on_device: bool) -> str | None:
    """Returns the operation of an event that communicates, as "allreduce"; None for any other event."""
    if on_device:
        match = next((found for pattern in _DEVICE if (found := pattern.match(name))), None)
    else:
        match = _HOST.fullmatch(name)
    return _plain(match[1]) if match else None


def _plain(operation: str) -> str:
    return operation.replace("_", "").replace("-", "").lower()


@dataclass(frozen=True, slots=True)
class Described:
    """The profiler's own description of a call, as far as it has one. Calls with the same one share it."""

    operation: str = ""
    group: str = ""  # the name of the process group, unique in its job; "": not known
    description: str = ""  # of the group: "default_pg", "mesh_tp"
    ranks: tuple[int, ...] = ()  # of the group; (): not known, or too many to be written
    size: int | None = None  # ranks of the group
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""
    peer: int | None = None  # the other rank, of a send or a receive

    @property
    def bytes(self) -> int | None:
        """Returns the larger of what goes in and what comes out."""
        known = [count for count in (self.elements_in, self.elements_out) if count is not None]
        width = _SIZES.get(self.dtype.lower())
        return max(known) * width if known and width else None

    def filled_from(self, other: "Described | None") -> "Described":
        """Returns this with what only the other knows."""
        if other is None or other == self:
            return self
        missing = [field.name for field in fields(self) if getattr(self, field.name) in ("", (), None)]
        return _shared(replace(self, **{name: getattr(other, name) for name in missing}))


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective by this rank; microseconds since the origin of its trace."""

    operation: str  # "allreduce"
    device: str  # "gpu0", or "cpu"
    start: float  # it ran from here, waiting for other ranks included
    end: float
    launched: float | None  # when the host called it; None: not known
    sequence: int | None  # counts the calls of the group
    about: Described


@lru_cache(maxsize=1024)
def _shared(about: Described) -> Described:
    """Returns an equal description, so that a large trace holds each only once."""
    return about


def described(arguments: Any) -> Described:
    """Reads what the arguments of an event say about its group and its data."""
    about = Described(
        operation=_plain(str(arguments.get("Collective name") or "")),
        group=_text(arguments.get("Process Group Name")),
        description=_text(arguments.get("Process Group Description")),
        ranks=_ranks(arguments.get("Process Group Ranks")),
        size=_number(arguments.get("Group size")),
        elements_in=_number(arguments.get("In msg nelems")),
        elements_out=_number(arguments.get("Out msg nelems")),
        dtype=_text(arguments.get("dtype")),
        peer=_peer(arguments),
    )
    return _shared(about)


def sequence_of(arguments: Any) -> int | None:
    """Returns the number of a call within its group."""
    return _number(arguments.get("Seq"))


def _peer(arguments: Any) -> int | None:
    """Returns the other rank of the job. "Rank" is no help: of a send, it is the receiver's, in its group."""
    receives = "recv" in str(arguments.get("Collective name"))
    peer = _number(arguments.get("Src Rank" if receives else "Dst Rank"))
    return None if peer == -1 else peer


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> int | None:
    try:
        return None if value is None else whole(value)
    except (ArithmeticError, TypeError, ValueError):
        return None


def _ranks(value: Any) -> tuple[int, ...]:
    """Reads a list, or its text, which PyTorch cuts off with "..." if it is long."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = re.findall(r"\d+", value)
    ranks = [_number(rank) for rank in value] if isinstance(value, list) else []
    return () if None in ranks else tuple(rank for rank in ranks if rank is not None)
