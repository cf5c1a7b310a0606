"""An optimizer whose class has the functions of another one, and the script's as its base, as in Horovod."""

from typing import Any

import torch

from horovod.torch.mpi_ops import allreduce_async_, synchronize


class _DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    def __init__(self, groups: Any) -> None:
        super(self.__class__, self).__init__(groups)

    def synchronize(self) -> None:
        values = [value for group in self.param_groups for value in group["params"]]
        for handle in [allreduce_async_(value.grad) for value in values]:
            synchronize(handle)

    def step(self, closure: Any = None) -> Any:
        self.synchronize()
        return super(self.__class__, self).step(closure)


def DistributedOptimizer(optimizer: Any, **_: object) -> Any:  # noqa: N802 - Horovod's name
    functions = dict(_DistributedOptimizer.__dict__)
    return type(type(optimizer).__name__, (type(optimizer),), functions)(optimizer.param_groups)
