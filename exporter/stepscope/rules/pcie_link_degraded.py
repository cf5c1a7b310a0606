"""PCIeLinkDegraded: the PCIe link of a GPU has fewer lanes, or a lower generation, than GPU and slot allow.

An idle GPU lowers its generation to save power, so a GPU below the utilisation is not judged.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import RESEAT_GPU, Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Percent
from stepscope.rules.parts.promql import Scraping, ratio

LINK = "stepscope_gpu_pcie_link"
UTILIZATION = "avg_over_time(stepscope_gpu_utilization_ratio[15m])"


@hardware_rule
@dataclass(frozen=True)
class PCIeLinkDegraded(HardwareRule):
    """The width and the generation of PCIe links."""

    utilization: Annotated[Percent, "the GPU is in use: its mean utilisation in 15 minutes is above this"] = (
        10
    )

    def alerts(self, scraping: Scraping) -> Alerts:
        for what in ("width", "generation"):
            yield advised(
                f"max_over_time({LINK}_{what}[15m]) < {LINK}_max_{what}\n"
                f"  and {UTILIZATION} > {ratio(self.utilization)}",
                f"The PCIe link of {WHERE} has a lower {what} than it could",
                f"In use for 15 minutes, the PCIe link of {WHERE} had at most {what} "
                "{{ $value | humanize }}, below its maximum.",
                RESEAT_GPU,
                labels={"trouble": what},
            )
