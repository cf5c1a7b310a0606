"""PowerBrake: the power supply of a node slows its GPUs.

Source: the threshold is that of ThermalThrottling.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Percent
from stepscope.rules.parts.promql import Scraping, ratio


@hardware_rule
@dataclass(frozen=True)
class PowerBrake(HardwareRule):
    """The power brake, an external signal to a GPU."""

    threshold: Annotated[Percent, "the power brake slowed the GPU for more of 15 minutes than this"] = 5

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            'rate(stepscope_gpu_throttle_seconds_total{reason="hw_power_brake"}[15m]) '
            f"> {ratio(self.threshold)}",
            f"The power brake slows {WHERE}",
            f"The power brake slowed {WHERE} for {{{{ $value | humanizePercentage }}}} of the last "
            f"15 minutes (fires above {self.threshold:g} %).",
            "Check the node's power supplies and the rack's power limit: they make the board use less power.",
        )
