"""A model of Alertmanager: what it sends, when and to whom, for alerts that begin and end at known moments.

Source: Alertmanager 0.25's dispatch/dispatch.go (groups and their timers), notify/notify.go (DedupStage) and
inhibit/inhibit.go. It has no silences, no time intervals, one instance, and receivers that never fail.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any

import yaml
from stepscope.common.durations import parse_duration

CLEANING = 30.0  # seconds between two looks for empty groups
DEFAULTS = {"group_wait": "30s", "group_interval": "5m", "repeat_interval": "4h"}

Labels = Mapping[str, str]
_Name = frozenset[tuple[str, str]]  # of an alert: its labels
_Key = tuple[int, tuple[tuple[str, str], ...]]  # of a group: its route and its labels


@dataclass(frozen=True)
class Alert:
    """An alert that Prometheus sends; `end` is when it says that the alert is resolved."""

    labels: Labels
    begin: float
    end: float = inf


@dataclass(frozen=True)
class Notification:
    """One message: the alerts in it that fire, and those that are resolved."""

    time: float
    receiver: str
    firing: Sequence[Alert]
    resolved: Sequence[Alert]


class Matchers:
    """Conditions on labels, all of which must hold. A label that is absent is an empty one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._each = []
        for text in texts:
            found = re.fullmatch(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"?(.*?)"?\s*', text)
            assert found is not None, f"{text}: is not a matcher"
            name, sign, value = found.groups()
            self._each.append((name, re.compile(value if "~" in sign else re.escape(value)), sign[0] == "="))

    def match(self, labels: Labels) -> bool:
        return all(
            (regex.fullmatch(labels.get(name, "")) is not None) is yes for name, regex, yes in self._each
        )


class Route:
    """A node of the routing tree."""

    def __init__(self, written: Mapping[str, Any], parent: Mapping[str, Any]) -> None:
        inherited = {name: parent[name] for name in (*DEFAULTS, "receiver", "group_by") if name in parent}
        self.settings: Mapping[str, Any] = {**inherited, **written}
        self.matchers = Matchers(written.get("matchers", ()))
        self.goes_on = bool(written.get("continue", False))
        self.routes = [Route(each, self.settings) for each in written.get("routes", ())]
        self.receiver: str = self.settings["receiver"]
        self.group_by: Sequence[str] = self.settings.get("group_by", ())
        self.wait, self.interval, self.repeat = (parse_duration(self.settings[name]) for name in DEFAULTS)

    def of(self, labels: Labels) -> "list[Route]":
        """Returns the routes that an alert takes."""
        if not self.matchers.match(labels):
            return []
        found: list[Route] = []
        for route in self.routes:
            own = route.of(labels)
            found += own
            if own and not route.goes_on:
                break
        return found or [self]

    def group(self, labels: Labels) -> tuple[tuple[str, str], ...]:
        """Returns the labels that name the alert's group."""
        names = labels if "..." in self.group_by else self.group_by
        return tuple(sorted((name, labels[name]) for name in names if name in labels))


@dataclass(frozen=True)
class Inhibition:
    """Alerts that `source` matches silence those that `target` matches, if the labels `equal` are equal."""

    source: Matchers
    target: Matchers
    equal: Sequence[str]

    def key(self, labels: Labels) -> tuple[str, ...]:
        """Returns what must be equal."""
        return tuple(labels.get(name, "") for name in self.equal)


@dataclass
class _Group:
    """The alerts of a route with equal labels, and what was last sent about them."""

    route: Route
    flush: float  # the next one
    alerts: dict[_Name, Alert] = field(default_factory=dict)


@dataclass
class _Sent:
    """What was last sent about a group."""

    time: float
    firing: frozenset[_Name]
    resolved: frozenset[_Name]


class Alertmanager:
    """A configuration. `notifications` plays what happens to some alerts."""

    def __init__(self, text: str, resent: float = 0.0) -> None:
        """Reads an alertmanager.yml. Resolved alerts are sent to it again for `resent` seconds."""
        written = yaml.safe_load(text)
        self._resent = resent
        self._route = Route(written["route"], DEFAULTS)
        self._inhibitions = [
            Inhibition(
                Matchers(each.get("source_matchers", ())),
                Matchers(each.get("target_matchers", ())),
                each.get("equal", ()),
            )
            for each in written.get("inhibit_rules", ())
        ]
        self._send_resolved = {each["name"]: _sends_resolved(each) for each in written["receivers"]}

    def notifications(self, alerts: Sequence[Alert], until: float) -> Iterator[Notification]:
        """Yields what is sent before `until`, for alerts whose moments are seconds."""
        sources = self._sources(alerts)
        groups: dict[_Key, _Group] = {}
        sent: dict[_Key, _Sent] = {}
        coming = sorted(alerts, key=lambda alert: alert.begin, reverse=True)
        due: list[tuple[float, int, _Key]] = []
        pushed = count()
        while coming or due:
            now = min(coming[-1].begin if coming else inf, due[0][0] if due else inf)
            if now >= until:
                return
            if coming and coming[-1].begin <= now:
                alert = coming.pop()
                for route in self._route.of(alert.labels):
                    key = id(route), route.group(alert.labels)
                    if key not in groups or _was_cleaned(groups[key], now):
                        groups[key] = _Group(route, now + route.wait)
                        heappush(due, (groups[key].flush, next(pushed), key))
                    groups[key].alerts[frozenset(alert.labels.items())] = alert
                continue
            _, _, key = heappop(due)
            group = groups.get(key)
            if group is None or now != group.flush:
                continue  # its group was cleaned, and may have been made again
            if _was_cleaned(group, now):
                del groups[key]
                continue
            shown = {
                name: alert
                for name, alert in group.alerts.items()
                if not self._is_silenced(alert, sources, now)
            }
            message = self._message(group.route, shown, sent, key, now)
            if message is not None:
                yield message
            group.alerts = {
                name: alert for name, alert in group.alerts.items() if alert.end + self._resent > now
            }
            group.flush = now + group.route.interval
            heappush(due, (group.flush, next(pushed), key))

    def _message(
        self, route: Route, shown: Mapping[_Name, Alert], sent: dict[_Key, _Sent], key: _Key, now: float
    ) -> Notification | None:
        """Returns what is sent now about the alerts of a group that are not silenced."""
        firing = {name: alert for name, alert in shown.items() if alert.end > now}
        resolved = {name: alert for name, alert in shown.items() if alert.end <= now}
        before, send_resolved = sent.get(key), self._send_resolved[route.receiver]
        if before is not None and now - before.time > 2 * route.repeat:
            before = None  # forgotten
        if not shown or not _is_news(
            before, firing.keys(), resolved.keys(), send_resolved, route.repeat, now
        ):
            return None
        sent[key] = _Sent(now, frozenset(firing), frozenset(resolved))
        if not firing and not send_resolved:
            return None
        told = list(resolved.values()) if send_resolved else []
        return Notification(now, route.receiver, list(firing.values()), told)

    def _sources(self, alerts: Sequence[Alert]) -> list[dict[tuple[str, ...], list[Alert]]]:
        """Returns the alerts that may silence others, by what must be equal, per inhibition."""
        found: list[dict[tuple[str, ...], list[Alert]]] = []
        for each in self._inhibitions:
            own: dict[tuple[str, ...], list[Alert]] = {}
            for alert in alerts:
                if each.source.match(alert.labels):
                    own.setdefault(each.key(alert.labels), []).append(alert)
            found.append(own)
        return found

    def _is_silenced(
        self, alert: Alert, sources: Sequence[Mapping[tuple[str, ...], Sequence[Alert]]], now: float
    ) -> bool:
        for each, own in zip(self._inhibitions, sources, strict=True):
            if not each.target.match(alert.labels):
                continue
            # An alert on both sides silences no other one on both sides, itself least of all.
            on_both = each.source.match(alert.labels)
            if any(
                source.begin <= now < source.end and not (on_both and each.target.match(source.labels))
                for source in own.get(each.key(alert.labels), ())
            ):
                return True
        return False


def _is_news(
    before: _Sent | None,
    firing: Set[_Name],
    resolved: Set[_Name],
    send_resolved: bool,
    repeat: float,
    now: float,
) -> bool:
    """Returns whether something must be sent (DedupStage.needsUpdate)."""
    if before is None:
        return bool(firing)
    if not firing <= before.firing:
        return True
    if not firing:
        return bool(before.firing)
    if send_resolved and not resolved <= before.resolved:
        return True
    return now - before.time > repeat


def _was_cleaned(group: _Group, now: float) -> bool:
    """Returns whether the group had no alert when Alertmanager last looked for such groups."""
    last_flush = group.flush - group.route.interval
    return not group.alerts and CLEANING * ceil(last_flush / CLEANING) <= now


def _sends_resolved(receiver: Mapping[str, Any]) -> bool:
    """Returns whether a receiver wants resolved alerts; one without a destination counts as if it did."""
    each = [setting for name, found in receiver.items() if name.endswith("_configs") for setting in found]
    return all(setting.get("send_resolved", True) for setting in each)
