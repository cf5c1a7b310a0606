"""Times the inside of a graph of TensorFlow that fetches its batches by itself: steps, and fetches.

Python sees such a graph as one call. So operations are added while it is traced. They read the clock before
and after each part, and add the difference to a variable, which Python reads after the call. Nothing else in
the graph depends on them. Steps and fetches share no variable, so they still run at once.

XLA could compile neither: the parts are outside of what it compiles.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STEPS, FETCHES = range(2)


class GraphClock:
    """The seconds in both parts so far. The only instance is `graph_clock`."""

    def __init__(self) -> None:
        self._seconds: list[Any] = []  # a variable per part,
        self._known = [0.0, 0.0]  # and when they were read

    def begin(self, inputs: Any = ()) -> Any:
        """Returns the moment at which these tensors exist, as an operation of the graph that is traced."""
        return _now(_tensors(inputs))

    def end(self, part: int, begun: Any, outputs: Any) -> bool:
        """Counts the seconds until these tensors exist. Returns False without any."""
        tensorflow, tensors = sys.modules["tensorflow"], _tensors(outputs)
        if not tensors:
            return False
        if not self._seconds:
            self._seconds = [_variable(tensorflow), _variable(tensorflow)]
        with tensorflow.device("/device:CPU:0"):
            self._seconds[part].assign_add(_now(tensors) - begun)
        return True

    def waited(self, seconds: float) -> float:
        """Returns how long a graph that took so many seconds waited for batches.

        No step ran, and a fetch did: between two steps, TensorFlow also does work of its own.
        """
        now = [float(each.numpy()) for each in self._seconds] or self._known
        steps, fetches = (value - before for value, before in zip(now, self._known, strict=True))
        self._known = now
        return max(0.0, min(seconds - steps, fetches, seconds))


def _variable(tensorflow: Any) -> Any:
    """Returns a variable of this process, also inside of graphs and of strategies."""
    kind = sys.modules["tensorflow.python.ops.resource_variable_ops"].ResourceVariable
    with tensorflow.init_scope(), tensorflow.device("/device:CPU:0"):
        return kind(0.0, trainable=False, dtype=tensorflow.float64, name="stepscope_seconds")


def _now(tensors: list[Any]) -> Any:
    tensorflow = sys.modules["tensorflow"]
    with tensorflow.control_dependencies(tensors), tensorflow.device("/device:CPU:0"):
        return tensorflow.timestamp()


def _tensors(values: Any) -> list[Any]:
    tensorflow = sys.modules["tensorflow"]
    return [
        each for each in tensorflow.nest.flatten(values, expand_composites=True) if tensorflow.is_tensor(each)
    ]


graph_clock = GraphClock()
