"""Collectives whose peers are always 5 ms late and send the same."""

import time
from typing import Any

_results: dict[int, Any] = {}


def init() -> None:
    time.sleep(0.005)


def rank() -> int:
    return 1


def size() -> int:
    return 2


def local_rank() -> int:
    return 1


def allreduce_async_(tensor: Any, **_: object) -> int:
    _results[len(_results)] = tensor
    return len(_results) - 1


def synchronize(handle: int) -> Any:
    time.sleep(0.005)
    return _results[handle]


def allreduce(tensor: Any, **names: object) -> Any:
    return synchronize(allreduce_async_(tensor.clone(), **names))


def allgather(tensor: Any, **_: object) -> Any:
    time.sleep(0.005)
    return tensor


def join() -> int:
    time.sleep(0.005)
    return rank()


def broadcast_(tensor: Any, root_rank: int) -> Any:
    return synchronize(allreduce_async_(tensor, root_rank=root_rank))


def barrier() -> None:
    synchronize(allreduce_async_(None))
