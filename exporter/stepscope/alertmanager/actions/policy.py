"""The limits of `stepscope actions`, the run that an alert is about, and what its actions share."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners, user_number
from stepscope.common.users import user_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Policy:
    """The limits of all decisions."""

    node: str  # alerts of other nodes are ignored
    rules: Collection[str]  # on which a run may be stopped
    act: bool  # False: a dry run, which only writes the decisions
    ledger_directory: Path
    profiled: Collection[str] = ()  # rules on which ranks record a profile window
    runs: Sequence[str] = ()  # how the name of a run begins that may be stopped; empty: any
    why_not: Callable[[Alert], str] | None = None  # asked before a run is stopped; "": the alert still fires

    def is_about(self, alert: Alert, rules: Collection[str] | None = None) -> bool:
        """Returns whether an alert fires on this node, for one of these rules; None: for any."""
        of_rules = rules is None or alert.labels.get("rule", "") in rules
        return alert.firing and alert.labels.get("instance") == self.node and of_rules

    def about(self, alert: Alert) -> dict[str, Any]:
        """Returns what every line of the audit says of an alert."""
        return {
            "rule": alert.labels.get("rule", ""),
            "run": alert.labels.get("run", ""),
            "node": self.node,
            "fingerprint": alert.fingerprint,
            "starts_at": alert.starts_at.isoformat(),
        }


def run_of(alert: Alert, owners: Owners) -> tuple[set[tuple[str, int]], str]:
    """Returns names and owners of the run that an alert means, and why it may not be acted on; "": it may.

    Raises OSError.
    """
    run = alert.labels.get("run", "")
    if not run:
        return set(), "the alert names no run"
    meant = owners.meant(run)
    if user := alert.labels.get("user"):
        meant = {(name, owner) for name, owner in meant if owner == user_number(user)}
    if len(meant) > 1:
        users = " and ".join(sorted(user_name(owner) for _, owner in meant))
        return meant, f"users {users} have or had ledgers of this run, and the alert has no label `user`"
    return meant, ""


class Action(ABC):
    """Acts on each alert once: a repeated notification of it does nothing more."""

    def __init__(self, policy: Policy, audit: Audit, owners: Owners) -> None:
        self._policy, self._audit, self._owners = policy, audit, owners
        self._answered: set[tuple[str, str]] = set()  # keys of alerts

    def answer(self, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
        """Acts on new alerts that fire on this node. Returns the decisions.

        Each decision is in the audit before anything is done. Raises OSError, and does nothing, if the audit
        cannot be written or the ledgers cannot be read.
        """
        new = (alert for alert in alerts if alert.key not in self._answered)
        return [self._decide(alert) for alert in new if self._is_meant(alert)]

    @abstractmethod
    def _is_meant(self, alert: Alert) -> bool:
        """Returns whether the action decides on an alert."""

    @abstractmethod
    def _decide(self, alert: Alert) -> dict[str, Any]: ...

    def _settle(
        self, alert: Alert, decision: str, reason: str, answered: bool = True, **more: Any
    ) -> dict[str, Any]:
        """Writes a decision to the audit, and returns it. It is final for this alert if `answered`."""
        entry = {"decision": decision, "reason": reason, **self._policy.about(alert), **more}
        self._audit.write("decision", entry)
        if answered:
            self._answered.add(alert.key)
        return entry

    def _note(self, event: str, alert: Alert, done: str, **entry: Any) -> None:
        """Writes the result of what was done; the log has it if the audit fails."""
        try:
            self._audit.write(event, {**entry, **self._policy.about(alert)})
        except OSError as error:
            logger.error("not in the audit: %s: %s (%s)", done, entry["result"], error)
