"""The real Alertmanager with the project's own configuration, and stubs of what it notifies."""

import email.message
import email.parser
import email.policy
import json
import queue
import re
import shutil
import socketserver
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import requests
import yaml
from stepscope.prometheus.rules.files import RULES

from tests.support.http_server import answering
from tests.support.processes import ran
from tests.support.servers import Programs, Servers
from tests.support.waiting import SECONDS

ALERTMANAGER = Path(__file__).parents[2] / "alertmanager"

Replacement = str | Callable[[re.Match[str]], str]

# The same order of things in a fraction of the time.
FASTER: Mapping[str, Replacement] = {
    r"group_wait: \w+": "group_wait: 1s",
    r"group_interval: \w+": "group_interval: 1s",
    r"repeat_interval: \w+": "repeat_interval: 1h",
}

# Stopping runs: "take the "# " from these five lines"
STOPPING = {
    r"(?m)^    # (- receiver: actions|  (?:matchers|group_wait|repeat_interval|continue).*)$": r"    \1"
}

# Microsoft Teams: "uncomment these lines"
TEAMS = {r"(?m)^  # (- name: teams|  .*)$": r"  \1"}

DEADMAN = {"receiver: information # or: deadman": "receiver: deadman"}


def _version() -> tuple[int, ...]:
    """That of the Alertmanager on the PATH; (0,) without one."""
    program = shutil.which("prometheus-alertmanager")
    if program is None:
        return (0,)
    words = ran([program, "--version"], check=True)
    found = re.search(r"version (\d+)\.(\d+)", words.stdout + words.stderr)
    assert found is not None, words.stdout
    return int(found[1]), int(found[2])


needs_alertmanager = pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None, reason="needs Debian's prometheus-alertmanager package"
)

# Older ones refuse the configuration for Microsoft Teams.
needs_teams = pytest.mark.skipif(_version() < (0, 28), reason="needs Alertmanager 0.28")


def configured(
    folder: Path,
    receiver: str,
    changes: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    pace: Mapping[str, Replacement] = FASTER,
) -> Path:
    """A copy of alertmanager/ as docs/notifications.md says to change it; gives its alertmanager.yml.

    `changes` and `pace` are regular expressions and what to put in their place; each must be found.
    """
    copied = folder / "alertmanager"
    shutil.copytree(ALERTMANAGER, copied, ignore=shutil.ignore_patterns("secrets"))
    text = (copied / "alertmanager.yml").read_text()
    replacements: dict[str, Replacement] = {
        "receiver: (platform|owners) #.*": f"receiver: {receiver}",
        **pace,
        **(changes or {}),
    }
    for pattern, replacement in replacements.items():
        text, found = re.subn(pattern, replacement, text)
        assert found, f"{pattern} is not in alertmanager.yml"
    text = text.replace("/etc/alertmanager/", f"{copied}/")
    (copied / "alertmanager.yml").write_text(text)
    (copied / "secrets").mkdir()
    for name, secret in (secrets or {}).items():
        (copied / "secrets" / name).write_text(secret)
    return copied / "alertmanager.yml"


class Alertmanager:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, *alerts: Mapping[str, Any]) -> None:
        """Hands over alerts as Prometheus does: labels, annotations, startsAt, endsAt."""
        response = requests.post(f"{self.url}/api/v2/alerts", json=alerts, timeout=SECONDS)
        assert response.status_code == 200, response.text

    def suppressed(self) -> set[str]:
        """The rules whose alerts are inhibited."""
        return {alert["labels"]["rule"] for alert in self.alerts() if alert["status"]["inhibitedBy"]}

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire, as Alertmanager's API gives them."""
        alerts: list[dict[str, Any]] = requests.get(f"{self.url}/api/v2/alerts", timeout=SECONDS).json()
        return alerts


@contextmanager
def alertmanager(config: Path, servers: Servers | None = None) -> Iterator[Alertmanager]:
    """A running Alertmanager, with a configuration that `configured` gave; by default this machine's."""
    with (servers or Programs()).alertmanager(config) as url:
        yield Alertmanager(url)


@dataclass(frozen=True)
class Posted:
    """One request that came to a stub."""

    path: str
    headers: Mapping[str, str]
    content: Any  # of its JSON


class HttpStub:
    """What Slack or a webhook of one's own would be: answers "ok", and keeps what came."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.posted: queue.Queue[Posted] = queue.Queue()

    def next(self) -> Posted:
        return self.posted.get(timeout=SECONDS)


@contextmanager
def http_stub() -> Iterator[HttpStub]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            form = self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded")
            content = dict(parse_qsl(body.decode())) if form else json.loads(body)
            stub.posted.put(Posted(self.path, dict(self.headers), content))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        stub = HttpStub(port)
        yield stub


class MailStub:
    """A mail server that takes every mail, and asks for a password as real ones do."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.mails: queue.Queue[email.message.EmailMessage] = queue.Queue()
        self.logins: list[str] = []  # base64 of NUL, user, NUL, password

    def next(self) -> email.message.EmailMessage:
        return self.mails.get(timeout=SECONDS)


@contextmanager
def mail_stub() -> Iterator[MailStub]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 stub")
            while line := self.rfile.readline().decode().strip():
                verb = line.split(" ")[0].upper()
                if verb == "EHLO":
                    self._say("250-stub", "250 AUTH PLAIN")
                elif verb == "AUTH":
                    stub.logins.append(line.split(" ")[2])
                    self._say("235 welcome")
                elif verb == "DATA":
                    self._say("354 go on")
                    self._take_mail()
                    self._say("250 taken")
                elif verb == "QUIT":
                    self._say("221 bye")
                    return
                else:  # MAIL, RCPT
                    self._say("250 ok")

        def _say(self, *lines: str) -> None:
            self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

        def _take_mail(self) -> None:
            lines = []
            while (line := self.rfile.readline()) != b".\r\n":
                lines.append(line[1:] if line.startswith(b"..") else line)
            parser = email.parser.BytesParser(policy=email.policy.default)
            mail = parser.parsebytes(b"".join(lines))
            assert isinstance(mail, email.message.EmailMessage)
            stub.mails.put(mail)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False
        allow_reuse_address = True

    with answering(Server(("127.0.0.1", 0), Handler)) as port:
        stub = MailStub(port)
        yield stub


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def ended(alert: Mapping[str, Any]) -> dict[str, Any]:
    return {**alert, "endsAt": now()}


@cache
def labels_by_rule() -> dict[str, dict[str, str]]:
    """What the rule files say of each rule's alerts, whichever of them fires: what is inhibited by what."""
    groups = yaml.load((ALERTMANAGER.parent / "rules" / RULES).read_text(), yaml.CSafeLoader)["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {
        alert["labels"]["rule"]: {
            name: value
            for name, value in alert["labels"].items()
            if name in ("kind", "symptom", "scope", "standstill", "audience")
        }
        for alert in alerts
    }


def an_alert(
    rule: str,
    run: str = "resnet",
    instance: str = "gpu-node-1",
    severity: str = "warning",
    starts_at: str | None = None,
    annotations: Mapping[str, str] | None = None,
    **labels: str,
) -> dict[str, Any]:
    """An alert with the labels and annotations that rules/ gives it.

    It starts now, unless told otherwise: of one that began longer ago Alertmanager tells at once, and
    does not wait for what may inhibit it.
    """
    where = f"{instance}{''.join(f', {name} {value}' for name, value in labels.items())}"
    return {
        "labels": {
            "alertname": f"Stepscope{rule}",
            "rule": rule,
            "severity": severity,
            **labels_by_rule().get(rule, {}),
            "run": run,
            "instance": instance,
            **labels,
        },
        "annotations": {
            "summary": f"{rule} of {where}",
            "description": f"It is 71 % on {where}, more than 50 %.",
            "recommendation": f"Mend {rule}.",
            "value": "71%",
            "value_order": f"{71:024.6f}",
            "dashboard_url": f"http://grafana.test/d/stepscope-run?var-run=resnet&var-instance={instance}",
            "runbook_url": f"https://docs.test/heuristics.md#{rule.lower()}",
            **(annotations or {}),
        },
        "startsAt": starts_at or now(),
    }
