"""Asks a run's accused rank, and a median peer, for a profile window when an allowed rule has fired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Policy, run_of
from stepscope.exporter.ledgers.asked_windows import DISTANCE, AskedWindows, with_a_peer

WAKE_SECONDS = 0.25  # between two calls of ranks that have not answered


class Profiling:
    """Acts on each alert once, and on each run at most every five minutes.

    A request is a field of the ledgers, so this user must own them or be root. Nothing ends or slows a rank
    that does not answer.
    """

    def __init__(self, policy: Policy, audit: Audit, owners: Owners) -> None:
        self._policy, self._audit, self._owners = policy, audit, owners
        self._windows = AskedWindows(policy.ledger_directory)
        self._answered: set[tuple[str, str]] = set()
        self._last: dict[str, float] = {}  # by run: when it was asked
        self._wakes = False

    def answer(self, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
        """Acts on new alerts that fire on this node. Returns the decisions.

        Raises OSError if the ledgers cannot be read, and asks nobody then, or if the audit cannot be written.
        """
        return [
            self._decide(alert)
            for alert in alerts
            if self._policy.is_about(alert, self._policy.profiled) and alert.key not in self._answered
        ]

    def _decide(self, alert: Alert) -> dict[str, Any]:
        decision, reason, ranks = self._decision(alert)
        about = self._policy.about(alert)
        entry = {"decision": decision, "reason": reason, **about, "ranks": ranks}
        self._audit.write("decision", entry)
        self._answered.add(alert.key)
        return entry

    def _decision(self, alert: Alert) -> tuple[str, str, dict[int, str]]:
        runs, reason = run_of(alert, self._owners)
        if reason:
            return "refused", reason, {}
        run, rank = alert.labels["run"], alert.labels.get("rank", "")
        accused = int(rank) if rank.isdecimal() else None
        chosen = with_a_peer(self._windows.ranks(runs), accused)
        if not chosen:
            return "nothing to profile", "no accused rank of the run trains on this node", {}
        if monotonic() - self._last.get(run, -DISTANCE) < DISTANCE:
            return "refused", f"the run had a request less than {DISTANCE:g} s ago", {}
        if not self._policy.act:
            return "would profile", "dry run: --act is not given", {each.rank: "" for each in chosen}
        self._last[run] = monotonic()
        asked = self._windows.ask(chosen)
        self._wake()
        if all(asked.values()):
            return "refused", "no rank could be asked", asked
        return "profile", "the rule is one of --profile-on", asked

    def _wake(self, again: bool = False) -> None:
        """Wakes the ranks until they have answered."""
        if again or not self._wakes:
            self._wakes = self._windows.wake()
            if self._wakes:
                asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake, True)
