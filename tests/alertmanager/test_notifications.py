"""The real Alertmanager tells stubs of a webhook, Slack and a mail server: who hears what, in which words."""

import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.alertmanager import (
    ALERTMANAGER,
    DEADMAN,
    TEAMS,
    Alertmanager,
    HttpStub,
    alertmanager,
    an_alert,
    configured,
    ended,
    http_stub,
    labels_by_rule,
    mail_stub,
    needs_alertmanager,
    needs_teams,
    now,
)

pytestmark = needs_alertmanager

STARTED = "2024-01-02T03:04:05Z"
RESOLVED = {"endsAt": "2024-01-02T03:34:05Z"}
HOSTILE = (
    'x\n*Where:* nowhere <!channel> & <http://evil.test|click> {{ .ExternalURL }} "><script>'
    "__underlined__ _slanted_ ~struck~ `typed` :skull: http://evil.test #channel end\u202e"
)
MARKUP = re.compile(r"[<>&@|`~#\n\u202e]|\*.?Where|__|_slanted|slanted_|:skull|://evil")  # of HOSTILE


Told = tuple[Alertmanager, HttpStub]


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Told]:
    """The committed configuration with the webhook switched on."""
    with http_stub() as stub:
        config = configured(
            tmp_path, "webhook", {"http://localhost:8080/": f"{stub.url}/"}, {"webhook-token": "secret-word"}
        )
        with alertmanager(config) as server:
            yield server, stub


@pytest.fixture
def slack(tmp_path: Path) -> Iterator[Told]:
    with http_stub() as stub:
        config = configured(tmp_path, "slack", secrets={"slack-url": f"{stub.url}/services/T0/B0/x"})
        with alertmanager(config) as server:
            yield server, stub


def test_alerts_of_a_run_and_rule_come_in_one_notification_and_so_does_their_end(webhook: Told) -> None:
    server, stub = webhook
    idle = [an_alert("LowGPUUtilization", gpu=str(gpu)) for gpu in range(3)]
    elsewhere = an_alert("LowGPUUtilization", instance="gpu-node-2", gpu="0")
    other_run = an_alert("LowGPUUtilization", run="bert", gpu="0")
    server.post(*idle, elsewhere, other_run)
    came = sorted((stub.next().content for _ in range(2)), key=lambda content: len(content["alerts"]))
    assert [content["groupLabels"] for content in came] == [
        {"alertname": "StepscopeLowGPUUtilization", "run": "bert"},
        {"alertname": "StepscopeLowGPUUtilization", "run": "resnet"},
    ]
    assert sorted((alert["labels"]["instance"], alert["labels"]["gpu"]) for alert in came[1]["alerts"]) == [
        ("gpu-node-1", "0"),
        ("gpu-node-1", "1"),
        ("gpu-node-1", "2"),
        ("gpu-node-2", "0"),
    ]
    assert came[1]["version"] == "4"
    assert came[1]["alerts"][0]["annotations"]["recommendation"] == "Mend LowGPUUtilization."

    server.post(ended(other_run))
    end = stub.next()
    assert (end.content["status"], end.content["groupLabels"]["run"]) == ("resolved", "bert")
    assert end.headers["Authorization"] == "Bearer secret-word"
    assert stub.posted.empty()


def test_a_run_with_ranks_on_several_nodes_is_one_notification_per_rule(webhook: Told) -> None:
    """Each rule that alerts, symptoms included, on a run of its own, so that none silences another."""
    server, stub = webhook
    rules, nodes = sorted(labels_by_rule()), ["gpu-node-1", "gpu-node-2", "gpu-node-3"]
    server.post(
        *(
            an_alert(rule, run=f"of-{rule}", instance=node, user="alice", rank=str(rank), gpu="0")
            for rule in rules
            for rank, node in enumerate(nodes)
        )
    )
    came = [stub.next().content for _ in rules]
    told = {content["commonLabels"]["rule"]: content["alerts"] for content in came}
    assert sorted(told) == rules
    for alerts in told.values():
        assert sorted(alert["labels"]["instance"] for alert in alerts) == nodes
    server.post(sentinel := an_alert("Sentinel", run=now()))
    assert stub.next().content["groupLabels"]["run"] == sentinel["labels"]["run"]


def heard(server: Alertmanager, stub: HttpStub, expected: int) -> set[tuple[str, str, str]]:
    """The rule, run and node of all alerts told until an alert that is posted now is told.

    By then those that came before it have been told, or will not be.
    """
    told = [stub.next().content for _ in range(expected)]
    sentinel = an_alert("Sentinel", run=now())
    server.post(sentinel)
    while told[-1]["groupLabels"].get("run") != sentinel["labels"]["run"]:
        told.append(stub.next().content)
    return {
        (alert["labels"]["rule"], alert["labels"]["run"], alert["labels"]["instance"])
        for content in told[:-1]
        for alert in content["alerts"]
    }


def test_a_busy_core_silences_the_idle_gpus_of_its_node_and_run_and_no_others(webhook: Told) -> None:
    server, stub = webhook
    cause = an_alert("CPUBottleneck")
    server.post(
        cause,
        an_alert("LowGPUUtilization", gpu="0"),
        an_alert("BatchSize", gpu="0"),
        an_alert("StepOutlier", rank="0"),
        an_alert("BatchSize", gpu="0", instance="gpu-node-2"),
        an_alert("LowGPUUtilization", gpu="0", run="bert"),
    )
    assert heard(server, stub, expected=4) == {
        ("CPUBottleneck", "resnet", "gpu-node-1"),
        ("StepOutlier", "resnet", "gpu-node-1"),
        ("BatchSize", "resnet", "gpu-node-2"),
        ("LowGPUUtilization", "bert", "gpu-node-1"),
    }
    assert server.suppressed() == {"LowGPUUtilization", "BatchSize"}

    # once the cause is gone, the symptom that stays is told
    server.post(ended(cause))
    assert heard(server, stub, expected=3) == {
        ("CPUBottleneck", "resnet", "gpu-node-1"),
        ("LowGPUUtilization", "resnet", "gpu-node-1"),
        ("BatchSize", "resnet", "gpu-node-1"),
        ("BatchSize", "resnet", "gpu-node-2"),
    }


def test_a_straggler_silences_the_waiting_of_its_peers_on_all_nodes_of_the_run(webhook: Told) -> None:
    server, stub = webhook
    straggler = an_alert("Straggler", rank="5")
    server.post(
        straggler,
        an_alert("CommunicationBound", rank="0"),
        an_alert("CommunicationBound", rank="8", instance="gpu-node-2"),
        an_alert("CommunicationBound", rank="0", run="bert"),
    )
    assert heard(server, stub, expected=2) == {
        ("Straggler", "resnet", "gpu-node-1"),
        ("CommunicationBound", "bert", "gpu-node-1"),
    }
    server.post(ended(straggler))
    assert ("CommunicationBound", "resnet", "gpu-node-2") in heard(server, stub, expected=2)


def test_of_a_run_that_has_not_begun_only_that_and_what_is_broken_is_told(webhook: Told) -> None:
    server, stub = webhook
    server.post(
        an_alert("MaxInitializationTime", stage="waiting"),
        an_alert("LowGPUUtilization", gpu="0"),
        an_alert("GPUMemoryIncrease", gpu="0"),
        an_alert("GPUError", gpu="0", severity="critical"),
        an_alert("ExporterDown"),
        # it began late, and goes on: all of it is told
        an_alert("MaxInitializationTime", run="late", stage="late"),
        an_alert("LowGPUUtilization", run="late", gpu="0"),
    )
    assert {(rule, run) for rule, run, _ in heard(server, stub, expected=5)} == {
        ("MaxInitializationTime", "resnet"),
        ("GPUError", "resnet"),
        ("ExporterDown", "resnet"),
        ("MaxInitializationTime", "late"),
        ("LowGPUUtilization", "late"),
    }


def test_a_gpu_that_dies_under_several_runs_is_one_message(webhook: Told) -> None:
    server, stub = webhook
    server.post(
        *(
            an_alert("GPUError", run, severity="critical", trouble="xid", audience="platform", gpu="3")
            for run in ("bert", "resnet")
        ),
        *(an_alert("RunFailed", run, audience="platform", fault="GPU") for run in ("bert", "resnet")),
        an_alert("GPULost", run="", trouble="silent", audience="platform", gpu="3"),
        an_alert("RowRemapping", run="", trouble="pending", audience="platform", gpu="3"),
        # on another node, only the driver says so
        an_alert("GPULost", "gpt", "gpu-node-2", trouble="silent", audience="platform", gpu="3"),
        an_alert("RunFailed", "gpt", "gpu-node-2", audience="platform", fault="GPU"),
        # another GPU of the node
        an_alert("PCIeReplays", audience="platform", gpu="4"),
    )
    assert heard(server, stub, expected=3) == {
        ("GPUError", "bert", "gpu-node-1"),
        ("GPUError", "resnet", "gpu-node-1"),
        ("GPULost", "gpt", "gpu-node-2"),
        ("PCIeReplays", "resnet", "gpu-node-1"),
    }
    assert server.suppressed() == {"GPULost", "RowRemapping", "RunFailed"}


def test_slack_is_told_what_where_since_when_how_bad_and_what_to_do(slack: Told) -> None:
    server, stub = slack
    alert = an_alert("CPUBottleneck", starts_at=STARTED)
    server.post(alert)
    posted = stub.next()
    assert posted.path == "/services/T0/B0/x"
    (attachment,) = posted.content["attachments"]
    assert attachment["title"] == "WARNING: StepscopeCPUBottleneck, run resnet on gpu-node-1"
    assert attachment["fallback"] == attachment["title"]
    dashboard = "http://grafana.test/d/stepscope-run?var-run=resnet&var-instance=gpu-node-1"
    assert attachment["title_link"] == dashboard
    assert attachment["color"] == "warning"
    assert attachment["text"].strip() == (
        "gpu-node-1: 71 %  \n"
        "*CPUBottleneck of gpu-node-1*\n"
        "*How bad:* It is 71 % on gpu-node-1, more than 50 %.\n"
        "*What to do:* Mend CPUBottleneck.\n"
        "*Where:* run resnet, since 2024-01-02 03:04:05 UTC\n"
        f"<{dashboard.replace('&', '&amp;')}|Dashboard>\n"
        "<https://docs.test/heuristics.md#cpubottleneck|What the rule means>"
    )

    server.post({**alert, **RESOLVED})
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"] == "RESOLVED: StepscopeCPUBottleneck, run resnet on gpu-node-1"
    assert attachment["color"] == "good"
    assert attachment["text"].startswith(
        "Resolved: gpu-node-1  \n*Where:* run resnet, 2024-01-02 03:04:05 to 2024-01-02 03:34:05 UTC\n"
    )
    assert "What to do" not in attachment["text"]


def test_many_alerts_of_one_rule_make_one_message_of_bearable_length(slack: Told) -> None:
    server, stub = slack
    nodes = [f"gpu-node-{number}" for number in range(12)]
    server.post(*(an_alert("LowGPUUtilization", instance=node, gpu="3") for node in nodes))
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"] == "WARNING: StepscopeLowGPUUtilization, run resnet (12 alerts)"
    text = attachment["text"]
    assert text.count("GPU 3 of gpu-node-") == 4
    assert "and more: 12 nodes, 12 alerts in all  \n" in text
    assert len(text.strip().splitlines()) <= 10
    assert text.count("*What to do:*") == 1  # it is the same for all of them


@pytest.mark.parametrize("rule", ["ExporterDown", "ThermalThrottling"])
def test_fifty_nodes_that_fail_with_their_runs_are_one_message_to_the_platform(
    slack: Told, rule: str
) -> None:
    server, stub = slack
    alerts = [
        an_alert(rule, run=f"run-{node}", instance=f"gpu-node-{node}", audience="platform")
        for node in range(50)
    ]
    server.post(*alerts)
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"] == f"WARNING: Stepscope{rule} (50 alerts)"
    assert "and more: 50 nodes, 50 alerts in all" in attachment["text"]
    assert len(attachment["text"].strip().splitlines()) <= 10
    assert stub.posted.empty()
    server.post(an_alert(rule, audience="platform", cluster="b"))
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"] == f"WARNING: Stepscope{rule}, run resnet on gpu-node-1, cluster b"


def test_a_message_has_the_severity_of_what_fires_whatever_has_ended(slack: Told) -> None:
    server, stub = slack
    waiting = an_alert("MaxInitializationTime", stage="waiting", severity="critical")
    late = an_alert("MaxInitializationTime", stage="late")
    server.post(waiting)
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"].startswith("CRITICAL: StepscopeMaxInitializationTime")
    server.post(ended(waiting), late)
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"] == "WARNING: StepscopeMaxInitializationTime, run resnet on gpu-node-1"
    assert attachment["color"] == "warning"


def test_labels_and_annotations_cannot_forge_a_slack_message(slack: Told) -> None:
    server, stub = slack
    server.post(
        an_alert(
            "CPUBottleneck",
            run=HOSTILE,
            instance="n" * 5000,
            annotations={
                "summary": HOSTILE,
                "description": HOSTILE * 100,
                "dashboard_url": "http://grafana.test/|Click> <!here>",
                "runbook_url": "javascript:alert(1)",
            },
        )
    )
    (attachment,) = stub.next().content["attachments"]
    text = attachment["text"]
    own = "\n*Where:*"
    assert text.count(own) == 1
    assert not MARKUP.findall(text.replace(own, "").replace("\n", " "))
    assert 'nowhere !channel http: //evil.test click {{ .ExternalURL }} " script underlined slanted' in text
    assert (
        "struck typed : skull: http: //evil.test channel end*\n" in text
    )  # Slack ends no bold text after a space
    assert len(text) < 4000
    title = attachment["title"]
    assert title.startswith(
        "WARNING: StepscopeCPUBottleneck, run x Where: nowhere !channel http: //evil.test"
    )
    assert not MARKUP.findall(title)
    assert len(title) < 400
    assert attachment["title_link"] == server.url  # the dashboard's address is none


def test_mail_says_the_same_as_text_and_as_html_and_logs_in_with_the_password_of_the_file(
    tmp_path: Path,
) -> None:
    with mail_stub() as stub:
        changes = {
            "localhost:25": f"{stub.address}\n  smtp_require_tls: false",  # a stub has no certificate
            "root@localhost": "team@example.org",
        }
        config = configured(tmp_path, "email", changes, {"smtp-password": "secret-word"})
        with alertmanager(config) as server:
            alert = an_alert("GPUError", severity="critical", starts_at=STARTED, gpu="3", rank="7")
            server.post(alert)
            mail = stub.next()
            assert mail["Subject"] == "CRITICAL: StepscopeGPUError, run resnet on gpu-node-1"
            assert (mail["From"], mail["To"]) == ("stepscope@localhost", "team@example.org")
            assert base64.b64decode(stub.logins[0]) == b"\0stepscope\0secret-word"
            plain, rich = (mail.get_body((kind,)) for kind in ("plain", "html"))
            assert plain is not None
            assert rich is not None
            dashboard = "http://grafana.test/d/stepscope-run?var-run=resnet&var-instance=gpu-node-1"
            assert plain.get_content().replace("\r\n", "\n").strip() == (
                "GPU 3 of gpu-node-1: 71 %  \n"
                "GPUError of gpu-node-1, gpu 3, rank 7\n"
                "How bad: It is 71 % on gpu-node-1, gpu 3, rank 7, more than 50 %.\n"
                "What to do: Mend GPUError.\n"
                "Where: run resnet, since 2024-01-02 03:04:05 UTC\n"
                f"Dashboard: {dashboard}\n"
                "What the rule means: https://docs.test/heuristics.md#gpuerror"
            )
            page = rich.get_content()
            assert "<b>Where:</b> run resnet, since 2024-01-02 03:04:05 UTC" in page
            assert "<b>What to do:</b> Mend GPUError." in page
            assert f'<a href="{html.escape(dashboard)}">Dashboard</a>' in page

            server.post({**alert, **RESOLVED})
            mail = stub.next()
            assert mail["Subject"] == "RESOLVED: StepscopeGPUError, run resnet on gpu-node-1"


def test_labels_and_annotations_cannot_forge_a_mail(tmp_path: Path) -> None:
    with mail_stub() as stub:
        changes = {"localhost:25": f"{stub.address}\n  smtp_require_tls: false"}
        config = configured(tmp_path, "email", changes, {"smtp-password": "secret-word"})
        with alertmanager(config) as server:
            header = "x\r\nBcc: all@example.org\r\n\r\nforged"
            annotations = {"summary": HOSTILE, "dashboard_url": "javascript:alert(1)"}
            server.post(an_alert("CPUBottleneck", run=header, instance=HOSTILE, annotations=annotations))
            mail = stub.next()
            assert mail["Bcc"] is None
            assert "run x Bcc: all example.org forged on x Where: nowhere" in mail["Subject"]
            plain, rich = (mail.get_body((kind,)) for kind in ("plain", "html"))
            assert plain is not None
            assert rich is not None
            assert plain.get_content().count("\nWhere:") == 1
            page = rich.get_content()
            assert "<script" not in page
            assert "javascript:" not in page
            assert "&lt;" not in page


def several(
    values: list[float], run: str = "resnet", node: str = "gpu-thermal", **more: str
) -> list[dict[str, Any]]:
    return [
        an_alert(
            "LowGPUUtilization",
            run,
            node,
            annotations={"value": f"{value:g}%", "value_order": f"{value:024.6f}"},
            gpu=str(gpu),
            **more,
        )
        for gpu, value in enumerate(values)
    ]


def test_gpus_of_a_node_are_one_line_with_the_range_of_their_values(slack: Told) -> None:
    server, stub = slack
    alerts = several([62, 9.5, 58, 100], user="alice", namespace="ml", pod="resnet-0")
    server.post(*alerts, *several([61], node="gpu-2", user="alice"))
    text = stub.next().content["attachments"][0]["text"]
    assert "4 GPUs of gpu-thermal: 9.5 to 100 %  \n" in text
    assert "GPU 0 of gpu-2: 61 %  \n" in text
    assert "*Where:* run resnet of alice, since " in text  # the other node has no pod


def test_the_title_has_the_worst_severity_and_nothing_begins_with_a_comma(slack: Told) -> None:
    server, stub = slack
    first = an_alert("GPUError", instance="gpu-1", severity="warning", run="")
    server.post(first, an_alert("GPUError", instance="gpu-2", severity="critical", run=""))
    posted = [stub.next().content["attachments"][0] for _ in range(2)]
    assert {one["title"].partition(":")[0] for one in posted} <= {"WARNING", "CRITICAL"}
    assert all("*Where:* since" in one["text"] for one in posted)
    server.post(*several([62], run="mixed", severity="warning"), *several([58], run="mixed", node="z"))
    (attachment,) = stub.next().content["attachments"]
    assert attachment["title"].startswith("WARNING: ")
    assert attachment["color"] == "warning"


# What each receiver is told: where its URL and secret are, and where its message has title and text.
CHAT = {
    "pagerduty": ("routing_key_file: .*", "{0}\n        url: {1}/", {"pagerduty-key": "word"}),
    "opsgenie": ("api_key_file: .*", "{0}\n        api_url: {1}/", {"opsgenie-key": "word"}),
    "discord": ("webhook_url: http://localhost/discord_url", "webhook_url: {1}/", {}),
    "teams": (*next(iter(TEAMS.items())), {"teams-url": "{1}/"}),
}


def chat_message(receiver: str, content: Any) -> tuple[str, str]:
    if receiver == "pagerduty":
        message = content["payload"]["custom_details"]["message"]
        return content["payload"]["summary"], message.removeprefix("Alerts\n")
    if receiver == "opsgenie":
        return content["message"], content["description"]
    if receiver == "teams":
        ((title, text),) = (each["content"]["body"] for each in content["attachments"])
        return title["text"], text["text"]
    (embed,) = content["embeds"]
    return embed["title"], embed["description"]


@pytest.mark.parametrize(
    "receiver",
    [pytest.param(name, marks=[needs_teams] if name == "teams" else []) for name in CHAT],
)
def test_every_receiver_gets_title_lines_and_links_and_no_markup_of_labels(
    receiver: str, tmp_path: Path
) -> None:
    pattern, replacement, secrets = CHAT[receiver]
    with http_stub() as stub:
        committed = re.search(pattern, (ALERTMANAGER / "alertmanager.yml").read_text())
        assert committed
        changes = {pattern: replacement.format(committed[0], stub.url)}
        words = {name: secret.format("", stub.url) for name, secret in secrets.items()}
        config = configured(tmp_path, receiver, changes, words)
        with alertmanager(config) as server:
            server.post(*several([58, 62]))
            title, text = chat_message(receiver, stub.next().content)
            assert title == "WARNING: StepscopeLowGPUUtilization, run resnet on gpu-thermal (2 alerts)"
            assert text.startswith("2 GPUs of gpu-thermal: 58 to 62 %  \n")
            assert "https://docs.test/heuristics.md#lowgpuutilization" in text
            assert len(text.strip().splitlines()) <= 10
            hostile = {
                "summary": HOSTILE,
                "description": HOSTILE + "@everyone",
                "dashboard_url": "javascript:x",
                "runbook_url": "javascript:y",
            }
            server.post(
                an_alert("CPUBottleneck", run=HOSTILE, instance=HOSTILE + "@here", annotations=hostile)
            )
            title, text = chat_message(receiver, stub.next().content)
            own = "**Where:**"
            assert not MARKUP.findall(title + text.replace(own, "").replace("\n", " "))
            assert "javascript" not in text


def test_sns_gets_title_and_lines_without_a_subject_that_it_would_refuse(tmp_path: Path) -> None:
    with http_stub() as stub:
        region = "sigv4: {region: us-east-1"
        changes = {region: f"api_url: {stub.url}/\n        {region}, access_key: key, secret_key: word"}
        with alertmanager(configured(tmp_path, "sns", changes)) as server:
            server.post(*several([58, 62]))
            sent = stub.next().content
    assert sent["TopicArn"] == "arn:aws:sns:us-east-1:123456789012:stepscope"
    title, text = sent["Message"].split("\n", 1)
    assert title == "WARNING: StepscopeLowGPUUtilization, run resnet on gpu-thermal (2 alerts)"
    assert text.startswith("2 GPUs of gpu-thermal: 58 to 62 %")
    assert "Subject" not in sent


def test_the_service_that_expects_the_watchdog_hears_it(tmp_path: Path) -> None:
    with http_stub() as stub:
        config = configured(
            tmp_path, "platform", {**DEADMAN, "http://localhost:8080/deadman": f"{stub.url}/ping"}
        )
        with alertmanager(config) as server:
            server.post(an_alert("CPUBottleneck"), an_alert("Watchdog", severity="none"))
            posted = stub.next()
            assert posted.path == "/ping"
            assert posted.content["groupLabels"]["alertname"] == "StepscopeWatchdog"
            assert stub.posted.empty()
