"""Finds gradients that no optimizer uses, as of a model whose head alone is trained.

An optimizer writes into what it updates, which counts the tensor's version up.
"""

from __future__ import annotations

from weakref import ref

from torch.nn import Parameter

from stepscope.training.frameworks.published import publish_found
from stepscope.training.layout import UNTRAINED

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

        A look is at least 20 steps later. If nothing was updated in place since, no gauge says so: some
        optimizers of their own write elsewhere.
        """
        whole = same = 0
        for kept, version in self._watched:
            parameter = kept()
            if parameter is not None:
                whole += parameter.numel()
                same += parameter.numel() * (parameter._version == version)
        self._watched = []
        for function in graph:
            parameter = getattr(function, "variable", None)
            if isinstance(parameter, Parameter):
                self._watched.append((ref(parameter), parameter._version))
        if same < whole:
            publish_found({UNTRAINED: same / whole})

    CODE = look.__code__


untrained = Untrained()
