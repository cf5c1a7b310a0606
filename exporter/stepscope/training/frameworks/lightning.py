"""Publishes what Lightning's Trainer knows: its step and epoch, and the numbers that its loggers get."""

from __future__ import annotations

import sys

from stepscope.training.frameworks.published import after, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Lightning makes numbers of tensors for its loggers, every `log_every_n_steps`: that alone waits for the GPU.
MODULES = (
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector",
    "pytorch_lightning.trainer.connectors.logger_connector.logger_connector",
)
_hooked: set[str] = set()


def install() -> None:
    """Hooks the connectors to the loggers, of those packages that are imported."""
    for name in MODULES:
        module = sys.modules.get(name)
        if module is not None and name not in _hooked:
            _hooked.add(name)
            after(getattr(module, "_LoggerConnector", None), "update_train_step_metrics", _step_ended)
            after(module, "convert_tensors_to_scalars", _logged)


def _step_ended(_result: object, connector: Any) -> None:
    publish({"global_step": connector.trainer.global_step, "epoch": connector.trainer.current_epoch})


def _logged(scalars: Any, _metrics: object) -> None:
    publish(scalars)
