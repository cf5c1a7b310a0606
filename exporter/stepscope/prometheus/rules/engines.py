"""Names the servers that evaluate rules, and how they differ. docs/engines.md has the sources."""

from collections.abc import Mapping
from dataclasses import dataclass

PROMETHEUS = "prometheus"

_OF_FILE = '{rule_group=~".*;stepscope-.*"}[5m]'  # groups are called FILE;GROUP
_OF_GROUP = '{group=~"stepscope-.*"}[5m]'


@dataclass(frozen=True)
class Engine:
    """A server that evaluates rules."""

    title: str
    failures: str  # PromQL: the failures of our rules in the last five minutes
    reason: str  # what says why a rule failed
    group: str = "rule_group"  # the label that names the rule's group
    stores_at_once: bool = True  # a rule sees what a rule before it in its group has just recorded
    keeps_firing: bool = True  # it knows `keep_firing_for`


ENGINES: Mapping[str, Engine] = {
    PROMETHEUS: Engine(
        "Prometheus",
        f"increase(prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "Prometheus's page /rules",
    ),
    "mimir": Engine(
        "Mimir's ruler",
        f"increase(cortex_prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "The log of Mimir's ruler",
    ),
    # A stateless Thanos Rule sends what it records to a receiver, and does not wait.
    "thanos": Engine(
        "Thanos Rule",
        f"increase(prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "Thanos Rule's page /rules",
        stores_at_once=False,
    ),
    # vmalert never waits. Old versions refuse `keep_firing_for`. Before 1.96, a gauge has the last failure.
    "victoriametrics": Engine(
        "vmalert",
        "\nor ".join(
            f"increase(vmalert_{kind}_rules_errors_total{_OF_GROUP}) > 0\n"
            f"or max_over_time(vmalert_{kind}_rules_error{_OF_GROUP}) > 0"
            for kind in ("alerting", "recording")
        ),
        "vmalert's page /vmalert/groups",
        group="group",
        stores_at_once=False,
        keeps_firing=False,
    ),
}
