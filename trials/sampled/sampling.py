"""Starts the line sampler of a script at 100 times its rate, and prints what it saw."""

import json
import sys
import time
from collections import Counter
from typing import Any

from stepscope.training import line_layout, line_sampler
from stepscope.training.line_table import LineTable

FASTER = 100

# By (place, function): the samples. Those of the main thread of this process: a fork has its own copy.
seen: Counter[tuple[str, str]] = Counter()
_count = LineTable.count


def _noted(self: LineTable, code: int, text: str, state: int, ticks: int) -> None:
    place, function, *_ = text.split("\n")
    seen[place, function] += 1
    _count(self, code, text, state, ticks)


def start() -> None:
    line_layout.TICK_SECONDS /= FASTER
    line_sampler.ALLOWED = 1.0  # no tick is skipped
    any_table: Any = LineTable
    any_table.count = _noted
    line_sampler.start()


def end(rounds: int) -> None:
    """Prints what was seen as JSON. Raises AssertionError if the sampler does not sample any more."""
    sampler = line_sampler._sampler
    assert sampler is not None, "the sampler did not start"
    before, deadline = seen.total(), time.monotonic() + 20.0
    while seen.total() < before + 5:  # the lines of this loop
        assert time.monotonic() < deadline, "the sampler has ended"
        time.sleep(0.001)
    sampler.stop()
    assert not sampler._failed
    places = [[*place, count] for place, count in seen.items()]
    print(json.dumps({"rounds": rounds, "samples": seen.total(), "seen": places}))
    sys.stdout.flush()
