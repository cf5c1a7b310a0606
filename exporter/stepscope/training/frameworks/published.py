"""Publishes what a framework knows of its training, as gauges of rank 0: its step, its epoch, what it logs.

Hooks read only numbers that the framework has in Python anyway: nothing waits for a GPU. A name that this
version of the framework does not have is left out with a debug line.
"""

from __future__ import annotations

import sys
from functools import partial

from stepscope.training.frameworks.around import around
from stepscope.training.session import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def publish(values: Mapping[str, object]) -> None:
    """Publishes those values that are numbers, once the run has started. The script's own gauges stay."""
    ledger = session.ledger
    if ledger is None or session.ranks[0]:
        return
    for name, value in values.items():
        if isinstance(name, str) and isinstance(value, (int, float)):
            ledger.offer_gauge(name, value)


def publish_found(values: Mapping[str, float]) -> None:
    """Publishes those that are not 0, or were not before: there is little room."""
    known = session.ledger.of_framework if session.ledger is not None else ()
    publish({name: value for name, value in values.items() if value or name in known})


def after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Calls `then` with the result and the arguments of each call of a function, until it fails.

    `owner` is the class or module that defines the function: no class gets an attribute that it inherits.
    """

    def called(*arguments: Any, **keywords: Any) -> Callable[..., None]:
        return lambda result: then(result, *arguments, **keywords)

    around(owner, name, called, see=lambda call, result: call(result))


# -- frameworks that train with PyTorch ----------------------------------------------------------------


def _trainer_stepped(
    _result: object, _: object, _args: object, state: Any, *__: object, **___: object
) -> None:
    publish({"global_step": state.global_step, "epoch": state.epoch})


def _trainer_logged(
    _result: object, _: object, _args: object, state: Any, *__: object, **___: object
) -> None:
    publish({name: value for name, value in state.log_history[-1].items() if name != "step"})


def _lightning_stepped(_result: object, connector: Any) -> None:
    publish({"global_step": connector.trainer.global_step, "epoch": connector.trainer.current_epoch})


def _lightning_logged(scalars: Any, _metrics: object) -> None:
    publish(scalars)


def _accelerate_logged(_result: object, _accelerator: object, values: Any, *_: object, **__: object) -> None:
    publish(values)


def _deepspeed_stepped(_result: object, engine: Any, *_: object, **__: object) -> None:
    publish({"global_step": engine.global_steps})


def _deepspeed_logged(_result: object, _monitor: object, event_list: Any) -> None:
    publish({name: value for name, value, *_ in event_list})


# By module: the class, otherwise the module itself, its function, and what to call after it. Lightning makes
# numbers of tensors for its loggers every `log_every_n_steps`: that alone waits for the GPU. Accelerate knows
# neither step nor epoch.
_LIGHTNING = "trainer.connectors.logger_connector.logger_connector"
_OF_LIGHTNING = (
    ("_LoggerConnector", "update_train_step_metrics", _lightning_stepped),
    ("", "convert_tensors_to_scalars", _lightning_logged),
)
FUNCTIONS: dict[str, tuple[tuple[str, str, Callable[..., None]], ...]] = {
    "transformers.trainer_callback": (
        ("CallbackHandler", "on_step_end", _trainer_stepped),
        ("CallbackHandler", "on_log", _trainer_logged),
    ),
    f"lightning.pytorch.{_LIGHTNING}": _OF_LIGHTNING,
    f"pytorch_lightning.{_LIGHTNING}": _OF_LIGHTNING,
    "accelerate.accelerator": (("Accelerator", "log", _accelerate_logged),),
    "deepspeed.runtime.engine": (
        ("DeepSpeedEngine", "step", _deepspeed_stepped),
        ("MonitorMaster", "write_events", _deepspeed_logged),
    ),
}


def _install(name: str) -> None:
    module = sys.modules[name]
    for owner, function, then in FUNCTIONS[name]:
        after(getattr(module, owner, None) if owner else module, function, then)


install_transformers, install_lightning, install_pytorch_lightning, install_accelerate, install_deepspeed = (
    partial(_install, name) for name in FUNCTIONS
)
