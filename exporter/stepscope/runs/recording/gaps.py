"""Finds what is missing from one table of one node: files that were left out, and rows not recorded."""

from dataclasses import replace

from stepscope.runs.model import Gap

SHORT_SECONDS = 10.0  # shorter pauses of the sampler are reported together
NOT_RECORDED = {
    "samples": "they were not taken: the sampler was late, or the exporter did not run",
    "steps": "their records were not read from the ledger in time; the totals of the ranks include them",
}


class Gaps:
    """Collects the gaps of the table called `what`, while its rows are read in the order of time."""

    def __init__(self, node: str, what: str) -> None:
        self.last: float | None = None  # the time of the last row
        self._nothing = Gap(what, NOT_RECORDED.get(what, ""), node)
        self._found: list[Gap] = []
        self._merged: Gap | None = None  # pauses that are reported together
        self._reasons: list[str] = []  # why rows after the last one are missing
        self._certain = False

    def lose(self, reason: str, certain: bool = True) -> None:
        """Notes why rows after the last one may be missing. `certain`: report it even if no row lacks."""
        self._reasons.append(reason)
        self._certain |= certain

    def resume(self, time: float, missing: int | None) -> None:
        """Notes that rows continue at `time`, with `missing` rows (None: not known) since the last one."""
        if self._reasons and (self._certain or missing != 0):
            self._found.append(self._gap(self._reasons, time, missing))
        elif missing:
            self.pause(self.last, time, missing)
        self._reasons, self._certain = [], False

    def pause(self, start: float | None, end: float, missing: int) -> None:
        """Notes rows that are missing for no known reason."""
        gap = replace(self._nothing, start=start, end=end, count=missing)
        if gap.what == "samples" and start is not None and end - start > SHORT_SECONDS:
            self._found.append(gap)
        elif self._merged is None:
            self._merged = gap
        else:
            self._merged = replace(self._merged, end=end, count=(self._merged.count or 0) + missing)

    def so_far(self, missing: int | None = None, reason: str = "") -> list[Gap]:
        """Returns all gaps, also one that has not ended.

        `missing` rows are known to follow the last one; others may, for the given reason.
        """
        reasons = [*self._reasons, *filter(None, [reason])]
        unended = [self._gap(reasons, None, missing)] if reasons or missing else []
        return [*self._found, *([self._merged] if self._merged else []), *unended]

    def _gap(self, reasons: list[str], end: float | None, missing: int | None) -> Gap:
        reason = "; ".join(reasons) or self._nothing.reason
        return replace(self._nothing, reason=reason, start=self.last, end=end, count=missing)
