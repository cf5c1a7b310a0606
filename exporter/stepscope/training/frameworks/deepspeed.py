"""Publishes the step of DeepSpeed's engine, and the numbers that its monitors get, such as the loss."""

from __future__ import annotations

import sys

from stepscope.training.frameworks.published import after, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Hooks the engine's step and its monitors. The module must be imported."""
    engine = sys.modules["deepspeed.runtime.engine"]
    after(getattr(engine, "DeepSpeedEngine", None), "step", _step_ended)
    after(getattr(engine, "MonitorMaster", None), "write_events", _logged)


def _step_ended(_result: object, engine: Any, *_: object, **__: object) -> None:
    publish({"global_step": engine.global_steps})


def _logged(_result: object, _monitor: object, event_list: Any) -> None:
    publish({name: value for name, value, *_ in event_list})
