"""Floating-point operations of an operator, from the shapes of its inputs in a trace of PyTorch.

A multiplication and an addition are two, as in torch.utils.flop_counter, whose operators these are: matrix
products, convolutions, and the attention of PyTorch. All others take few.
"""

from collections.abc import Callable, Sequence
from json import loads
from math import inf, nan, prod
from typing import Any

Shapes = Sequence[Sequence[int]]
CONCRETE = "Concrete Inputs"  # the argument of an operator: its inputs that are numbers, or lists of them


def flops_of(operator: str, shapes: Any, arguments: dict[str, Any]) -> float | None:
    """Returns the operations of one call; NaN if the trace does not say enough, None for all others."""
    formula = _FORMULAS.get(operator)
    if formula is None:
        return None
    try:
        found = float(formula(shapes, arguments.get(CONCRETE, ())))
    except Exception:  # noqa: BLE001 - a trace may hold anything, such as strides of 0
        return nan
    return found if 0 <= found < inf else nan


def _product(first: int) -> Callable[[Shapes, Sequence[str]], int]:
    """Returns the formula of a matrix product, of which this input is the left one."""

    def formula(shapes: Shapes, _: Sequence[str]) -> int:
        return 2 * prod(shapes[first]) * shapes[first + 1][-1]

    return formula


def _convolution(shapes: Shapes, values: Sequence[str]) -> int:
    inputs, weight = shapes[:2]
    if _is_true(values[6]):  # transposed
        return 2 * inputs[0] * prod(inputs[2:]) * prod(weight)
    settings = (_each(values[index], len(weight) - 2) for index in (3, 4, 5))
    outputs: list[int] = [
        (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for length, kernel, stride, padding, dilation in zip(inputs[2:], weight[2:], *settings, strict=True)
    ]
    return 2 * inputs[0] * prod(outputs) * prod(weight)


def _convolution_backward(shapes: Shapes, values: Sequence[str]) -> int:
    outputs, inputs, weight = shapes[:3]
    places = inputs if _is_true(values[7]) else outputs
    wanted: list[bool] = loads(values[10].lower())[:2]  # the gradients of inputs and of weights
    return sum(wanted) * 2 * inputs[0] * prod(places[2:]) * prod(weight)


def _attention(shapes: Shapes, _: Sequence[str]) -> int:
    query, key, value = shapes[:3]
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])


def _attention_backward(shapes: Shapes, _: Sequence[str]) -> int:
    query, key, value = shapes[1:4]
    return 2 * prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3])


def _is_true(value: str) -> bool:
    return {"True": True, "False": False}[value]


def _each(value: str, dimensions: int) -> list[int]:
    """Returns a setting for each dimension."""
    found = [int(each) for each in loads(value)]
    return found * dimensions if len(found) == 1 else found


_ATTENTION = "aten::_scaled_dot_product_"
_FORMULAS: dict[str, Callable[[Shapes, Sequence[str]], int]] = {
    "aten::mm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::bmm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
for _kind, _where in (("flash", ""), ("efficient", ""), ("cudnn", ""), ("flash", "_for_cpu")):
    _FORMULAS[f"{_ATTENTION}{_kind}_attention{_where}"] = _attention
    _FORMULAS[f"{_ATTENTION}{_kind}_attention{_where}_backward"] = _attention_backward
    _FORMULAS[f"{_ATTENTION}{_kind}_attention_backward{_where}"] = _attention_backward
