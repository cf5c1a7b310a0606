"""Holds what a rank's dump lists: operations of process groups, in the order of the calls."""

from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Operation:
    """One collective, or one send or receive."""

    group: str  # the name of the process group, equal on all its ranks
    description: str  # of the group: "default_pg"
    name: str  # all_reduce, send 0->1
    sequence: int  # number within the group: of collectives, or of sends and receives
    is_p2p: bool
    backend: str  # nccl, gloo
    finished: bool
    started: bool | None  # None: not recorded
    sizes: tuple[tuple[int, ...], ...]  # of the inputs; empty: not known
    types: tuple[str, ...]  # of the inputs
    created: float | None  # seconds since the epoch
    stack: tuple[str, ...]  # "file:line function", innermost first
    call_site: str  # the first of them outside PyTorch; "": not known

    @property
    def elements(self) -> int | None:
        """Returns the elements of all inputs; None if the sizes are not known."""
        return sum(prod(size) for size in self.sizes) if self.sizes else None

    @property
    def kind(self) -> str:
        """Returns the name without its peers: send."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True)
class RankDump:
    """The dump of one rank."""

    rank: int
    file: str
    operations: tuple[Operation, ...]  # in the order of the calls
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ranks by group, as far as recorded
    cut: bool = False  # older operations were overwritten

    @property
    def oldest_unfinished(self) -> Operation | None:
        return next((each for each in self.operations if not each.finished), None)

    @property
    def last_finished(self) -> Operation | None:
        return next((each for each in reversed(self.operations) if each.finished), None)
