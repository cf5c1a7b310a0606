"""Decides which processes an alert stops, and why others are spared."""

from collections.abc import Sequence
from time import time
from typing import Any

from stepscope.alertmanager.actions.audit import STOP, Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Action, Policy, run_of
from stepscope.alertmanager.actions.processes import TrainingProcess, processes_of


class Stopping(Action):
    """Stops the processes of runs.

    A process gets one SIGTERM only, because a second signal ends many scripts in the middle of their
    checkpoint. Processes that began after the alert are spared: a restarted run of the same name continues.
    """

    def __init__(self, policy: Policy, audit: Audit, owners: Owners) -> None:
        super().__init__(policy, audit, owners)
        # The audit remembers only decisions that were acted on, not those of dry runs.
        self._answered |= audit.alerts
        self._asked: set[tuple[int, int | None]] = {*audit.processes}

    def _is_meant(self, alert: Alert) -> bool:
        policy = self._policy
        is_of_others = policy.is_about(alert, policy.profiled) and not policy.is_about(alert, policy.rules)
        return policy.is_about(alert) and not is_of_others

    def _decide(self, alert: Alert) -> dict[str, Any]:
        about = self._policy.about(alert)
        if about["rule"] not in self._policy.rules:
            return self._refuse(alert, "the rule is not one of --stop-on")
        if self._policy.runs and not about["run"].startswith(tuple(self._policy.runs)):
            return self._refuse(alert, "the run's name does not begin as --stop-runs says")
        meant, reason = run_of(alert, self._owners)
        if reason:
            return self._refuse(alert, reason, answered=not meant)
        processes = [
            process
            for name, owner in meant
            for process in processes_of(name, owner, self._policy.ledger_directory)
        ]
        return self._stop(alert, processes)

    def _refuse(self, alert: Alert, reason: str, answered: bool = True) -> dict[str, Any]:
        return self._settle(alert, "refused", reason, answered, processes=[])

    def _stop(self, alert: Alert, processes: Sequence[TrainingProcess]) -> dict[str, Any]:
        reasons = [self._reason_to_spare(process, alert) for process in processes]
        chosen = [process for process, reason in zip(processes, reasons, strict=True) if not reason]
        if not_now := self._not_now(chosen, alert):
            return self._refuse(alert, not_now, answered=False)
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
            return self._settle(alert, "nothing to stop", why, processes=entries)
        if not self._policy.act:
            why, decision = "dry run: --act is not given", "would stop"
        else:
            why, decision = "the rule is one of --stop-on", STOP
        settled = self._settle(alert, decision, why, processes=entries)
        self._asked.update(process.key for process in chosen)
        if self._policy.act:  # all are asked before the first result is written
            for process, result in [(process, process.ask_to_stop()) for process in chosen]:
                done = f"SIGTERM to process {process.pid}"
                sent = {"signal": "SIGTERM", "result": result, "pid": process.pid, "user": process.owner}
                self._note("signal", alert, done, **sent, rank=process.rank)
        return settled

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
