"""Chooses which operators of profile windows a rank shows: few, and those of its latest windows."""

from stepscope.exporter.sampling.limits import cut
from stepscope.training.layout import LARGEST

SHOWN = 20  # operators of a rank and device: those with most seconds in its latest windows
OTHER = "other"  # all others
KNOWN = 100  # operators of a rank and device whose seconds are kept: those shown last
FADES = 0.5  # what a window counts for, at each later one, when operators are chosen
STAYS = 2.0  # one that is shown is replaced only by another with more than twice its seconds
NAME_BYTES = 200


class OperatorSeconds:
    """The seconds of the operators of one rank on one kind of device."""

    def __init__(self) -> None:
        self._counted: dict[str, float] = {}  # the one counted last is last; those that return continue
        self._recent: dict[str, float] = {}  # by all names, old windows count less
        self._shown: set[str] = set()

    def add(self, operators: dict[str, float]) -> None:
        """Adds those of a window."""
        window: dict[str, float] = {}
        for name, seconds in operators.items():
            name = cut(name, NAME_BYTES) or OTHER
            window[name] = window.get(name, 0.0) + seconds
        self._choose(window)
        for name, seconds in window.items():
            name = name if name in self._shown else OTHER
            self._counted[name] = min(self._counted.pop(name, 0.0) + seconds, LARGEST)
        for name in [name for name in self._counted if name != OTHER][:-KNOWN]:
            del self._counted[name]

    def _choose(self, window: dict[str, float]) -> None:
        names = {*self._recent, *window} - {OTHER}
        recent = {name: FADES * self._recent.get(name, 0.0) + window.get(name, 0.0) for name in names}
        ranked = sorted(
            recent, key=lambda name: (-recent[name] * (STAYS if name in self._shown else 1), name)
        )
        self._recent = {name: recent[name] for name in ranked[:KNOWN]}
        self._shown = {*ranked[:SHOWN]}

    def values(self) -> dict[str, float]:
        """Returns the seconds of those that are shown, and of all others."""
        shown = {*self._shown, OTHER}
        return {name: seconds for name, seconds in self._counted.items() if name in shown}
