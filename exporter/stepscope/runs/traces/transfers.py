"""Sums the collectives of a trace that move the same data in the same group."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.runs.model import TransferTime, summed_transfers
from stepscope.runs.traces.collectives import Collective
from stepscope.runs.traces.events import MICRO


def transfers(calls: Iterable[Collective]) -> tuple[TransferTime, ...]:
    """Returns the collectives of one rank. None and "" stand for what the trace lacks."""
    return summed_transfers(
        TransferTime(
            operation=call.operation,
            group=call.about.description or call.about.group,
            size=call.about.size or len(call.about.ranks) or None,
            dtype=call.about.dtype,
            bytes=call.about.bytes,
            calls=1,
            seconds=(call.end - call.start) * MICRO,
            shortest=(call.end - call.start) * MICRO,
        )
        for call in calls
    )
