"""Accepted findings: dashboards list them apart, with reason and end, and no verdict counts them.

The hidden variable `accepted` has the rules of a run with such findings.
"""

from __future__ import annotations

from trainwatch.dashboards.queries import OF_JOB, last
from trainwatch.dashboards.variables import Variable, hidden, named
from trainwatch.prometheus_rules.groups import FINDING
from trainwatch.prometheus_rules.meta import ACCEPTED

OF_ACCEPTED = 'rule=~"$accepted"'
COUNTED = 'rule!~"$accepted"'
OF_THE_RUN = f'{{run="$run", {OF_JOB}}}'
NOW = 'ALERTS{accepted="yes"}'  # the alert FindingAccepted of each run and rule
NOT_NOW = f"unless on (cluster, run, rule) {NOW}"
UNTIL_NOW = 600  # seconds; a run's last samples are at most so much later than its last accepted finding


def rules() -> Variable:
    """Returns the rules that found something and are accepted now, or were when the run ended."""
    samples = f"trainwatch_samples_total{OF_THE_RUN}"
    info = f"{ACCEPTED}{OF_THE_RUN}"
    times = f"max_over_time(timestamp({info})[$__range:5m])"
    end = f"max(max_over_time(timestamp({samples})[$__range:5m]))"
    ended = f"{times} + {UNTIL_NOW} > on () group_left () {end} unless on () {samples}"
    rules = f"group by (rule) (last_over_time({info}[5m])) or group by (rule) ({ended})"
    query = f"({rules}) and on (rule) {last(f'{FINDING}{OF_THE_RUN}')}"
    return hidden(named("accepted", "Accepted rules", query, "rule", several=True))


def of_run() -> str:
    """Returns until when and why each of these rules is accepted, in the label `accepted`."""
    return _in_words(last(f'{ACCEPTED}{{{OF_ACCEPTED}, run="$run", {OF_JOB}}}'), "rule")


def of_cluster() -> str:
    """Returns the same of the rules of all runs now, by cluster and run."""
    return _in_words(NOW, "cluster, run, rule")


def _in_words(accepted: str, by: str) -> str:
    return f'topk by ({by}) (1, label_join({accepted}, "accepted", ": ", "until", "reason"))'
