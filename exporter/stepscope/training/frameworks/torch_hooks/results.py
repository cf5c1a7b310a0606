"""Finds forward passes whose results no backward pass goes through, although autograd recorded them.

A look watches the forward passes of two training steps, and backward passes until the end of the next one: a
script that counts from 0 evaluates one step later than one that counts from 1. As a rule, what is not gone
through by then is an evaluation without `torch.no_grad()`.
"""

from __future__ import annotations

import sys
from collections import UserDict
from contextlib import suppress

import torch

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.published import publish, publish_found
from stepscope.training.layout import FORWARD_UNUSED, FORWARD_USED, GROWTH, ONE_SAMPLE, PADDING
from stepscope.training.session import of_run, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeGuard

_LOOK = "a look at results"  # why hooks are careful
_WATCHED = 2  # training steps of a look
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_MOST_PASSES, _MOST_TENSORS = 1000, 16  # of a look, and of a result


def is_plain(one: object) -> TypeGuard[torch.Tensor]:
    """Returns whether this is a tensor of no subclass.

    Those run code of their own when asked: what one rank asks those of FSDP2, all ranks must answer.
    """
    return type(one) in _PLAIN


class Results:
    """The looks of this process. Sums are over their steps, so that gauges are seconds per step."""

    def __init__(self) -> None:
        self.watched = False  # whether passes are watched now
        self._steps = 0  # that ended since the look began
        # Each is its seconds, whether a backward pass goes through, and how many numbers the model got.
        self._passes: list[list[Any]] = []
        self._handles: list[Any] = []
        self._watched_steps = 0  # of all looks of the run
        self._used = self._unused = 0.0
        self._samples = 0  # of the largest batch of a look
        self._padding = 0.0  # the largest share of one
        self._first = 0  # of the used passes of the first look: how many numbers models got

    def begin(self) -> None:
        """Begins a look, with the next training step."""
        self.forget()
        if not compiles_backward():
            self.watched = True
            automatic.unusual.add(_LOOK)

    def passed(self, result: object, seconds: float, inputs: Iterable[object] = ()) -> None:
        """Watches what a forward pass with gradients made of its inputs, in these seconds."""
        with suppress(Exception):  # of classes that are not PyTorch's own
            tensors = [one for one in inputs if is_plain(one)]
            self._samples = max(self._samples, *(one.shape[0] for one in tensors if one.dim() > 1), 0)
            functions = _functions(result)
            if functions and len(self._passes) < _MOST_PASSES:
                one = [seconds, False, sum(tensor.numel() for tensor in tensors)]
                for function in functions:
                    self._handles.append(function.register_prehook(_Use(one)))
                self._passes.append(one)

    def came(self, batch: object) -> None:
        """Looks at the padding of a batch from a loader: what no sample of it attends to."""
        with suppress(Exception):
            # No function of the batch is called: a `defaultdict` would get the requested name.
            fields = vars(batch).get("data") if issubclass(type(batch), UserDict) else batch
            mask = dict.get(fields, "attention_mask")  # type: ignore[arg-type]  # TypeError for other kinds
            if is_plain(mask) and mask.dim() == 2 and mask.device.type == "cpu":
                self._padding = max(self._padding, 1.0 - float(mask.bool().any(0).float().mean()))

    def step_ended(self) -> None:
        """Ends a training step, and the look with the one that follows those that were watched."""
        if _LOOK not in automatic.unusual:
            return
        self._steps += 1
        self.watched = self._steps < _WATCHED
        if self._steps > _WATCHED:
            passes = self._passes
            self._watched_steps += _WATCHED
            self._used += sum(seconds for seconds, used, _ in passes if used)
            self._unused += sum(seconds for seconds, used, _ in passes if not used)
            given = sum(numbers for _, used, numbers in passes if used)
            grown = given / self._first if self._first else 0.0
            self._first = self._first or given
            publish_found({ONE_SAMPLE: float(self._samples == 1), PADDING: self._padding, GROWTH: grown})
            self.forget()
            if self._unused:
                steps = self._watched_steps
                publish({FORWARD_USED: self._used / steps, FORWARD_UNUSED: self._unused / steps})

    def forget(self) -> None:
        """Ends a look without a result, and takes its hooks away."""
        automatic.unusual.discard(_LOOK)
        self.watched, self._steps, self._samples, self._padding = False, 0, 0, 0.0
        for handle in self._handles:
            handle.remove()
        self._passes, self._handles = [], []


class _Use:
    """A hook that autograd calls before it goes through a result."""

    __slots__ = ("_one",)

    def __init__(self, one: list[Any]) -> None:
        self._one = one

    def __call__(self, *_: object) -> None:
        self._one[1] = True


def _functions(result: object) -> list[Any]:
    """Returns the functions of autograd that made the tensors of a result; []: none, or too many to watch."""
    found: list[Any] = []
    inside: list[object] = [result]
    while inside and len(inside) + len(found) <= _MOST_TENSORS:
        one = inside.pop()
        if is_plain(one):
            if one._is_view():  # it gets another function once the script writes into it
                one = one._base
            if one.grad_fn is not None:
                found.append(one.grad_fn)
        elif isinstance(one, dict):
            inside.extend(dict.values(one))
        elif isinstance(one, (list, tuple)):
            inside.extend(one)
    return [] if inside else found


def compiles_backward() -> bool:
    """Returns whether Dynamo compiles backward passes now, or will: it would compile our hooks, too."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    config = sys.modules.get("torch._dynamo.config")
    return bool(
        getattr(compiled, "compiled_autograd_enabled", False) or getattr(config, "compiled_autograd", False)
    )


results = Results()
session.forgets.append(results.forget)
of_run(results)
CODES = tuple(each.__code__ for each in (Results.passed, _Use.__init__, _Use.__call__, _functions, is_plain))
