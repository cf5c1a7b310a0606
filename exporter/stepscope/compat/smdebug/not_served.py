"""The calls that have no answer in a run of Stepscope, or an empty one: they name what there is."""

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from stepscope.common.words import listing


def not_served(call: str, instead: str) -> NotImplementedError:
    """Returns the error, to be raised: one line."""
    return NotImplementedError(f"{call} is not served; {instead}")


def say_unknown(wanted: Iterable[str], known: Iterable[str], what: str) -> None:
    """Prints which of the wanted names nothing has, and the names that there are: cpu0 for all cores."""
    there = list(known)
    if unknown := [name for name in wanted if name not in there]:
        names = dict.fromkeys(re.sub(r"\d+$", "0", name) for name in there)
        print(f"no {what} is {listing(unknown)}; there are: {', '.join(names) or 'none'}")


class Instead:
    """A class whose methods named in INSTEAD raise `not_served` when they are called."""

    INSTEAD: ClassVar[dict[str, str]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.INSTEAD:
            raise AttributeError(f"{type(self).__name__} has no {name}")

        def call(*_: Any, **__: Any) -> Any:
            raise not_served(f"{name}()", self.INSTEAD[name])

        return call
