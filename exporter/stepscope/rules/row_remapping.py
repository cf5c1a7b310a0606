"""RowRemapping: a GPU cannot replace bad memory, or not before it is reset.

Source: NVIDIA's "GPU Memory Error Management".
"""

from dataclasses import dataclass

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.promql import Scraping


@hardware_rule
@dataclass(frozen=True)
class RowRemapping(HardwareRule):
    """Bad rows or pages of a GPU's memory."""

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            "stepscope_gpu_row_remapping_failed == 1",
            f"{WHERE} cannot replace a bad row of its memory",
            f"{WHERE} could not remap a bad row of memory: uncorrectable errors will come again.",
            "Take the GPU out of use, run dcgmi diag -r 3, and have it replaced.",
            severity="critical",
            labels={"trouble": "failed"},
        )
        yield advised(
            "stepscope_gpu_row_remapping_pending == 1 or stepscope_gpu_page_retirement_pending == 1",
            f"{WHERE} must be reset to replace bad memory",
            f"{WHERE} replaces a bad row or page of memory at its next reset.",
            "Reset the GPU (nvidia-smi --gpu-reset) or restart the node when the run ends.",
            labels={"trouble": "pending"},
        )
