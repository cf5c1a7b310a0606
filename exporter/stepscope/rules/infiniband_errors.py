"""InfinibandErrors: a port of InfiniBand has link errors.

Source: the threshold of ibqueryerrors, but per hour. RoCE's out_of_sequence and the like also count
congestion and adaptive routing, so they are not judged.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.hardware import PORT, REPLACE_CABLE, Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Errors
from stepscope.rules.parts.promql import Scraping

LINK_ERRORS = (
    'kind=~"symbol_error|link_error_recovery|port_rcv_errors|local_link_integrity_errors'
    '|excessive_buffer_overrun_errors"'
)


@hardware_rule
@dataclass(frozen=True)
class InfinibandErrors(HardwareRule):
    """Errors of one kind of a port."""

    threshold: Annotated[Errors, "more errors of one kind in an hour than this"] = 10

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            f"increase(stepscope_infiniband_errors_total{{{LINK_ERRORS}}}[1h]) > {self.threshold}",
            f"{PORT} has link errors",
            f"{PORT} had {{{{ $value | humanize }}}} errors ({{{{ $labels.kind }}}}) in the last "
            f"hour (fires above {self.threshold}).",
            REPLACE_CABLE,
        )
