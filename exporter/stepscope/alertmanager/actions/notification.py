"""Reads what Alertmanager posts to a webhook: version 4 of its payload.

Source: Alertmanager's documentation, "webhook_config", and notify/webhook. Reads the keys that decisions
need and checks their types. Ignores other keys, such as those of newer versions.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

VERSION = "4"

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


class NotificationError(Exception):
    """An invalid notification; the message is one line that names the field."""


@dataclass(frozen=True)
class Alert:
    """One alert of a notification."""

    firing: bool
    labels: Mapping[str, str]
    fingerprint: str  # Alertmanager's number for this set of labels
    starts_at: datetime  # UTC

    @property
    def key(self) -> tuple[str, str]:
        """Returns the identity of the alert: if it fires again later, that is another alert."""
        return self.fingerprint, self.starts_at.isoformat()


@dataclass(frozen=True)
class Notification:
    alerts: tuple[Alert, ...]
    truncated: int  # alerts that Alertmanager left out, by its `max_alerts`


def read_notification(body: bytes) -> Notification:
    """Reads a notification. Raises NotificationError if any part of it is invalid."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotificationError(f"not JSON: {error}") from None
    payload = _object(content, "the payload")
    version = payload.get("version")
    if version != VERSION:
        raise NotificationError(f'version: must be "{VERSION}", not {_shown(version)}')
    alerts = payload.get("alerts")
    if not isinstance(alerts, list):
        raise NotificationError("alerts: must be an array")
    truncated = payload.get("truncatedAlerts", 0)
    if not isinstance(truncated, int) or truncated < 0:
        raise NotificationError("truncatedAlerts: must be a count")
    return Notification(
        tuple(_alert(alert, f"alerts[{index}]") for index, alert in enumerate(alerts)), truncated
    )


def _alert(content: Any, where: str) -> Alert:
    alert = _object(content, where)
    status = alert.get("status")
    if status not in ("firing", "resolved"):
        raise NotificationError(f"{where}.status: must be firing or resolved, not {_shown(status)}")
    labels = _object(alert.get("labels"), f"{where}.labels")
    for name, value in labels.items():
        if not isinstance(value, str):
            raise NotificationError(f"{where}.labels: {_shown(name)} must be a string, not {_shown(value)}")
    fingerprint = alert.get("fingerprint")
    if not isinstance(fingerprint, str) or not re.fullmatch(r"[0-9a-f]{1,64}", fingerprint):
        raise NotificationError(
            f"{where}.fingerprint: must be a hexadecimal number, not {_shown(fingerprint)}"
        )
    return Alert(status == "firing", labels, fingerprint, _time(alert.get("startsAt"), f"{where}.startsAt"))


def _time(value: Any, where: str) -> datetime:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        fraction = (match[2] or ".").ljust(7, "0")[:7]  # microseconds are enough to distinguish alerts
        zone = "+00:00" if match[3] == "Z" else match[3]
        return datetime.fromisoformat(f"{match[1]}{fraction}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise NotificationError(
            f"{where}: must be a time such as 2026-11-20T13:27:00Z, not {_shown(value)}"
        ) from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotificationError(f"{where}: must be an object, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Returns a value as JSON, in one short line of ASCII."""
    text = (
        json.dumps(value) if value is None or isinstance(value, str | int | float) else type(value).__name__
    )
    return text if len(text) <= 60 else f"{text[:60]}..."
