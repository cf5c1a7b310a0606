"""Seconds on the GPU: CUDA events at the begins and ends of components, in one of STEPS steps.

Host times are the times to launch work. Events are recorded on the current stream, and read some steps later
when they are done: nothing here ever waits for the GPU. A measured step stands for STEPS steps.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.patches import failed
from stepscope.training.session import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STEPS = 20  # one of 20 is measured
MOST_UNREAD = 4  # measured steps whose events are not done: older ones are dropped


class DeviceTimes:
    """The events of measured steps. The only instance is `device`."""

    __slots__ = ("_count", "_cuda", "_events", "_failed", "_unread", "measures")

    def __init__(self, cuda: Any, count: Callable[[int, float], None]) -> None:
        self.measures = False  # the step of now
        self._cuda = cuda
        self._count = count
        self._failed = False
        self._events: list[tuple[int, Any]] = []  # component that begins (-1: none), event
        self._unread: list[list[tuple[int, Any]]] = []

    def captures(self) -> bool:
        """Returns whether work is put into a CUDA graph now: to wait for the GPU would end that."""
        return bool(self._cuda.is_initialized() and self._cuda.is_current_stream_capturing())

    def begins(self, component: int) -> None:
        """Records that the GPU begins a component when it gets here; -1: it ends one."""
        try:
            if self._cuda.is_current_stream_capturing():  # an event would become a part of the graph
                return
            event = self._cuda.Event(enable_timing=True)
            event.record()
            self._events.append((component, event))
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            self._fail(error)

    def step_ended(self, steps: int) -> None:
        """Reads events that are done, and decides whether to measure the next step.

        `steps` is how many have ended. Not needed after a step that was not measured, unless the next one is.
        """
        if self.measures:
            self.begins(-1)
            if self._events[1:]:
                self._unread = [*self._unread, self._events][-MOST_UNREAD:]
            self._events = []
        try:
            if self.captures():
                self._unread.clear()  # to ask whether an event is done would end the capture
            while self._unread and self._unread[0][-1][1].query():
                self._read(self._unread.pop(0))
            self.measures = steps % STEPS == 0 and not self._failed and self._cuda.is_initialized()
            (automatic.unusual.add if self.measures else automatic.unusual.discard)("device")
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            self._fail(error)

    def _read(self, events: list[tuple[int, Any]]) -> None:
        for (component, begin), (_, end) in pairwise(events):
            if component >= 0:
                self._count(component, max(0.0, begin.elapsed_time(end)) / 1000.0 * STEPS)

    def _fail(self, error: Exception) -> None:
        self.measures, self._failed = False, True
        automatic.unusual.discard("device")
        self._unread.clear()
        self._events = []
        failed("time on the GPU", error)


device = DeviceTimes(torch.cuda, recorder.count_device_time)
