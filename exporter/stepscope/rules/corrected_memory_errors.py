"""CorrectedMemoryErrors: a GPU corrects many errors of its memory, which tends to fail then.

Source: our own threshold.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Errors
from stepscope.rules.parts.promql import Scraping


@hardware_rule
@dataclass(frozen=True)
class CorrectedMemoryErrors(HardwareRule):
    """Corrected memory errors of a GPU."""

    threshold: Annotated[Errors, "more corrected memory errors of a GPU in an hour than this"] = 100

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            f'increase(stepscope_gpu_ecc_errors_total{{severity="corrected"}}[1h]) > {self.threshold}',
            f"{WHERE} corrects many memory errors",
            f"{WHERE} corrected {{{{ $value | humanize }}}} memory errors in the last hour "
            f"(fires above {self.threshold}).",
            "Nothing is lost yet. Plan a dcgmi diag -r 3 when the node is free.",
            severity="info",
        )
