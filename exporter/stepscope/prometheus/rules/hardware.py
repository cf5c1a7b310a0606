"""The group of the rules on hardware: each is a file in stepscope/rules, marked with `@hardware_rule`."""

from stepscope.prometheus.rules.groups import Group
from stepscope.prometheus.rules.meta import Silence
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.hardware import hardware_rules
from stepscope.rules.parts.promql import MINUTE

HARDWARE = "stepscope-hardware"  # the group's name


def hardware_group(options: Options) -> Group:
    """Returns the alerts; docs/rules.md has a section on each."""
    found = [
        Silence(rule.__name__, *advised)
        for rule in hardware_rules()
        for advised in options.settings.of(rule).alerts(options.scraping)
    ]
    return {
        "name": HARDWARE,
        "interval": time_span(max(MINUTE, options.scraping.interval)),
        "rules": [silence.entry(options) for silence in found],
    }
