"""How fast a run makes steps now, and when it will end, for the live page."""

from __future__ import annotations

from stepscope.common.words import duration, number, pace
from stepscope.evaluation.analysis import Analysis

SECONDS = 60.0  # the last ones


def pace_now(analysis: Analysis, total: int | None = None) -> str:
    """Returns "step 1240 of 5000, 12.3 steps/s, ETA 5 min 06 s"; each rank makes `total` steps."""
    marks = [mark for line in analysis.timelines[:1] for mark in line.marks if mark.phase == "train"]
    if not marks:
        return ""
    last = marks[-1]
    said = [f"step {number(last.number)}" + (f" of {number(total)}" if total else "")]
    before = next((mark for mark in reversed(marks) if mark.start <= last.start - SECONDS), marks[0])
    if last.start > before.start:
        rate = (last.number - before.number) / (last.start - before.start)
        said.append(pace(rate))
        if total and last.number < total:
            said.append(f"ETA {duration((total - last.number) / rate)}")
    return ", ".join(said)
