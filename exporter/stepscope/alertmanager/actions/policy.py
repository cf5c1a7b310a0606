"""The limits of `stepscope actions`, and the run that an alert is about."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners, user_number
from stepscope.common.users import user_name


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
