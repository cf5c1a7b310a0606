"""Publishes what the Trainer of Hugging Face knows: step and epoch of its state, and all that it logs."""

from __future__ import annotations

import sys

from stepscope.training.frameworks.published import after, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Hooks the events that the Trainer's callbacks get. The module must be imported."""
    handler = getattr(sys.modules["transformers.trainer_callback"], "CallbackHandler", None)
    after(handler, "on_step_end", _step_ended)
    after(handler, "on_log", _logged)


def _step_ended(
    _result: object, _handler: object, _args: object, state: Any, *_: object, **__: object
) -> None:
    publish({"global_step": state.global_step, "epoch": state.epoch})


def _logged(_result: object, _handler: object, _args: object, state: Any, *_: object, **__: object) -> None:
    publish({name: value for name, value in state.log_history[-1].items() if name != "step"})
