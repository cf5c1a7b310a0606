"""Finds gradients that no optimizer uses.

- Their parameter is in no optimizer that made a step, as of a model whose head alone is trained. Nobody wrote
  into it either, which counts a tensor's version up.
- Or they were cleared before an update, as those of a generator whose images train a discriminator. On a CPU
  that includes those set to 0 in place, if a pass of this step or the next one follows.
"""

from __future__ import annotations

from weakref import ref

from torch.nn import Parameter

from stepscope.training.frameworks.published import publish_found
from stepscope.training.frameworks.torch_hooks.results import is_plain
from stepscope.training.frameworks.torch_hooks.steps import updated
from stepscope.training.frameworks.torch_hooks.updates import some_bytes
from stepscope.training.layout import UNTRAINED
from stepscope.training.session import of_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class _Gradient:
    """A gradient that a backward pass makes, or adds to, and the version of its parameter then."""

    __slots__ = ("_gradient", "_made", "is_dropped", "parameter", "version")

    def __init__(self, parameter: Any) -> None:
        self.parameter: Callable[[], Any] = ref(parameter)
        self.version = parameter._version
        self.is_dropped = False  # cleared before anything updated the parameter
        self._made = -1  # the version of the gradient

    def is_made(self) -> None:
        parameter = self.parameter()
        if parameter is not None and is_plain(parameter.grad):
            self._gradient = ref(parameter.grad, self._cleared)
            self._made = parameter.grad._version

    def look_again(self) -> None:
        """Looks whether the gradient was set to 0 meanwhile, and the parameter was not updated."""
        parameter = self.parameter()
        if parameter is None or parameter._version != self.version or not is_plain(parameter.grad):
            return
        if self._made not in (-1, parameter.grad._version) and (some := some_bytes(parameter.grad)):
            self.is_dropped |= not any(some)

    def _cleared(self, _: object) -> None:
        parameter = self.parameter()
        self.is_dropped = parameter is not None and parameter._version == self.version


class Untrained:
    """The gradients of each backward pass of the latest look."""

    def __init__(self) -> None:
        self._passes: list[list[_Gradient]] = []

    def look(self) -> None:
        """Publishes the gauge of the look before, and forgets it.

        A look is at least 20 steps later. No gauge says so if nothing was updated since, or if an optimizer
        has others that want gradients: copies, or shards, as for mixed precision and FSDP2. A script that
        clears all gradients of a pass has them elsewhere.
        """
        whole = unused = 0
        known = updated()
        others = dict(known)
        for gradients in self._passes:
            dropped = kept = 0
            for gradient in gradients:
                parameter = gradient.parameter()
                if parameter is None:
                    continue
                others.pop(id(parameter), None)
                whole += parameter.numel()
                is_updated = parameter._version != gradient.version
                if not is_updated and id(parameter) not in known:
                    unused += parameter.numel()
                elif is_updated and gradient.is_dropped:
                    dropped += parameter.numel()
                else:
                    kept += 1
            unused += dropped if kept else 0
        self._passes = []
        for parameter in others.values():
            if parameter.requires_grad:
                return
        if unused < whole:
            publish_found({UNTRAINED: unused / whole})

    def begins(self, graph: Iterable[Any]) -> None:
        """Watches the parameters of a backward pass that begins."""
        self.look_again()
        gradients = []
        for function in graph:
            parameter = getattr(function, "variable", None)
            if isinstance(parameter, Parameter):
                gradients.append(_Gradient(parameter))
        self._passes.append(gradients)

    def look_again(self) -> None:
        """Looks at the gradients of earlier passes before a later one."""
        for gradients in self._passes:
            for gradient in gradients:
                gradient.look_again()

    def ended(self) -> None:
        """Watches the gradients that the latest pass has made."""
        for gradient in self._passes[-1] if self._passes else ():
            gradient.is_made()


untrained = of_run(Untrained())
CODES = tuple(
    each.__code__
    for each in (
        *(_Gradient.__init__, _Gradient.is_made, _Gradient.look_again, _Gradient._cleared),
        *(Untrained.look, Untrained.begins, Untrained.look_again, Untrained.ended),
    )
)
