"""Records advice that is more specific than that of a rule, for dashboards: by the evidence that it needs.

The label `of` names the evidence: another rule that fires too, whether busy cores are all full, or the
component in which a slow rank is slow.
The report knows more, and may be more specific still.
"""

from stepscope.prometheus.rules.groups import Group, record
from stepscope.prometheus.rules.options import Options
from stepscope.rules import all_rules
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.promql import MINUTE
from stepscope.rules.parts.remedies import SLOW_RANK
from stepscope.rules.straggler import Straggler

ADVICE = "stepscope:rule_advice"

# If CPUBottleneck fires, and the mean use of the run's cores is known.
FULL_CORES, FREE_CORES = "full cores", "free cores"
BUSY_CORES = {
    FULL_CORES: "All cores are full, so more workers cannot help: make the transform cheaper, cache its "
    "results, or move it to the GPU.",
    FREE_CORES: "Cores are free: give the data loader more workers, and let it prefetch.",
}
COPIES = "host_to_device"


def advice_group(options: Options) -> Group:
    """Returns one series per advice; its value is the priority."""
    rendered = {rule.name for rule in options.rules()}
    slow = {COPIES if of == "copies" else of: text for of, text in SLOW_RANK.items()}
    advice = [(DataStarved.__name__, of, text) for of, text in _why_data_is_late().items()]
    advice += [(Straggler.__name__, of, text) for of, text in slow.items()]
    return {
        "name": "stepscope-advice",
        "interval": time_span(max(MINUTE, options.scraping.interval)),
        "rules": [
            record(ADVICE, f"vector({priority})", {"rule": rule, "of": of, "recommendation": text})
            for priority, (rule, of, text) in enumerate(advice, start=1)
            if rule in rendered
        ],
    }


def _why_data_is_late() -> dict[str, str]:
    """Returns advice by its evidence, which DataStarved itself does not know. The last one is shown."""
    rules = [rule for rule in all_rules().values() if rule.explains_late_data]
    advice: dict[str, str] = {}
    for rule in sorted(rules, key=lambda rule: rule.explains_late_data):
        advice[rule.__name__] = rule.recommendation
        if rule is CPUBottleneck:
            advice |= BUSY_CORES
    return advice
