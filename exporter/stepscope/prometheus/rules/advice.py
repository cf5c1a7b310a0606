"""Records advice that is more specific than that of a rule, for dashboards: by the evidence that it needs.

The label `of` names the evidence: another rule that fires too, whether busy cores are all full, or the
component in which a slow rank is slow.
The report knows more, and may be more specific still.
"""

from __future__ import annotations

from stepscope.prometheus.rules.groups import Group, record
from stepscope.prometheus.rules.options import Options
from stepscope.rules import all_rules
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.promql import MINUTE
from stepscope.rules.parts.remedies import SLOW_RANK

ADVICE = "stepscope:rule_advice"

# If CPUBottleneck fires, and the mean use of the run's cores is known.
FULL_CORES, FREE_CORES = "full cores", "free cores"
BUSY_CORES = {
    FULL_CORES: "All cores are full, so more workers cannot help: make the transform cheaper, cache its "
    "results, or move it to the GPU.",
    FREE_CORES: "Cores are free: give the data loader more workers, and let it prefetch.",
}
# DataStarved only knows that data comes late; these know why. The last one that fires is shown.
WHY_DATA_IS_LATE = (
    *("CPUBottleneck", FULL_CORES, FREE_CORES, "Dataloader"),
    *("IOBottleneck", "NoisyNeighbour", "CPUThrottled"),
)
COPIES = "host_to_device"


def advice_group(options: Options) -> Group:
    """Returns one series per advice; its value is the priority."""
    rules, rendered = all_rules(), {rule.name for rule in options.rules()}
    because = {of: BUSY_CORES.get(of) or rules[of].recommendation for of in WHY_DATA_IS_LATE}
    slow = {COPIES if of == "copies" else of: text for of, text in SLOW_RANK.items()}
    advice = [("DataStarved", of, text) for of, text in because.items()]
    advice += [("Straggler", of, text) for of, text in slow.items()]
    return {
        "name": "stepscope-advice",
        "interval": time_span(max(MINUTE, options.scraping.interval)),
        "rules": [
            record(ADVICE, f"vector({priority})", {"rule": rule, "of": of, "recommendation": text})
            for priority, (rule, of, text) in enumerate(advice, start=1)
            if rule in rendered
        ],
    }
