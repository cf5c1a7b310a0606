"""Counts alerts and notifications per rule, receiver and audience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trials.day.jobs import HOUR, Day
from trials.day.notifications import Alert, Notification

HEAD = ("rule", "severity", "audience", "instances", "episodes", "notifications", "of them resolved")
APART = HOUR  # alerts of a rule and run within it are one episode
PLATFORM, OWNER = "platform", "owner"
MOST: Mapping[str, float] = {PLATFORM: 2.0, OWNER: 1.0}  # notifications per 100 GPU-days


@dataclass(frozen=True)
class Totals:
    """What was sent, per 100 GPU-days by audience, and how much of it was critical."""

    rates: Mapping[str, float]
    critical: int

    @property
    def hold(self) -> bool:
        return not self.critical and all(
            rate <= MOST.get(audience, 0.0) for audience, rate in self.rates.items()
        )


def totals(day: Day, notifications: Sequence[Notification]) -> Totals:
    """Returns the numbers that must hold."""
    counts = Counter(audience_of(_first(each).labels) for each in notifications)
    critical = sum(_first(each).labels.get("severity") == "critical" for each in notifications)
    return Totals({name: 100 * count / day.gpu_days for name, count in counts.items()}, critical)


def rows(alerts: Sequence[Alert], notifications: Sequence[Notification]) -> list[tuple[str, ...]]:
    """Returns a row per rule, severity and audience, and their sums per receiver."""
    instances = Counter(_kind(alert.labels) for alert in alerts)
    about = Counter(_kind(_first(each).labels) for each in notifications)
    ends = Counter(_kind(_first(each).labels) for each in notifications if not each.firing)
    found = []
    for kind in sorted(instances):
        own = [alert for alert in alerts if _kind(alert.labels) == kind]
        counts = instances[kind], episodes(own), about[kind], ends[kind]
        found.append((*kind, *(f"{count:,}" for count in counts)))
    for receiver in sorted({each.receiver for each in notifications}):
        sent = [each for each in notifications if each.receiver == receiver]
        counts = len(alerts), episodes(alerts), len(sent), sum(not each.firing for each in sent)
        found.append((f"**all, to {receiver}**", "", "", *(f"{count:,}" for count in counts)))
    return found


def episodes(alerts: Iterable[Alert]) -> int:
    """Returns how many times a rule began to fire for a run, or for a node without one."""
    last: dict[tuple[str, ...], float] = {}
    count = 0
    for alert in sorted(alerts, key=lambda each: each.begin):
        labels = alert.labels
        subject = (
            labels["alertname"],
            labels.get("instance", ""),
            labels.get("run", ""),
            labels.get("trouble", ""),
        )
        count += alert.begin - last.get(subject, -2 * APART) > APART
        last[subject] = max(alert.end, last.get(subject, 0.0))
    return count


def audience_of(labels: Mapping[str, str]) -> str:
    """Returns whom an alert is for. Rules without the label are for the platform."""
    return labels.get("audience", PLATFORM)


def _kind(labels: Mapping[str, str]) -> tuple[str, str, str]:
    rule = labels.get("rule", labels["alertname"].removeprefix("Stepscope"))
    return rule, labels.get("severity", ""), audience_of(labels)


def _first(notification: Notification) -> Alert:
    """Returns an alert of the notification: the first one that fires, if any."""
    return [*notification.firing, *notification.resolved][0]
