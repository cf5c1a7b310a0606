"""InfinibandLinkDown: a port that was active is not, or loses its link again and again.

Source: our own. A port that was never active is silent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.hardware import PORT, REPLACE_CABLE, Advised, HardwareRule, hardware_rule
from stepscope.rules.parts.parameters import Errors, Minutes
from stepscope.rules.parts.promql import MINUTE, Alert, Scraping

PORT_UP = "stepscope_infiniband_port_up"


@hardware_rule
@dataclass(frozen=True)
class InfinibandLinkDown(HardwareRule):
    """Links of ports of InfiniBand and RoCE."""

    minutes: Annotated[Minutes, "a port that was active in the last day is not, for this time"] = 2
    threshold: Annotated[Errors, "or its link went down more often in an hour than this"] = 2

    def alerts(self, scraping: Scraping) -> Sequence[Advised]:
        recently = time_span(max(MINUTE * self.minutes, 2 * scraping.interval))
        return [
            Advised(
                Alert(
                    f"max_over_time({PORT_UP}[{recently}]) == 0 and max_over_time({PORT_UP}[1d]) == 1",
                    f"{PORT} is down",
                    f"{PORT} was active in the last day, and is not now.",
                    labels={"trouble": "down"},
                ),
                REPLACE_CABLE,
            ),
            Advised(
                Alert(
                    f"increase(stepscope_infiniband_link_downed_total[1h]) > {self.threshold}",
                    f"{PORT} loses its link again and again",
                    f"{PORT} lost its link {{{{ $value | humanize }}}} times in the last hour "
                    f"(fires above {self.threshold}).",
                    labels={"trouble": "flapping"},
                ),
                REPLACE_CABLE,
            ),
        ]
