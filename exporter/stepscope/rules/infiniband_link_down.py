"""InfinibandLinkDown: a port that was active is not, or loses its link again and again.

Source: our own. A port that was never active is silent.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.hardware import PORT, REPLACE_CABLE, Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Errors, Minutes
from stepscope.rules.parts.promql import MINUTE, Scraping

PORT_UP = "stepscope_infiniband_port_up"


@hardware_rule
@dataclass(frozen=True)
class InfinibandLinkDown(HardwareRule):
    """Links of ports of InfiniBand and RoCE."""

    minutes: Annotated[Minutes, "a port that was active in the last day is not, for this time"] = 2
    threshold: Annotated[Errors, "or its link went down more often in an hour than this"] = 2

    def alerts(self, scraping: Scraping) -> Alerts:
        recently = time_span(max(MINUTE * self.minutes, 2 * scraping.interval))
        yield advised(
            f"max_over_time({PORT_UP}[{recently}]) == 0 and max_over_time({PORT_UP}[1d]) == 1",
            f"{PORT} is down",
            f"{PORT} was active in the last day, and is not now.",
            REPLACE_CABLE,
            labels={"trouble": "down"},
        )
        yield advised(
            f"increase(stepscope_infiniband_link_downed_total[1h]) > {self.threshold}",
            f"{PORT} loses its link again and again",
            f"{PORT} lost its link {{{{ $value | humanize }}}} times in the last hour "
            f"(fires above {self.threshold}).",
            REPLACE_CABLE,
            labels={"trouble": "flapping"},
        )
