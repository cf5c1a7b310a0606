"""How long tests wait for what a correct product does sooner or later, however busy the machine is."""

import time
from collections.abc import Callable

SECONDS = 500.0  # for hangs only; shortly after, pytest's own limit (pyproject.toml) ends the test


def wait_until(condition: Callable[[], object], what: object = "it") -> None:
    """Waits for what another thread or process brings about; `what` is named if it never happens.

    Looks take at most a fifth of the time: the other process needs the core.
    """
    deadline = time.monotonic() + SECONDS
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(min(max(0.02, 4 * (time.monotonic() - began)), 0.5))
        began = time.monotonic()
