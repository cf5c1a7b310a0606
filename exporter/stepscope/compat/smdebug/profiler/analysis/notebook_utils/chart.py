"""Base class of the charts of notebooks: they are those of `run.plot`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from stepscope.analysis import Run, UserError


class Chart(ABC):
    """A chart of a run, which `update_data` draws again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.charts: list[Any] = []  # of Altair, as drawn last

    @abstractmethod
    def create_plot(self) -> None:
        """Draws it."""

    def update_data(self, current_timestamp: float) -> None:
        """Reads the run again and draws what there is by now, up to its end."""
        self.run.refresh()
        self.create_plot()

    def clear(self) -> None:
        """Forgets what was drawn."""
        self.charts = []

    def show(self, makers: Iterable[Callable[[], Any]]) -> None:
        """Shows each chart that has data, and prints why others have none. Raises UserError if all do."""
        self.charts, missing = [], []
        for make in makers:
            try:
                self.charts.append(make())
            except UserError as error:
                missing.append(error)
        if not self.charts:
            raise missing[0]
        print(*missing, sep="\n", end="\n" if missing else "")
        for chart in self.charts:
            import_module("IPython.display").display(chart)
