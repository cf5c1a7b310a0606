"""The rules for clusters without our exporter: from dcgm-exporter's and node_exporter's series.

Sources: dcgm-exporter's default-counters.csv (DCGM_FI_DEV_GPU_UTIL in percent, DCGM_FI_DEV_FB_USED and _FREE
in MiB, labels `gpu` and `Hostname`), node_exporter's cpu and uname collectors. What these show is a reading
at each scrape, so all answers are as coarse as that, and say so by `resolution="scrape"`.
"""

from __future__ import annotations

from typing import Any

from trainwatch.prometheus_rules.groups import Entry, Group, alert_rule, laid_out, record, status
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.base import Rule
from trainwatch.rules.other_exporters import BUSIEST, CPU, GPU, IN_USE, MEMORY, OtherExporters
from trainwatch.rules.promql import PrometheusRules, time_span

# Which run a GPU works for is not known there: a GPU that has more than this share of its memory in use is
# taken for one that works for some run.
MEMORY_IN_USE = 0.02

LABELS = {"run": "unknown", "resolution": "scrape"}


def existing_clusters_groups(options: Options) -> list[Group]:
    others = OtherExporters(options.scraping)
    given = ((one, one.without_our_exporter(others)) for one in options.settings.rules())
    judged = [entry for one, rules in given if rules is not None for entry in _rules(one, rules, options)]
    return [
        {
            "name": "trainwatch-existing-clusters",
            "interval": time_span(options.scraping.interval),
            "rules": [*_readings(options), *judged],
        }
    ]


def _readings(options: Options) -> list[Entry]:
    """The series of both exporters as rules want them: ratios, and `instance` for the node's name."""
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
    """With the node's own name for `instance`, which is what dcgm-exporter calls `Hostname`."""
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
    """The records of a rule, its status and its alerts, labelled for what they are."""
    judged = [status(rule.name, rules), *(alert_rule(rule, alert, options) for alert in rules.alerts)]
    return [
        *(_record(one.name, one.expression) for one in rules.records),
        *({**entry, "labels": entry["labels"] | LABELS} for entry in judged),
    ]
