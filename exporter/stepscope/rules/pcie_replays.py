"""PCIeReplays: a PCIe link sends packets again.

Source: 8 replays per minute, of DCGM's health check.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import RESEAT_GPU, Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Errors
from stepscope.rules.parts.promql import Scraping


@hardware_rule
@dataclass(frozen=True)
class PCIeReplays(HardwareRule):
    """Replays of a GPU's PCIe link."""

    threshold: Annotated[Errors, "more replays per minute than this, over 15 minutes"] = 8

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            f"increase(stepscope_gpu_pcie_replays_total[15m]) / 15 > {self.threshold}",
            f"The PCIe link of {WHERE} sends packets again",
            f"The PCIe link of {WHERE} sent {{{{ $value | humanize }}}} packets per minute again "
            f"(fires above {self.threshold}).",
            RESEAT_GPU,
        )
