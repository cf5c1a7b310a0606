"""Lists the remedies for steps that one component makes long."""

from __future__ import annotations

LONG_COMPONENT = {
    "data_wait": "The long steps wait for data: let the loader prefetch more, and keep its workers alive "
    "between epochs.",
    "checkpoint": "The long steps write a checkpoint: write in the background, or less often.",
    "compile": "The long steps compile: pad batches to few shapes, so that each shape is compiled once.",
    "gc": "The long steps collect garbage: call gc.freeze() once the model is built.",
    "communication": "The long steps wait for other ranks: look for the slow rank, or for a shared network.",
    "host_to_device": "The long steps copy to the GPU: pin memory and copy with non_blocking=True.",
}
