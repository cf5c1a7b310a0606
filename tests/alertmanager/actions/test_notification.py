"""Reading a webhook's payload: what is right is taken, all else is refused in one line that names it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.alertmanager.actions.notification import NotificationError, read_notification

from tests.support.actions_process import a_notification, an_alert_of_it
from tests.support.training_process import RESNET


def read(content: object) -> Any:
    return read_notification(json.dumps(content).encode())


def test_an_alert_is_known_by_its_fingerprint_and_start_in_whatever_time_zone() -> None:
    notification = read(
        a_notification(
            an_alert_of_it(),
            an_alert_of_it(startsAt="2100-01-02T04:04:05.123456000+01:00"),
            an_alert_of_it(startsAt="2100-01-02T03:04:06Z", status="resolved"),
        )
    )
    first, second, third = notification.alerts
    assert first.key == second.key == ("e11baca0a7ab1b4c", "2100-01-02T03:04:05.123456+00:00")
    assert first.key != third.key
    assert (first.firing, third.firing) == (True, False)
    assert first.labels["run"] == RESNET


def test_keys_of_newer_versions_are_passed_over() -> None:
    assert read({**a_notification({**an_alert_of_it(), "new": [1]}), "newer": {}}).alerts


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff{}", "not JSON"),
        (b"[" * 200_000, "not JSON: "),
        (b"9" * 10_000, ""),
        ([], "the payload: must be an object, not list"),
        ({}, 'version: must be "4", not null'),
        ({"version": 4, "alerts": []}, 'version: must be "4", not 4'),
        ({"version": "4"}, "alerts: must be an array"),
        ({"version": "4", "alerts": [], "truncatedAlerts": "x"}, "truncatedAlerts: must be a count"),
        (a_notification(an_alert_of_it(), "x"), 'alerts[1]: must be an object, not "x"'),  # type: ignore[arg-type]
        (
            a_notification(an_alert_of_it(status="fi\nring")),
            r'alerts[0].status: must be firing or resolved, not "fi\nring"',
        ),
        (
            a_notification(an_alert_of_it(labels={"run\n\u202e": 7})),
            r'alerts[0].labels: "run\n\u202e" must be a string, not 7',
        ),
        (a_notification({"status": "firing"}), "alerts[0].labels: must be an object, not null"),
        (
            a_notification(an_alert_of_it(fingerprint="../x")),
            'alerts[0].fingerprint: must be a hexadecimal number, not "../x"',
        ),
        (
            a_notification(an_alert_of_it(startsAt="yesterday")),
            'alerts[0].startsAt: must be a time such as 2026-11-20T13:27:00Z, not "yesterday"',
        ),
        (a_notification(an_alert_of_it(startsAt="0001-01-01T00:00:00+23:00")), "alerts[0].startsAt"),
        (a_notification(an_alert_of_it(startsAt="2026-13-01T00:00:00Z")), "alerts[0].startsAt"),
    ],
)
def test_anything_else_is_refused_in_one_line(content: object, complaint: str) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(NotificationError) as refusal:
        read_notification(body)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 250


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(["status", "labels", "fingerprint", "startsAt"]), json_values)
def test_no_value_in_an_alert_breaks_the_reader(field: str, value: object) -> None:
    complaint, alerts = "", []
    try:
        alerts = read(a_notification({**an_alert_of_it(), field: value})).alerts
    except NotificationError as refusal:
        complaint = str(refusal)
    assert bool(complaint) != (len(alerts) == 1)
    assert "\n" not in complaint
