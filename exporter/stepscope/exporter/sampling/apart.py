"""Keeps an error about one run, process or device from costing all others their tick."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from stepscope.common.errors import describe, raise_if_exhausted
from stepscope.common.users import user_name

logger = logging.getLogger(__name__)

LOGGED = 20  # lines about what was left out; afterwards only the counter says it

T = TypeVar("T")
V = TypeVar("V")


class Apart:
    """Performs a part of a tick item by item, and counts what was left out because of an error."""

    def __init__(self, name: str) -> None:
        self.lost = 0  # ticks of runs, processes and devices
        self._name = name
        self._logged: set[tuple[str, str]] = set()

    def each(self, name: Callable[[T], str], items: Iterable[T], act: Callable[[T], object]) -> list[T]:
        """Calls `act` with each item. Returns those for which it raised nothing. The log has their `name`."""
        return [item for item in items if self._succeeds(name, item, act)]

    def together(
        self, name: Callable[[str], str], items: Mapping[str, V], act: Callable[[Mapping[str, V]], object]
    ) -> None:
        """Calls `act` with all items; if it raises, again without those with which alone it raises, too.

        So `act` may be called several times, and only its last call counts.
        """
        try:
            act(items)
        except Exception as error:  # noqa: BLE001 - as above
            raise_if_exhausted(error)
            good = self.each(name, items, lambda item: act({item: items[item]}))
            act({item: items[item] for item in good})

    def leave_out(self, what: str, error: Exception) -> None:
        """Counts and logs what is left out of this tick. Raises an error that is about this process."""
        raise_if_exhausted(error)
        self.lost += 1
        line = what, type(error).__name__
        if len(self._logged) < LOGGED and line not in self._logged:
            self._logged.add(line)
            logger.warning("%s left out %s: %s", self._name, what, describe(error) + owner_in(error))
            if len(self._logged) == LOGGED:
                logger.warning("%s only counts from now on what it leaves out", self._name)

    def _succeeds(self, name: Callable[[T], str], item: T, act: Callable[[T], object]) -> bool:
        try:
            act(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this item
            self.leave_out(name(item), error)
            return False
        return True


def owner_in(error: BaseException) -> str:
    """Returns the owner of the file that an error names, in parentheses; "" if it names none."""
    name = getattr(error, "filename", None)
    if not isinstance(name, (str, bytes)):
        return ""
    try:
        return f" (a file of user {user_name(os.lstat(name).st_uid)})"
    except (OSError, ValueError):
        return ""
