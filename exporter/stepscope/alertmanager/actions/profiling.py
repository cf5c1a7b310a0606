"""Asks a run's accused rank, and a median peer, for a profile window when an allowed rule has fired."""

import asyncio
from time import monotonic
from typing import Any

from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Action, Policy, run_of
from stepscope.exporter.ledgers.asked_windows import DISTANCE, AskedWindows, TrainingRank, with_a_peer

PROFILE = "profile"  # the decision to ask ranks
WAKE_SECONDS = 0.25  # between two calls of ranks that have not answered


class Profiling(Action):
    """Asks ranks of runs for profile windows, of each run at most every five minutes.

    A request is a field of the ledgers, so this user must own them or be root. Nothing ends or slows a rank
    that does not answer.
    """

    def __init__(self, policy: Policy, audit: Audit, owners: Owners) -> None:
        super().__init__(policy, audit, owners)
        self._windows = AskedWindows(policy.ledger_directory)
        self._last: dict[str, float] = {}  # by run: when it was asked
        self._wakes = False

    def _is_meant(self, alert: Alert) -> bool:
        return self._policy.is_about(alert, self._policy.profiled)

    def _decide(self, alert: Alert) -> dict[str, Any]:
        decision, reason, chosen = self._decision(alert)
        entry = self._settle(alert, decision, reason, ranks=[each.rank for each in chosen])
        if decision == PROFILE:
            self._last[alert.labels["run"]] = monotonic()
            for rank, refusal in self._windows.ask(chosen).items():
                self._note("request", alert, f"a window of rank {rank}", rank=rank, result=refusal or "sent")
            self._wake()
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

    def _wake(self, again: bool = False) -> None:
        """Wakes the ranks until they have answered."""
        if again or not self._wakes:
            self._wakes = self._windows.wake()
            if self._wakes:
                asyncio.get_running_loop().call_later(WAKE_SECONDS, self._wake, True)
