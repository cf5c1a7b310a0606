"""Alerts on Trainwatch itself: no alert must mean that all is well, not that nothing is measured."""

from __future__ import annotations

from trainwatch.prometheus_rules.groups import Group, alerting, record
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.promql import MINUTE, Alert, time_span

UNFINISHED = "run_instance:trainwatch_run_unfinished:bool"
TAKEN, MISSED = "trainwatch_sampler_ticks_total", "trainwatch_sampler_ticks_missed_total"
MISSED_SHARE = 0.05

# Keeps an unfinished run while its exporter is down, until it is up again.
STILL_UNFINISHED = f"""
clamp(trainwatch_samples_total unless trainwatch_run_end_time_seconds, 1, 1)
or
{UNFINISHED} and on (job, instance) up == 0
"""
# Name, alert and recommendation.
ALERTS = (
    (
        "TrainwatchExporterDown",
        Alert(
            f"{UNFINISHED} and on (job, instance) up == 0",
            "The exporter of {{ $labels.instance }} is down while run {{ $labels.run }} is training",
            "Prometheus cannot scrape {{ $labels.instance }}, where run {{ $labels.run }} had not ended: "
            "rules cannot judge that node.",
            pending=2 * MINUTE,
        ),
        "Check the node first, then the exporter (systemctl status trainwatch-exporter).",
    ),
    (
        "TrainwatchCollectorFailing",
        Alert(
            f"trainwatch_collector_success == 0 and on (job, instance) {UNFINISHED}",
            "Collector {{ $labels.collector }} fails on {{ $labels.instance }}",
            "Collector {{ $labels.collector }} has no readings on {{ $labels.instance }}: its metrics are "
            "missing, and rules that need them cannot fire.",
            severity="info",
            pending=5 * MINUTE,
        ),
        "The exporter's log has the reason. Turn off a collector that cannot work on this node, with "
        "--no-collector.NAME.",
    ),
    (
        "TrainwatchSamplesMissed",
        Alert(
            f"rate({MISSED}[5m]) / (rate({TAKEN}[5m]) + rate({MISSED}[5m])) > {MISSED_SHARE}",
            "The exporter of {{ $labels.instance }} misses samples",
            "The exporter of {{ $labels.instance }} missed {{ $value | humanizePercentage }} of its "
            "samples in the last 5 minutes. Rules see only the samples that it took.",
            severity="info",
        ),
        "Reserve a core for the exporter, or use a longer --sample-interval.",
    ),
    (
        "TrainwatchRuleEvaluationFailing",
        Alert(
            # Groups are called FILE;GROUP.
            'increase(prometheus_rule_evaluation_failures_total{rule_group=~".*;trainwatch-.*"}[5m]) > 0',
            "Prometheus cannot evaluate a rule of Trainwatch",
            "{{ $labels.rule_group }} failed {{ $value | humanize }} times in the last 5 minutes.",
        ),
        "Prometheus's page /rules has the reason.",
    ),
)


def meta_group(options: Options) -> Group:
    rules = [record(UNFINISHED, STILL_UNFINISHED)]
    for name, alert, recommendation in ALERTS:
        labels = {"rule": name, "severity": alert.severity}
        rules.append(alerting(name, alert, labels, recommendation, "rules.md", options))
    interval = time_span(max(MINUTE, options.scraping.interval))
    return {"name": "trainwatch-meta", "interval": interval, "rules": rules}
