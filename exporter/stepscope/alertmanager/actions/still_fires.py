"""Asks Prometheus, just before a run is stopped, whether the alert still fires."""

from stepscope.alertmanager.actions.notification import Alert
from stepscope.common.errors import UserError
from stepscope.runs.prometheus.address import Access
from stepscope.runs.prometheus.connection import Connection, quoted

SECONDS = 5.0  # for an answer: meanwhile, no other notification is taken
# Labels that rules give their alerts. Prometheus adds others to what it sends (`external_labels`).
LABELS = "alertname", "rule", "run", "instance", "rank", "gpu"


class StillFires:
    """A server that evaluates the rules, or has their results."""

    def __init__(self, access: Access) -> None:
        self._connection = Connection(access, SECONDS, patient=False)

    def why_not(self, alert: Alert) -> str:
        """Returns why an alert is not known to fire now; "" if it fires."""
        known = {name: alert.labels[name] for name in LABELS if name in alert.labels}
        matchers = [f"{name}={quoted(value)}" for name, value in {"alertstate": "firing", **known}.items()]
        query = f"ALERTS{{{', '.join(matchers)}}}"
        try:
            answer = self._connection.post("query", query=query)
        except UserError as error:
            return f"Prometheus does not say whether the alert still fires: {error}"
        return "" if answer.get("result") else "the alert no longer fires in Prometheus"
