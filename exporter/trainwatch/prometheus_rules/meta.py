"""Alerts on Trainwatch itself: silence must mean that all is well, not that nobody looks."""

from __future__ import annotations

from trainwatch.prometheus_rules.groups import Group, alerting, record
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.promql import MINUTE, Alert, time_span

UNFINISHED = "run_instance:trainwatch_run_unfinished:bool"
TAKEN, MISSED = "trainwatch_sampler_ticks_total", "trainwatch_sampler_ticks_missed_total"
MISSED_SHARE = 0.05

# A run that has not ended stays known while its exporter is down, and until it is up again.
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
            "The exporter of {{ $labels.instance }} is down while run {{ $labels.run }} trains",
            "Prometheus cannot scrape {{ $labels.instance }}, where run {{ $labels.run }} had not ended: "
            "no rule sees what happens there.",
            pending=2 * MINUTE,
        ),
        "Look at the node first, then at the exporter (systemctl status trainwatch-exporter).",
    ),
    (
        "TrainwatchCollectorFailing",
        Alert(
            f"trainwatch_collector_success == 0 and on (job, instance) {UNFINISHED}",
            "The collector {{ $labels.collector }} of {{ $labels.instance }} fails",
            "The collector {{ $labels.collector }} of {{ $labels.instance }} gives no reading: its "
            "metrics are missing, and rules that need them stay silent.",
            severity="info",
            pending=5 * MINUTE,
        ),
        "The reason is in the exporter's log; leave a collector out that can never work with "
        "--no-collector.NAME.",
    ),
    (
        "TrainwatchSamplesMissed",
        Alert(
            f"rate({MISSED}[5m]) / (rate({TAKEN}[5m]) + rate({MISSED}[5m])) > {MISSED_SHARE}",
            "The exporter of {{ $labels.instance }} misses samples",
            "The exporter of {{ $labels.instance }} missed {{ $value | humanizePercentage }} of its "
            "samples in the last 5 minutes: shares of samples are of those that it took.",
            severity="info",
        ),
        "Give the exporter a core of its own, or a longer --sample-interval.",
    ),
    (
        "TrainwatchRuleEvaluationFailing",
        Alert(
            # Groups are called FILE;GROUP.
            'increase(prometheus_rule_evaluation_failures_total{rule_group=~".*;trainwatch-.*"}[5m]) > 0',
            "A rule of Trainwatch cannot be evaluated",
            "{{ $labels.rule_group }} failed {{ $value | humanize }} times in the last 5 minutes.",
        ),
        "The reason is on Prometheus's page of rules, /rules.",
    ),
)


def meta_group(options: Options) -> Group:
    rules = [record(UNFINISHED, STILL_UNFINISHED)]
    for name, alert, recommendation in ALERTS:
        labels = {"rule": name, "severity": alert.severity}
        rules.append(alerting(name, alert, labels, recommendation, "rules.md", options))
    interval = time_span(max(MINUTE, options.scraping.interval))
    return {"name": "trainwatch-meta", "interval": interval, "rules": rules}
