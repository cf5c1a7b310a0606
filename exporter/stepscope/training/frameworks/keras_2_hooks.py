"""Times Keras 2: `tf_keras`, and `tf.keras` up to TensorFlow 2.15, as keras_hooks time Keras 3.

It has the same callbacks in other modules. Its functions of batches are graphs, so what they trace is
traced with a batch that was fetched before.
"""

from __future__ import annotations

import sys
from weakref import WeakSet

from stepscope.training.frameworks.around import around, replace
from stepscope.training.frameworks.computing import checkpoint, computing, leave
from stepscope.training.frameworks.keras_hooks import (
    fetching_first,
    hook_calls_of_loops,
    hook_eager_parts,
    hook_loops,
    hook_numbers,
    hook_optimizer,
)
from stepscope.training.frameworks.published import after
from stepscope.training.off import is_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ours: WeakSet[Callable[..., Any]] = WeakSet()  # functions that fetch first


def install_tf_keras() -> None:
    """Does the same for `tf_keras`."""
    install("tf_keras")


def install(package: str = "keras") -> None:
    """Hooks Keras 2, whose engine must be imported completely. Does nothing if Stepscope is off."""
    callbacks = sys.modules.get(f"{package}.src.callbacks")
    if is_off() or callbacks is None:
        return
    hook_loops(callbacks, "tensorflow", getattr(sys.modules[package], "__version__", "2"))
    hook_numbers(callbacks)
    model = getattr(sys.modules.get(f"{package}.src.engine.training"), "Model", None)
    hook_calls_of_loops(model)
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        replace(model, name, _with_fetches)
    adapters = sys.modules.get(f"{package}.src.engine.data_adapter")
    around(getattr(adapters, "DataHandler", None), "enumerate_epochs", _epochs_begin)
    for name in ("GeneratorDataAdapter", "KerasSequenceAdapter"):
        after(getattr(adapters, name, None), "_handle_multiprocessing", _knows_workers)
    layer = getattr(sys.modules.get(f"{package}.src.engine.base_layer"), "Layer", None)
    hook_eager_parts("tensorflow", layer, model, ("compute_loss", "compute_metrics"))
    for module, owner in (("optimizer", "_BaseOptimizer"), ("legacy.optimizer_v2", "OptimizerV2")):
        optimizers = sys.modules.get(f"{package}.src.optimizers.{module}")
        hook_optimizer("tensorflow", getattr(optimizers, owner, None), "apply_gradients")
    for name in ("save", "save_weights", "export"):
        around(model, name, checkpoint, leave)


def _epochs_begin(handler: Any) -> None:
    """Knows the script's own dataset. The others are made by Keras: their settings are not the script's."""
    adapter = getattr(handler, "_adapter", None)
    is_own = type(adapter).__name__ == "DatasetAdapter"
    computing.adapter = adapter if is_own else getattr(adapter, "_stepscope", None)


class _InPython:
    """How batches of a generator or a Sequence are made, as adapters of Keras 3 say it of a PyDataset."""

    def __init__(self, workers: int, use_multiprocessing: bool, max_queue_size: int) -> None:
        self.py_dataset = self
        self.enqueuer = True if workers > 1 or (workers and use_multiprocessing) else None
        self.workers, self.use_multiprocessing = workers, use_multiprocessing
        self.max_queue_size = max_queue_size


def _knows_workers(_result: object, adapter: Any, _data: object, *settings: Any, **__: object) -> None:
    adapter._stepscope = _InPython(*settings)


def _with_fetches(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(model: Any, *arguments: Any, **keywords: Any) -> Any:
        function = original(model, *arguments, **keywords)
        if function in _ours:
            return function
        ours = fetching_first(model, function, getattr(function, "python_function", None))
        _ours.add(ours)
        return ours

    return make
