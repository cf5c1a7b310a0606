"""The calls that have no answer in a run of Stepscope: they name what serves today."""

from collections.abc import Callable
from typing import Any, ClassVar


def not_served(call: str, instead: str) -> NotImplementedError:
    """Returns the error, to be raised: one line."""
    return NotImplementedError(f"{call} is not served; {instead}")


class Instead:
    """A class whose methods named in INSTEAD raise `not_served` when they are called."""

    INSTEAD: ClassVar[dict[str, str]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.INSTEAD:
            raise AttributeError(f"{type(self).__name__} has no {name}")

        def call(*_: Any, **__: Any) -> Any:
            raise not_served(f"{name}()", self.INSTEAD[name])

        return call
