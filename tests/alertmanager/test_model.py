"""The model of Alertmanager in trials/day sends what the real one sends, in the same order.

It runs alone: the timers of the real one are late if others have the cores.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.alertmanager import Alertmanager as Server
from tests.support.alertmanager import (
    HttpStub,
    Replacement,
    alertmanager,
    an_alert,
    configured,
    ended,
    http_stub,
    needs_alertmanager,
    now,
)
from trials.day.notifications import Alert, Alertmanager

pytestmark = [needs_alertmanager, pytest.mark.alone]

# The committed configuration, in seconds. No event below is nearer than 0.4 s to a moment that it could miss.
PACE: Mapping[str, Replacement] = {
    r"group_wait: (?:30|10)s": "group_wait: 1s",
    r"group_wait: 1m": "group_wait: 2s",
    r"group_wait: 5m": "group_wait: 3s",
    r"group_interval: \w+": "group_interval: 3s",
    r"repeat_interval: \w+": "repeat_interval: 7s",
}
UNTIL = 12.1

Told = dict[
    tuple[str, str], list[tuple[set[str], set[str]]]
]  # what fires and what is resolved, by rule and run


Posted = dict[tuple[int, bool], float]  # when, by the number of the event and whether it was its end


def at(
    begin: float,
    end: float,
    rule: str,
    run: str,
    node: str = "gpu-1",
    severity: str = "warning",
    **labels: str,
) -> tuple[float, float, dict[str, Any]]:
    alert = an_alert(rule, run, node, severity)
    alert["labels"] |= labels
    return begin, end, alert


NEVER = 1000.0
EVENTS = [
    # A cause, joined by another node, resolved on the first one: three messages.
    at(0.0, 5.0, "DataStarved", "a", rank="0"),
    at(2.5, NEVER, "DataStarved", "a", "gpu-2", rank="8"),
    # Its symptom on the first node is silent until the cause has ended there.
    at(0.5, NEVER, "LowGPUUtilization", "a", gpu="0"),
    # A symptom of another run is not silenced; nor is one that no cause explains.
    at(0.6, NEVER, "LowGPUUtilization", "b", gpu="0"),
    at(0.6, NEVER, "CommunicationBound", "a", rank="1"),
    # Sent again after the repeat interval.
    at(0.3, NEVER, "ThermalThrottling", "b", gpu="3"),
    # Critical; over before the next message, and back in the same group.
    at(0.2, 2.0, "GPUError", "c", severity="critical"),
    at(8.5, NEVER, "GPUError", "c", severity="critical"),
    # Over before its first message: nobody hears of it.
    at(1.0, 1.5, "Dataloader", "d", severity="info"),
    # Until a run has begun, only failures are reported.
    at(0.1, NEVER, "MaxInitializationTime", "e", stage="waiting"),
    at(0.2, NEVER, "GPUMemoryLeak", "e", gpu="1"),
]  # fmt: skip


def ident(labels: Mapping[str, str]) -> str:
    return " ".join(labels.get(name, "-") for name in ("instance", "gpu", "rank"))


def told_by_model(config: str, posted: Posted, until: float) -> Told:
    alerts = [
        Alert(alert["labels"], posted[number, False], posted.get((number, True), NEVER))
        for number, (_, _, alert) in enumerate(EVENTS)
    ]
    told: Told = {}
    for each in Alertmanager(config).notifications(alerts, until):
        labels = [*each.firing, *each.resolved][0].labels
        told.setdefault((labels["rule"], labels["run"]), []).append(
            ({ident(alert.labels) for alert in each.firing}, {ident(alert.labels) for alert in each.resolved})
        )
    return told


def told_by_alertmanager(server: Server, stub: HttpStub) -> tuple[Told, Posted, float]:
    """Posts each alert when it begins and when it ends, and returns what came to the stub, until when."""
    moments = [(begin, number, False) for number, (begin, _, _) in enumerate(EVENTS)]
    moments += [(end, number, True) for number, (_, end, _) in enumerate(EVENTS) if end < NEVER]
    posted: Posted = {}
    began = time.monotonic()
    for moment, number, over in sorted(moments):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        alert = EVENTS[number][2]
        if not over:
            alert["startsAt"] = now()
        posted[number, over] = time.monotonic() - began
        server.post(ended(alert) if over else alert)
    time.sleep(max(0.0, began + UNTIL - time.monotonic()))
    until = time.monotonic() - began
    told: Told = {}
    while not stub.posted.empty():
        alerts = stub.next().content["alerts"]
        states: dict[str, set[str]] = {"firing": set(), "resolved": set()}
        for alert in alerts:
            states[alert["status"]].add(ident(alert["labels"]))
        labels = alerts[0]["labels"]
        told.setdefault((labels["rule"], labels["run"]), []).append((states["firing"], states["resolved"]))
    return told, posted, until


def test_the_model_sends_what_alertmanager_sends(tmp_path: Path) -> None:
    with http_stub() as stub:
        config = configured(
            tmp_path, "webhook", {"http://localhost:8080/": f"{stub.url}/"}, {"webhook-token": "word"}, PACE
        )
        with alertmanager(config) as server:
            told, posted, until = told_by_alertmanager(server, stub)
        assert told == told_by_model(config.read_text(), posted, until)
    assert ("GPUMemoryLeak", "e") not in told
    assert len(told["ThermalThrottling", "b"]) == 2  # it was repeated
    assert told["GPUError", "c"] == [
        ({"gpu-1 - -"}, set()),
        (set(), {"gpu-1 - -"}),
        ({"gpu-1 - -"}, set()),
    ]
