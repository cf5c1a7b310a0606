"""The bandwidth of collectives, as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there).

Algorithm bandwidth is the larger of what a rank gives and gets, by the time of the call. Bus bandwidth is
that times a factor of the operation and the ranks, so that it compares with the speed of the link. A call
lasts until the last rank has arrived and the data has moved. So the shortest call is closest to the link.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.runs.model import TransferTime, summed_transfers

GIGA = 1e9
# The first that an operation starts with; factors for n ranks.
_ALL_REDUCE, _MOST, _WHOLE = "2 (n - 1) / n", "(n - 1) / n", "1"
_FACTORS = {
    "allreduce": _ALL_REDUCE,
    "allgather": _MOST,
    "reducescatter": _MOST,
    "alltoall": _MOST,
    "raggedalltoall": _MOST,
    "gather": _MOST,
    "scatter": _MOST,
    "broadcast": _WHOLE,
    "collectivebroadcast": _WHOLE,
    "collectivepermute": _WHOLE,
    "reduce": _WHOLE,
    "send": _WHOLE,
    "recv": _WHOLE,
}


@dataclass(frozen=True)
class Bandwidth:
    """The collectives that move the same data in the same group. Bytes per second; None: not known."""

    transfer: TransferTime  # of all ranks together

    @property
    def mean_seconds(self) -> float:
        """Returns the mean duration of a call, waits for other ranks included."""
        return self.transfer.seconds / self.transfer.calls

    @property
    def algorithm(self) -> float | None:
        """Returns the algorithm bandwidth of the mean call."""
        return self._algorithm(self.mean_seconds)

    @property
    def bus(self) -> float | None:
        """Returns the bus bandwidth of the mean call."""
        return self._bus(self.mean_seconds)

    @property
    def fastest_bus(self) -> float | None:
        """Returns the bus bandwidth of the shortest call."""
        return self._bus(self.transfer.shortest)

    def link_percent(self, link: float) -> float | None:
        """Returns the bus bandwidth of the shortest call in percent of the link's; None if one is unknown."""
        return 100 * self.fastest_bus / link if self.fastest_bus is not None and link else None

    def _algorithm(self, seconds: float) -> float | None:
        return self.transfer.bytes / seconds if self.transfer.bytes and seconds else None

    def _bus(self, seconds: float) -> float | None:
        algorithm = self._algorithm(seconds)
        factor = bus_factor(self.transfer.operation, self.transfer.size)
        return None if algorithm is None or factor is None else algorithm * factor


def bus_factor(operation: str, ranks: int | None) -> float | None:
    """Returns bus bandwidth by algorithm bandwidth; None for other operations, and if it needs the ranks."""
    kind = next((factor for name, factor in _FACTORS.items() if operation.startswith(name)), None)
    if kind == _WHOLE:
        return 1.0
    if kind is None or ranks is None:
        return None
    return (2 if kind == _ALL_REDUCE else 1) * (ranks - 1) / ranks


def bandwidths(transfers: Iterable[TransferTime]) -> list[Bandwidth]:
    """Returns those of all ranks together, the longest first."""
    return [Bandwidth(found) for found in summed_transfers(transfers)]
