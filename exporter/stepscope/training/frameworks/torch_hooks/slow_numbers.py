"""Looks for numbers that a CPU computes slowly: denormal ones, and half precision without fast code."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from threading import Thread
from time import perf_counter

import torch

from stepscope.training.frameworks.torch_hooks.results import is_plain
from stepscope.training.layout import DENORMALS, HALVES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SLOWER = 3.0  # times as long as in float32: half precision is slow
_TENSORS, _NUMBERS = 8, 1024  # of a sample: about 1 ms, with the state that an optimizer has of each tensor


def slow_numbers(optimizer: Any) -> dict[str, float]:
    """Returns the gauges of what an optimizer updates on the CPU."""
    updated = [each for group in optimizer.param_groups for each in group["params"]]
    on_cpu = [each for each in updated if each.device.type == "cpu"]
    sample = on_cpu[:: max(len(on_cpu) // _TENSORS, 1)][:_TENSORS]
    states = [state for each in sample for state in optimizer.state.get(each, {}).values()]
    halves = [each for each in on_cpu if each.dtype in (torch.float16, torch.bfloat16)]
    is_slow = any(_is_slow(each.dtype, each.dim() > 2) for each in halves)
    return {
        HALVES: float(len(halves) * is_slow),
        DENORMALS: _denormal([*sample, *states]),
    }


@cache
def _is_slow(kind: torch.dtype, convolves: bool) -> bool:
    """Returns whether a small layer takes several times as long as in float32: some ms, once.

    Instructions say little: PyTorch has no fast code for gradients of convolutions in float16, for example.
    """
    took: list[float] = []

    def measure() -> None:
        with suppress(Exception):  # not every layer is there for every type
            took.extend(min(_seconds(each, convolves) for _ in range(3)) for each in (kind, torch.float32))

    # In another thread, the script has no modes, hooks and autocast of PyTorch.
    with suppress(RuntimeError):  # the system has no thread left
        thread = Thread(target=measure, name="stepscope half precision")
        thread.start()
        thread.join()
    return len(took) == 2 and took[0] > SLOWER * took[1]


def _seconds(kind: torch.dtype, convolves: bool) -> float:
    """Returns what a small layer and its gradients take."""
    shapes = ((4, 16, 12, 12), (16, 16, 3, 3)) if convolves else ((64, 256), (256, 256))
    inputs, weights = (torch.ones(each, dtype=kind, device="cpu", requires_grad=True) for each in shapes)
    before = perf_counter()
    layer = torch.conv2d if convolves else torch.mm
    torch.autograd.grad(layer(inputs, weights).sum(), (inputs, weights))
    return perf_counter() - before


def _denormal(tensors: Iterable[object]) -> float:
    """Returns the share of the numbers of tensors that are denormal, as a sample of each has it.

    It is 0 if this thread computes with 0 instead of such numbers.
    """
    if not torch.tensor([1e-38], device="cpu") / 16 > 0:
        return 0.0
    whole, found = 0, 0.0
    for one in tensors:
        if (
            is_plain(one)
            and one.device.type == "cpu"
            and one.dtype == torch.float32
            and one.is_contiguous()
            and one.numel()
        ):
            some = one.detach().view(-1)[:: max(one.numel() // _NUMBERS, 1)].abs()
            denormal = (some > 0) & (some < torch.finfo(torch.float32).tiny)
            whole += one.numel()
            found += one.numel() * float(denormal.float().mean())
    return found / whole if whole else 0.0
