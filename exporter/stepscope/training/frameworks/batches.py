"""Waits for batches of loaders that are no PyTorch DataLoader."""

from __future__ import annotations

from time import perf_counter

from stepscope.training.automatic import LoaderWaits, automatic
from stepscope.training.frameworks.computing import computing
from stepscope.training.session import recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    Asked = tuple[LoaderWaits, int | None, float]


def ask(waits: LoaderWaits) -> Asked | None:
    """Begins the wait for a batch. Returns None inside another wait, in other threads and in callbacks."""
    if computing.in_callback or not recorder.asks_here() or recorder.is_waiting():
        return None
    if not computing.in_loop and _nothing_was_computed():
        automatic.begin_anew()
    place = None if waits.phase else automatic.requested(waits, True)
    asked = perf_counter()
    if place is None:
        recorder.waiting(asked)
    return waits, place, asked


def got(begun: Asked, done: bool) -> None:
    """Ends the wait. `done`: there was a batch, neither the end of the data nor an error."""
    waits, place, asked = begun
    if place is not None:
        recorder.leave(place)
    else:
        recorder.waiting(0.0)
    if not done and waits.phase:
        return
    if not done:
        if not computing.in_loop and _nothing_was_computed():
            automatic.begin_anew()
        automatic.ended()
        return
    wait = (asked, perf_counter(), None, not waits.is_usual)
    waits.is_usual = True
    if place is not None:
        automatic.came(wait)
    else:  # the script makes steps, or watches the loader: the wait belongs to the step that follows
        waits[waits.phase or "train"].count(*wait)
        recorder.waited(*wait[:2])


def _nothing_was_computed() -> bool:
    """Returns whether the latest batch was neither trained on nor evaluated, before the first step.

    Then the script only reads its data, for example to adapt a layer to it.
    """
    if automatic.waits is None or automatic.trained or automatic.evaluated:
        return False
    return session.ledger is not None and not session.ledger.has_steps()
