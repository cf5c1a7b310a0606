"""Decides which processes an alert stops, and why others are spared."""

import logging
from collections.abc import Sequence
from time import time
from typing import Any

from stepscope.alertmanager.actions.audit import STOP, Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Policy, run_of
from stepscope.alertmanager.actions.processes import TrainingProcess, processes_of

logger = logging.getLogger(__name__)


class Stopping:
    """Acts on each alert once: a repeated notification of it does nothing more.

    A process also gets one SIGTERM only, because a second signal ends many scripts in the middle of their
    checkpoint. Processes that began after the alert are spared: a restarted run of the same name continues.
    """

    def __init__(self, policy: Policy, audit: Audit, owners: Owners) -> None:
        self._policy, self._audit, self._owners = policy, audit, owners
        # The audit remembers only decisions that were acted on, not those of dry runs.
        self._answered = set(audit.alerts)
        self._asked: set[tuple[int, int | None]] = {*audit.processes}

    def answer(self, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
        """Acts on new alerts that fire on this node. Returns the decisions.

        Each decision is in the audit before any signal is sent. Raises OSError, and sends nothing, if the
        audit cannot be written or the ledgers cannot be read.
        """
        return [
            self._decide(alert)
            for alert in alerts
            if self._policy.is_about(alert) and alert.key not in self._answered
            if not self._policy.is_about(alert, self._policy.profiled)
            or self._policy.is_about(alert, self._policy.rules)
        ]

    def _decide(self, alert: Alert) -> dict[str, Any]:
        about = self._policy.about(alert)
        if about["rule"] not in self._policy.rules:
            return self._settle(alert, about, "refused", "the rule is not one of --stop-on")
        if self._policy.runs and not about["run"].startswith(tuple(self._policy.runs)):
            return self._settle(alert, about, "refused", "the run's name does not begin as --stop-runs says")
        meant, reason = run_of(alert, self._owners)
        if reason:
            return self._settle(alert, about, "refused", reason, answered=not meant)
        processes = [
            process
            for name, owner in meant
            for process in processes_of(name, owner, self._policy.ledger_directory)
        ]
        return self._stop(alert, about, processes)

    def _stop(
        self, alert: Alert, about: dict[str, Any], processes: Sequence[TrainingProcess]
    ) -> dict[str, Any]:
        reasons = [self._reason_to_spare(process, alert) for process in processes]
        chosen = [process for process, reason in zip(processes, reasons, strict=True) if not reason]
        if not_now := self._not_now(chosen, alert):
            return self._settle(alert, about, "refused", not_now, answered=False)
        entries = [
            {
                "pid": process.pid,
                "start": process.key[1],
                "user": process.owner,
                "rank": process.rank,
                "ledger": process.ledger,
                "stop": not reason,
                **({"reason": reason} if reason else {}),
            }
            for process, reason in zip(processes, reasons, strict=True)
        ]
        if not chosen:
            why = "all were spared" if reasons else "the run has no live process on this node"
            return self._settle(alert, about, "nothing to stop", why, entries)
        if not self._policy.act:
            decision = self._settle(alert, about, "would stop", "dry run: --act is not given", entries)
        else:
            decision = self._settle(alert, about, STOP, "the rule is one of --stop-on", entries)
        self._asked.update(process.key for process in chosen)
        if self._policy.act:
            self._ask(chosen, about)
        return decision

    def _not_now(self, processes: Sequence[TrainingProcess], alert: Alert) -> str:
        """Returns why a later notification of the alert may stop the run, but this one does not; or "".

        An alert is seconds to minutes old when it arrives. Ledgers and Prometheus say what is now.
        """
        if not processes:
            return ""
        if alert.labels.get("standstill") and any(
            process.trains_since(alert.starts_at.timestamp()) for process in processes
        ):
            return "a rank has finished a step since the alert began"
        if any(process.writes_checkpoint(time()) for process in processes):
            return "a rank writes a checkpoint"
        return self._policy.why_not(alert) if self._policy.why_not else ""

    def _reason_to_spare(self, process: TrainingProcess, alert: Alert) -> str:
        if process.spared:
            return process.spared
        if process.key in self._asked:
            return "has been asked to stop before"
        return "began after the alert did" if process.run_start > alert.starts_at.timestamp() else ""

    def _ask(self, processes: Sequence[TrainingProcess], about: dict[str, Any]) -> None:
        results = [process.ask_to_stop() for process in processes]
        for process, result in zip(processes, results, strict=True):
            sent = {"signal": "SIGTERM", "result": result, "pid": process.pid, "user": process.owner}
            sent["rank"] = process.rank
            try:
                self._audit.write("signal", {**sent, **about})
            except OSError as error:  # the signals are sent anyway, and the decision is in the audit
                logger.error("not in the audit: SIGTERM to process %d: %s (%s)", process.pid, result, error)

    def _settle(
        self,
        alert: Alert,
        about: dict[str, Any],
        decision: str,
        reason: str,
        processes: Sequence[dict[str, Any]] = (),
        answered: bool = True,
    ) -> dict[str, Any]:
        entry = {"decision": decision, "reason": reason, **about, "processes": list(processes)}
        self._audit.write("decision", entry)
        if answered:
            self._answered.add(alert.key)
        return entry
