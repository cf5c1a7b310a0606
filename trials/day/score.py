"""Counts alerts and notifications per rule, receiver and audience."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trials.day.jobs import HOUR, Day
from trials.day.notifications import Alert, Notification

HEAD = ("rule", "severity", "audience", "instances", "episodes", "notifications", "of them resolved")
DAYS = (
    "seed",
    "scrapes every",
    "jobs",
    "instances",
    "episodes",
    "notifications",
    "to the platform, per 100 GPU-days",
    "to owners, per 100 GPU-days",
    "critical",
)
ORIGINS = ("rule", "trouble", "kind of job", "instances")
APART = HOUR  # alerts of a rule and run within it are one episode
PLATFORM, OWNER = "platform", "owner"
MOST: Mapping[str, float] = {PLATFORM: 2.0, OWNER: 1.0}  # notifications per 100 GPU-days


@dataclass(frozen=True)
class Result:
    """The alerts of a day, and what was sent about them."""

    day: Day
    alerts: Sequence[Alert]
    notifications: Sequence[Notification]

    def sent(self, audience: str) -> float:
        """Returns the notifications to an audience, per 100 GPU-days."""
        count = sum(audience_of(_first(each).labels) == audience for each in self.notifications)
        return 100 * count / self.day.gpu_days

    @property
    def critical(self) -> int:
        """Returns the number of critical notifications."""
        return sum(_first(each).labels.get("severity") == "critical" for each in self.notifications)

    @property
    def holds(self) -> bool:
        """Returns whether no more was sent than may be."""
        return not self.critical and all(self.sent(audience) <= most for audience, most in MOST.items())

    def row(self) -> tuple[str, ...]:
        counts = len(self.day.jobs), len(self.alerts), episodes(self.alerts), len(self.notifications)
        rates = (f"{self.sent(audience):,.1f}" for audience in MOST)
        interval = f"{self.day.interval} s"
        return (str(self.day.seed), interval, *(f"{count:,}" for count in counts), *rates, str(self.critical))


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Returns a row per rule, severity and audience, and one per receiver, which are sums over all days."""
    counts: dict[tuple[str, ...], list[int]] = {}
    for result in results:
        for kind in {_kind(alert.labels) for alert in result.alerts}:
            own = [alert for alert in result.alerts if _kind(alert.labels) == kind]
            sent = [each for each in result.notifications if _kind(_first(each).labels) == kind]
            _count(counts, kind, own, sent)
    receivers: dict[tuple[str, ...], list[int]] = {}
    for result in results:
        for name in sorted({each.receiver for each in result.notifications}):
            sent = [each for each in result.notifications if each.receiver == name]
            _count(receivers, (f"**all, to {name}**", "", ""), result.alerts, sent)
    return [
        (*kind, *(f"{count:,}" for count in numbers))
        for kind, numbers in (*sorted(counts.items()), *sorted(receivers.items()))
    ]


def _count(
    into: dict[tuple[str, ...], list[int]],
    kind: tuple[str, ...],
    alerts: Sequence[Alert],
    sent: Sequence[Notification],
) -> None:
    """Adds instances, episodes, notifications, and those that only say that all is resolved."""
    new = len(alerts), episodes(alerts), len(sent), sum(not each.firing for each in sent)
    into[kind] = [before + more for before, more in zip(into.get(kind, [0] * len(new)), new, strict=True)]


def origins(result: Result) -> list[tuple[str, ...]]:
    """Returns how many instances of each rule are about each kind of job, most first."""
    kinds = {job.run: job.kind.name for job in result.day.jobs if job.run}
    kinds[""] = "node, or a process without Stepscope"
    counts = Counter(
        (
            _kind(alert.labels)[0],
            alert.labels.get("trouble", ""),
            kinds.get(alert.labels.get("run", ""), "unnamed run"),
        )
        for alert in result.alerts
    )
    return [(*origin, f"{count:,}") for origin, count in counts.most_common()]


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
