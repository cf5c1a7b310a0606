"""Publishes what a script logs with `Accelerator.log`. Accelerate itself knows neither step nor epoch."""

from __future__ import annotations

import sys

from stepscope.training.frameworks.published import after, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Hooks `Accelerator.log`. The module must be imported."""
    after(getattr(sys.modules["accelerate.accelerator"], "Accelerator", None), "log", _logged)


def _logged(_result: object, _accelerator: object, values: Any, *_: object, **__: object) -> None:
    publish(values)
