"""Publishes what a framework knows of its training, as gauges of rank 0: its step, its epoch, what it logs.

Hooks read only numbers that the framework has in Python anyway: nothing waits for a GPU. A name that this
version of the framework does not have is left out with a debug line.
"""

from __future__ import annotations

from stepscope.training.frameworks.around import replace
from stepscope.training.session import complain, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def publish(values: Mapping[str, object]) -> None:
    """Publishes those values that are numbers, once the run has started. The script's own gauges stay."""
    ledger = session.ledger
    if ledger is None or session.ranks[0]:
        return
    for name, value in values.items():
        if isinstance(name, str) and isinstance(value, (int, float)):
            ledger.offer_gauge(name, value)


def publish_found(values: Mapping[str, float]) -> None:
    """Publishes those that are not 0, or were not before: there is little room."""
    known = session.ledger.of_framework if session.ledger is not None else ()
    publish({name: value for name, value in values.items() if value or name in known})


def after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Calls `then` with the result and the arguments of each call of a function, until it fails.

    `owner` is the class or module that defines the function: no class gets an attribute that it inherits.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        works = True

        def function(*arguments: Any, **keywords: Any) -> Any:
            nonlocal works
            result = original(*arguments, **keywords)
            if works:
                try:
                    then(result, *arguments, **keywords)
                except Exception as error:  # noqa: BLE001 - nothing may raise into training
                    works = False
                    what = f"numbers of {name} are no longer published"
                    complain(name, f"{what}: {type(error).__name__}: {error}")
            return result

        return function

    replace(owner, name, wrapper_of)
