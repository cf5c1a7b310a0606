"""Renders the rules for clusters without our exporter, from series of dcgm-exporter and node_exporter.

Sources: dcgm-exporter's default-counters.csv (DCGM_FI_DEV_GPU_UTIL in percent, DCGM_FI_DEV_FB_USED and _FREE
in MiB, labels `gpu` and `Hostname`), node_exporter's cpu and uname collectors. They are read once per scrape,
so the rules are as coarse as that. The label `resolution="scrape"` says so.
"""

from __future__ import annotations

from typing import Any

from trainwatch.prometheus_rules.groups import Entry, Group, alert_rule, laid_out, record, status
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.base import Rule
from trainwatch.rules.other_exporters import BUSIEST, CPU, GPU, IN_USE, MEMORY, OtherExporters
from trainwatch.rules.promql import PrometheusRules, time_span

# These exporters do not know which run uses a GPU: a GPU with more than this share of its memory in use is
# assumed to work for some run.
MEMORY_IN_USE = 0.02

LABELS = {"run": "unknown", "resolution": "scrape"}


def existing_clusters_groups(options: Options) -> list[Group]:
    others = OtherExporters(options.scraping)
    rendered = ((rule, rule.without_our_exporter(others)) for rule in options.settings.rules())
    entries = [entry for rule, rules in rendered if rules for entry in _rules(rule, rules, options)]
    return [
        {
            "name": "trainwatch-existing-clusters",
            "interval": time_span(options.scraping.interval),
            "rules": [*_readings(options), *entries],
        }
    ]


def _readings(options: Options) -> list[Entry]:
    """Returns records of both exporters' series as ratios, with the node's name as `instance`."""
    rate_window = time_span(4 * options.scraping.interval)
    idle = f'sum without (mode) (rate(node_cpu_seconds_total{{mode=~"idle|iowait"}}[{rate_window}]))'
    return [
        _record(GPU, 'label_replace(DCGM_FI_DEV_GPU_UTIL / 100, "instance", "$1", "Hostname", "(.+)")'),
        _record(
            MEMORY,
            """
            label_replace(
              DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE),
              "instance", "$1", "Hostname", "(.+)"
            )
            """,
        ),
        _record(IN_USE, f"{MEMORY} > bool {MEMORY_IN_USE}"),
        _record(CPU, _named_node(f"1 - avg without (cpu) ({idle})")),
        _record(BUSIEST, _named_node(f"1 - min without (cpu) ({idle})")),
    ]


def _named_node(expression: str) -> str:
    """Sets `instance` to the node's own name, which dcgm-exporter calls `Hostname`."""
    return laid_out(
        f"""
        label_replace(
          ({expression})
            * on (job, instance) group_left (nodename) node_uname_info,
          "instance", "$1", "nodename", "(.+)"
        )
        """
    )


def _record(name: str, expression: str) -> Entry:
    return record(name, expression, LABELS)


def _rules(rule: Rule[Any, Any], rules: PrometheusRules, options: Options) -> list[Entry]:
    """Returns the records of a rule, its status and its alerts, with LABELS."""
    judged = [status(rule.name, rules), *(alert_rule(rule, alert, options) for alert in rules.alerts)]
    return [
        *(_record(each.name, each.expression) for each in rules.records),
        *({**entry, "labels": entry["labels"] | LABELS} for entry in judged),
    ]
