"""NVLinkErrors: an NVLink failed, or has many errors.

Source: no recovery of NVLink, as in DCGM's health check. The threshold of other errors is our own: DCGM warns
from one on, and fails at 100 checksum errors per second.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.hardware import Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Errors
from stepscope.rules.parts.promql import Scraping

NVLINK = "stepscope_gpu_nvlink_errors_total"
FATAL, NOT_FATAL = (f'kind{matches}"recovery|failed_recovery"' for matches in ("=~", "!~"))


@hardware_rule
@dataclass(frozen=True)
class NVLinkErrors(HardwareRule):
    """Errors of a GPU's NVLinks."""

    threshold: Annotated[Errors, "more checksum errors and replays in 15 minutes than this"] = 100

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            f"sum without (kind) (increase({NVLINK}{{{FATAL}}}[15m])) > 0",
            f"An NVLink of {WHERE} failed and had to recover",
            f"The NVLinks of {WHERE} recovered, or failed to, {{{{ $value | humanize }}}} times in "
            "the last 15 minutes.",
            "Drain the node, run dcgmi diag -r 3 on all its GPUs, and check NVLink's connectors.",
            severity="critical",
            labels={"trouble": "recovery"},
        )
        yield advised(
            f"sum without (kind) (increase({NVLINK}{{{NOT_FATAL}}}[15m])) > {self.threshold}",
            f"The NVLinks of {WHERE} have many errors",
            f"The NVLinks of {WHERE} had {{{{ $value | humanize }}}} checksum errors and replays in "
            f"the last 15 minutes (fires above {self.threshold}).",
            "Run dcgmi diag -r 3 on all GPUs of the node when the run ends.",
            labels={"trouble": "errors"},
        )
