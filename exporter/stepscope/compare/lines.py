"""The lines of code in which both runs spent most time, side by side.

A changed script moves its lines, so a line is known by its file and function, and by what it calls.
"""

from dataclasses import dataclass
from typing import NamedTuple

from stepscope.evaluation.analysis import Analysis
from stepscope.rules.parts.shares import summed
from stepscope.runs.model import LineTime

SHOWN = 10
LEAST = 0.01  # of the time of one of the runs


class _Key(NamedTuple):
    component: str
    file: str
    function: str
    library: str


@dataclass(frozen=True)
class ComparedLine:
    """Shares are of the sampled time of all main threads; 0: not seen."""

    component: str
    name: str  # "json.loads, in load (data.py)"
    a: float
    b: float


def compared_lines(a: Analysis, b: Analysis) -> list[ComparedLine]:
    """Returns the lines with most time in either run; [] unless lines of both were sampled."""
    shares = _shares(a), _shares(b)
    if not all(shares):
        return []
    keys = sorted({*shares[0], *shares[1]})
    found = [
        ComparedLine(key.component, _name(key), *(share.get(key, 0.0) for share in shares)) for key in keys
    ]
    found = [line for line in found if max(line.a, line.b) >= LEAST]
    return sorted(found, key=lambda line: -max(line.a, line.b))[:SHOWN]


def _shares(analysis: Analysis) -> dict[_Key, float]:
    seconds = summed({_key(line): line.total} for thread in analysis.main_threads for line in thread.lines)
    whole = sum(seconds.values())
    return {key: value / whole for key, value in seconds.items()} if whole else {}


def _key(line: LineTime) -> _Key:
    return _Key(line.component, line.place.rpartition(":")[0], line.function, line.library)


def _name(key: _Key) -> str:
    if not key.file:
        return key.library or "other lines"
    where = f"{key.function} ({key.file})" if key.function else key.file
    return f"{key.library}, in {where}" if key.library else where
