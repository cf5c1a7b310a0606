"""Writes where training is into a ledger, as the process of the ledger does."""

import os
from pathlib import Path
from struct import pack

from stepscope.training import layout


def put_place(ledger: Path, component: str, since: float, operation: str = "") -> None:
    """Writes the component ("": none) and since when, on the writer's clock."""
    number = layout.COMPONENTS.index(component) + 1 if component else 0
    waits_in = layout.OPERATIONS.index(operation) + 1 if operation else 0
    put_counters(ledger, layout.COUNTER_COMPONENT, number, since, waits_in)


def put_counters(ledger: Path, first: int, *values: float) -> None:
    """Overwrites consecutive counters."""
    fd = os.open(ledger, os.O_WRONLY)
    os.pwrite(fd, pack(f"<{len(values)}d", *values), layout.COUNTERS_AT + 8 * first)
    os.close(fd)
