"""DiskFilling: the file system in which a run works is full, or soon will be.

Source: our own thresholds.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.hardware import Alerts, HardwareRule, advised, hardware_rule
from stepscope.rules.parts.parameters import Minutes, Percent
from stepscope.rules.parts.promql import Scraping, ratio

FREE, SIZE = (f"stepscope_run_file_system_{which}_bytes" for which in ("free", "size"))
SHARE = f"{FREE} / {SIZE}"
PLACE = "{{ $labels.mountpoint }} on {{ $labels.instance }}"
REMEDY = "Delete old checkpoints, or keep fewer. A checkpoint that finds no space ends most runs."


@hardware_rule
@dataclass(frozen=True)
class DiskFilling(HardwareRule):
    """The free space of file systems."""

    minutes: Annotated[Minutes, "the file system is full before that at the rate of the last 6 hours"] = 240
    free: Annotated[Percent, "and less than this is free"] = 20
    full: Annotated[Percent, "or less than this is free"] = 1

    def alerts(self, scraping: Scraping) -> Alerts:
        yield advised(
            f"-predict_linear({FREE}[6h], {60 * self.minutes:.12g}) > 0\n"
            f"  and {SHARE} < {ratio(self.free)}\n  and {FREE} offset 1h\n"
            f"  unless {SHARE} < {ratio(self.full)}",
            f"{PLACE} will be full soon",
            f"Run {{{{ $labels.run }}}} works in {PLACE}. In {self.minutes:g} min, it will lack "
            "{{ $value | humanize1024 }}B at the rate of the last 6 hours.",
            REMEDY,
            labels={"trouble": "filling"},
        )
        yield advised(
            f"{SHARE} < {ratio(self.full)}",
            f"{PLACE} is full",
            f"Run {{{{ $labels.run }}}} works in {PLACE}, of which "
            f"{{{{ $value | humanizePercentage }}}} is free (fires below {self.full:g} %).",
            REMEDY,
            severity="critical",
            labels={"trouble": "full"},
        )
