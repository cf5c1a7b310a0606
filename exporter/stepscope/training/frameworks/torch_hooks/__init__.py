"""Times stock PyTorch: hooks its loaders, passes, optimizers and collectives, and changes no script.

Each file hooks one part. All of them drive the recorder, as calls by hand do. Modules that torch imports
later are hooked after their own import, and never imported from here.
"""

from __future__ import annotations

from stepscope.training.frameworks.torch_hooks import (
    batches,
    collectives,
    passes,
    patches,
    pauses,
    profiler,
    steps,
)
from stepscope.training.off import is_off

__all__ = ["install", "remove"]

_installed = False


def install() -> None:
    """Hooks torch, which must be imported completely. Does nothing if it is hooked, or Stepscope is off."""
    global _installed
    if _installed or is_off():
        return
    _installed = True
    for part in (batches, passes, steps, collectives, pauses, profiler):
        part.install()


def remove() -> None:
    """Removes all hooks. What they have recorded stays."""
    global _installed
    patches.remove()
    _installed = False
