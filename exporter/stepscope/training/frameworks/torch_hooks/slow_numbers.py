"""Looks for numbers that a CPU computes slowly: denormal ones, and half precision without instructions."""

from __future__ import annotations

import torch

from stepscope.training.frameworks.torch_hooks.results import is_plain
from stepscope.training.layout import DENORMALS, HALVES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_TENSORS, _NUMBERS = 8, 1024  # of a sample: about 1 ms, with the state that an optimizer has of each tensor


def slow_numbers(optimizer: Any) -> dict[str, float]:
    """Returns the gauges of what an optimizer updates on the CPU."""
    updated = [each for group in optimizer.param_groups for each in group["params"]]
    on_cpu = [each for each in updated if each.device.type == "cpu"]
    sample = on_cpu[:: max(len(on_cpu) // _TENSORS, 1)][:_TENSORS]
    states = [state for each in sample for state in optimizer.state.get(each, {}).values()]
    slow = _slow_halves()
    return {
        HALVES: float(sum(each.dtype in slow for each in on_cpu)),
        DENORMALS: _denormal([*sample, *states]) if _keeps() else 0.0,
    }


def _slow_halves() -> set[torch.dtype]:
    """Returns the types that this x86 CPU has no instructions for. Others are not known."""
    if not getattr(torch.cpu, "_is_avx2_supported", bool)():
        return set()
    has = {
        torch.float16: getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None),
        torch.bfloat16: getattr(torch.cpu, "_is_avx512_bf16_supported", None),
    }
    return {kind for kind, supported in has.items() if supported is not None and not supported()}


def _keeps() -> bool:
    """Returns whether this thread computes with denormal numbers, instead of with 0."""
    return bool(torch.tensor([1e-38], device="cpu") / 16 > 0)


def _denormal(tensors: Iterable[object]) -> float:
    """Returns the share of the numbers of tensors that are denormal, as a sample of each has it."""
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
