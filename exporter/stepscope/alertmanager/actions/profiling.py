"""Asks a run's accused rank, and a median peer, for a profile window when an allowed rule has fired."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Any

from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Policy, run_of
from stepscope.exporter.ledgers.asked_windows import DISTANCE, AskedWindows, TrainingRank, with_a_peer

logger = logging.getLogger(__name__)

PROFILE = "profile"  # the decision to ask ranks
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

        Each decision is in the audit before any rank is asked. Raises OSError, and asks nobody, if the audit
        cannot be written or the ledgers cannot be read.
        """
        return [
            self._decide(alert)
            for alert in alerts
            if self._policy.is_about(alert, self._policy.profiled) and alert.key not in self._answered
        ]

    def _decide(self, alert: Alert) -> dict[str, Any]:
        decision, reason, chosen = self._decision(alert)
        about = self._policy.about(alert)
        ranks = [each.rank for each in chosen]
        entry = {"decision": decision, "reason": reason, **about, "ranks": ranks}
        self._audit.write("decision", entry)
        self._answered.add(alert.key)
        if decision == PROFILE:
            self._last[alert.labels["run"]] = monotonic()
            self._ask(chosen, about)
        return entry

    def _decision(self, alert: Alert) -> tuple[str, str, list[TrainingRank]]:
        runs, reason = run_of(alert, self._owners)
        if reason:
            return "refused", reason, []
        run, rank = alert.labels["run"], alert.labels.get("rank", "")
        accused = int(rank) if rank.isdecimal() else None
        chosen = with_a_peer(self._windows.ranks(runs), accused)
        if not chosen:
            return "nothing to profile", "no accused rank of the run trains on this node", []
        if monotonic() - self._last.get(run, -DISTANCE) < DISTANCE:
            return "refused", f"the run had a request less than {DISTANCE:g} s ago", []
        if not self._policy.act:
            return "would profile", "dry run: --act is not given", chosen
        return PROFILE, "the rule is one of --profile-on", chosen

    def _ask(self, ranks: Collection[TrainingRank], about: dict[str, Any]) -> None:
        for rank, reason in self._windows.ask(ranks).items():
            result = reason or "sent"
            try:
                self._audit.write("request", {"rank": rank, "result": result, **about})
            except OSError as error:  # the decision is in the audit, with this rank
                logger.error("not in the audit: a window of rank %d: %s (%s)", rank, result, error)
        self._wake()

    def _wake(self, again: bool = False) -> None:
        """Wakes the ranks until they have answered."""
        if again or not self._wakes:
            self._wakes = self._windows.wake()
            if self._wakes:
                asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake, True)
