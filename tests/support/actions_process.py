"""The real `stepscope actions` in a process of its own, listening on a port that the kernel chose."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.support.training_process import RESNET
from tests.support.waiting import SECONDS, wait_until

COMMAND = [sys.executable, "-m", "stepscope", "actions"]
TOKEN = "0123456789abcdef0123"


class Actions:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self.url = ""

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if match := re.search(r"listening on (\S+)/$", line):
                self.url = match[1]

    def post(self, content: object, token: str | None = TOKEN) -> requests.Response:
        """Posts JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return requests.post(f"{self.url}/alerts", data=body, headers=headers, timeout=SECONDS)

    def decisions(self, content: object) -> list[dict[str, Any]]:
        response = self.post(content)
        assert response.status_code == 200, response.text
        decisions: list[dict[str, Any]] = response.json()["decisions"]
        return decisions

    def wait_for(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or self._ended())

    def _ended(self) -> bool:
        assert self.process.poll() is None, self.log
        return False


def served(process: subprocess.Popen[str]) -> psutil.Process:
    """Returns the process that a sandbox started, otherwise the process itself."""
    started = psutil.Process(process.pid)
    return next(iter(started.children()), started)


@contextmanager
def actions(*flags: object, node: str = "gpu-node-1", sandbox: Sequence[str] = ()) -> Iterator[Actions]:
    """Starts it, with `sandbox` before its command (the words of a Sandbox)."""
    words = [*sandbox, *COMMAND, "--web.listen-address=127.0.0.1:0", f"--node={node}", *map(str, flags)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, encoding="utf-8") as process:
        running = Actions(process)
        reader = threading.Thread(target=running.read_log)
        reader.start()
        try:
            running.wait_for(lambda: bool(running.url))
            yield running
            served(process).terminate()
            assert process.wait(SECONDS) == 0, running.log
        finally:
            with suppress(psutil.NoSuchProcess):
                served(process).kill()
            process.kill()
            reader.join()


@contextmanager
def acting(folder: Path, *flags: object) -> Iterator[Actions]:
    """One that really stops runs; its ledgers are in FOLDER/ledgers, its audit is FOLDER/audit."""
    (folder / "token").write_text(f"{TOKEN}\n")
    told = [f"--ledger-dir={folder / 'ledgers'}", f"--audit-file={folder / 'audit'}"]
    told += ["--act", "--stop-on=TrainingStalled", f"--token-file={folder / 'token'}"]
    with actions(*told, *flags) as running:
        yield running


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit").read_text().splitlines()]


def a_notification(*alerts: dict[str, Any]) -> dict[str, Any]:
    """What Alertmanager 0.25 posts."""
    return {
        "receiver": "actions",
        "status": "firing",
        "alerts": list(alerts),
        "groupLabels": {"alertname": "StepscopeTrainingStalled", "run": RESNET},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://localhost:9093",
        "version": "4",
        "groupKey": f'{{}}:{{alertname="StepscopeTrainingStalled", run="{RESNET}"}}',
        "truncatedAlerts": 0,
    }


def an_alert_of_it(**changes: Any) -> dict[str, Any]:
    """A TrainingStalled of run resnet on gpu-node-1, which began after all that a test starts."""
    labels = {"alertname": "StepscopeTrainingStalled", "rule": "TrainingStalled", "severity": "critical"}
    labels |= {"run": RESNET, "instance": "gpu-node-1", **changes.pop("labels", {})}
    return {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": "stalled"},
        "startsAt": "2100-01-02T03:04:05.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://localhost:9090/graph",
        "fingerprint": "e11baca0a7ab1b4c",
        **changes,
    }
