"""What Prometheus makes of a condition that holds and ceases: alerts that are pending, fire, fire on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainwatch.crosscheck.server import Milliseconds
from trainwatch.measurements.scraped import Labels


def alert_states(
    times: Sequence[Milliseconds],
    conditions: Iterable[frozenset[Labels]],
    pending: float = 0.0,
    keep_firing: float = 0.0,
) -> list[dict[Labels, str]]:
    """ "pending" or "firing" at each evaluation; `pending` (`for`) and `keep_firing` are seconds."""
    began: dict[Labels, Milliseconds] = {}
    ceased: dict[Labels, Milliseconds] = {}
    firing: set[Labels] = set()
    found = []
    for time, holds in zip(times, conditions, strict=True):
        for labels in holds:
            began.setdefault(labels, time)
            ceased.pop(labels, None)
        for labels in began.keys() - holds:
            since = ceased.setdefault(labels, time)
            if labels not in firing or time - since >= 1000 * keep_firing:
                del began[labels], ceased[labels]
                firing.discard(labels)
        firing |= {labels for labels in holds if time - began[labels] >= 1000 * pending}
        found.append({labels: "firing" if labels in firing else "pending" for labels in began})
    return found
