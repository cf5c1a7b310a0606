"""Finds gradients that no optimizer uses, as of a model whose head alone is trained.

They are in no optimizer that made a step, and nobody wrote into them, which counts a tensor's version up.
"""

from __future__ import annotations

from weakref import ref

from torch.nn import Parameter

from stepscope.training.frameworks.published import publish_found
from stepscope.training.frameworks.torch_hooks.steps import updated
from stepscope.training.layout import UNTRAINED
from stepscope.training.session import of_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class Untrained:
    """The parameters that got gradients at the latest look, and their versions."""

    def __init__(self) -> None:
        self._watched: list[tuple[Callable[[], Any], int]] = []

    def look(self, graph: Iterable[Any]) -> None:
        """Publishes the gauge of those of the look before, and watches those of this graph.

        A look is at least 20 steps later. No gauge says so if nothing was updated since, or if an optimizer
        has others that want gradients: copies, or shards, as for mixed precision and FSDP2.
        """
        whole = same = 0
        others = updated()
        known = set(others)
        for kept, version in self._watched:
            parameter = kept()
            if parameter is not None:
                whole += parameter.numel()
                unused = parameter._version == version and id(parameter) not in known
                same += parameter.numel() * unused
                others.pop(id(parameter), None)
        self._watched = []
        for function in graph:
            parameter = getattr(function, "variable", None)
            if isinstance(parameter, Parameter):
                self._watched.append((ref(parameter), parameter._version))
        for parameter in others.values():
            if parameter.requires_grad:
                return
        if same < whole:
            publish_found({UNTRAINED: same / whole})

    CODE = look.__code__


untrained = of_run(Untrained())
