"""The five states of a rule, or of a whole run: the same words in code, JSON and on every surface."""

from enum import StrEnum


class Status(StrEnum):
    """The result of a rule, in the order in which every surface lists them."""

    FOUND = "found"
    HEALTHY = "healthy"  # judged, and nothing found
    NOT_ENOUGH_DATA = "not enough data"  # to judge it: missing data never looks healthy
    COLLECTING = "collecting"  # not enough data yet, but the run continues
    FAILED = "failed"  # the run or the rule ended with an error
    STOPPED = "stopped"  # somebody, or a scheduler, ended the run

    def __str__(self) -> str:
        return self.value

    @property
    def icon(self) -> str:
        icons = {"found": "▲", "healthy": "✓", "collecting": "…", "failed": "✕", "stopped": "■"}
        return icons.get(self.value, "?")

    @property
    def css_class(self) -> str:
        """Returns the class of its colours in report.css."""
        return self.value.replace(" ", "-")

    @property
    def judged(self) -> bool:
        return self in (Status.FOUND, Status.HEALTHY)
