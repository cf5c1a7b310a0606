"""`stepscope doctor`: each line is tested by breaking what it looks at."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.commands.doctor import checks
from stepscope.commands.doctor.checks import Check, Node
from stepscope.commands.doctor.server import of_prometheus
from stepscope.common.status import Status
from stepscope.prometheus.rules.files import render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

from tests.support.fake_nvml import FakeNvml
from tests.support.http_server import answering
from tests.support.prometheus import needs_prometheus, serving


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node on which everything is measured, apart from its GPUs."""
    for file, text in (
        ("proc/1/stat", "1 (init) S"),
        ("proc/self/schedstat", "1 2 3"),
        ("proc/pressure/cpu", "some avg10=0.00"),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory"),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    ledgers.chmod(0o1777)
    return Node(tmp_path / "proc", tmp_path / "sys", tmp_path / "none.so", ledgers, sys.executable)


@pytest.mark.parametrize("check", [checks.processes, checks.cgroups, checks.pressure, checks.ledgers])
def test_what_is_there_is_healthy_and_needs_no_fix(node: Node, check: Any) -> None:
    found = check(node)
    assert (found.status, found.fix) == (Status.HEALTHY, "")


def said(check: Check | checks.Result) -> tuple[Status, str]:
    assert check.fix, "a line that is not healthy has a fix"
    return check.status, check.found


def test_gpus_are_counted_and_without_a_driver_nothing_is_broken(node: Node, tmp_path: Path) -> None:
    status, found = said(checks.gpus(node))
    assert (status, "no library" in found) == (Status.NOT_ENOUGH_DATA, True)
    fake = FakeNvml(tmp_path / "nvml", gpus=2)
    assert checks.gpus(Node(nvml_library=fake.library)).found == f"NVML reads 2 of driver {fake.driver}"
    fake.unload_driver()
    status, found = said(checks.gpus(Node(nvml_library=fake.library)))
    assert (status, "does not answer" in found) == (Status.FOUND, True)


def test_processes_that_proc_hides_are_found(node: Node) -> None:
    (node.procfs / "1" / "stat").unlink()
    status, found = said(checks.processes(node))
    assert (status, "hides processes" in found) == (Status.FOUND, True)


def test_a_user_who_may_not_see_the_disks_of_others_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    assert "DiskFilling" not in checks.processes(node).found
    monkeypatch.setattr(os, "readlink", refused)
    assert "only root sees on which disks" in checks.processes(node).found


@pytest.mark.parametrize("text", [None, "0 0 0"])
def test_a_kernel_that_counts_no_waits_for_a_core_is_said(node: Node, text: str | None) -> None:
    schedstat = node.procfs / "self" / "schedstat"
    schedstat.unlink() if text is None else schedstat.write_text(text)
    assert said(checks.processes(node))[0] == Status.NOT_ENOUGH_DATA


def test_a_missing_controller_of_cgroups_is_found(node: Node) -> None:
    (node.sysfs / "fs" / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io")
    status, found = said(checks.cgroups(node))
    assert (status, "no memory controller" in found) == (Status.FOUND, True)


def test_a_kernel_without_pressure_is_said(node: Node) -> None:
    (node.procfs / "pressure" / "cpu").unlink()
    assert said(checks.pressure(node))[0] == Status.NOT_ENOUGH_DATA


def test_a_ledger_folder_is_made_by_the_first_training_or_found_missing(node: Node) -> None:
    node.ledgers.rmdir()
    assert checks.ledgers(node).status == Status.HEALTHY
    missing = Node(ledgers=node.ledgers / "deeper")
    status, found = said(checks.ledgers(missing))
    assert (status, "cannot be made" in found) == (Status.FOUND, True)


def test_a_ledger_folder_that_is_not_shared_or_no_folder_is_found(node: Node) -> None:
    node.ledgers.chmod(0o700)
    assert "not shared" in said(checks.ledgers(node))[1]
    node.ledgers.rmdir()
    node.ledgers.write_text("a file")
    assert "cannot be read and written" in said(checks.ledgers(node))[1]


def test_a_full_ledger_folder_is_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FILE_BYTES", 2**60)
    status, found = said(checks.ledgers(node))
    assert (status, "MiB left" in found) == (Status.FOUND, True)


def test_training_that_is_switched_off_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE", "off")
    assert said(checks.ledgers(node))[0] == Status.NOT_ENOUGH_DATA


def test_a_python_that_does_not_answer_is_found() -> None:
    assert said(checks.hooks(Node(python="/bin/false")))[0] == Status.FOUND


RULE = {"name": "a", "query": "last_over_time(stepscope_samples_total[1m22s500ms])", "health": "ok"}
GROUP = {"name": "stepscope-CPUBottleneck", "rules": [RULE]}
TARGET = {"labels": {"job": "stepscope", "instance": "n1"}, "scrapeInterval": "15s"}


class Answers:
    """A server that answers as Prometheus does; tests change what it says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.data: dict[str, Any] = {
            "query": {"result": [{"metric": {"job": "stepscope", "instance": "n1"}, "value": [0, "1"]}]},
            "dcgm": {"result": []},
            "rules": {"groups": [GROUP, {"name": "others", "rules": []}]},
            "targets": {"activeTargets": [TARGET]},
            "alertmanagers": {"activeAlertmanagers": [{"url": "http://am:9093/api/v2/alerts"}]},
        }

    def states(self) -> dict[str, tuple[Status, str]]:
        return {check.name: (check.status, check.found) for check in of_prometheus(self.url)}


@pytest.fixture
def prometheus() -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = "dcgm" if "DCGM" in self.path else self.path.split("?")[0].rsplit("/", 1)[1]
            body = json.dumps({"status": "success", "data": answers.data[name]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with answering(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        answers = Answers(f"http://127.0.0.1:{port}")
        yield answers


def test_a_prometheus_that_scrapes_judges_and_notifies_is_healthy(prometheus: Answers) -> None:
    states = prometheus.states()
    assert list(states) == ["Prometheus", "scraping", "rules", "intervals", "Alertmanager"]
    assert {status for status, _ in states.values()} == {Status.HEALTHY}


@pytest.mark.parametrize(
    ("name", "broken", "check", "words"),
    [
        ("query", {"result": []}, "scraping", "scrapes no exporter"),
        ("rules", {"groups": []}, "rules", "no rules of Stepscope are loaded"),
        (
            "rules",
            {"groups": [{**GROUP, "rules": [{**RULE, "health": "err", "lastError": "many-to-many"}]}]},
            "rules",
            "1 rules fail: a: many-to-many",
        ),
        (
            "targets",
            {"activeTargets": [{**TARGET, "scrapeInterval": "1m"}]},
            "intervals",
            "every 60 s, too seldom for rules that look back 82.5 s",
        ),
        (
            "dcgm",
            {"result": [{"metric": {"instance": "dcgm-exporter-cmhft"}, "value": [0, "1"]}]},
            "names",
            "names its nodes dcgm-exporter-cmhft and so on, exporters of Stepscope theirs n1",
        ),
        ("query", {"results": []}, "Prometheus", "does not answer as Prometheus does"),
    ],
)
def test_what_is_broken_at_a_prometheus_is_found(
    prometheus: Answers, name: str, broken: Any, check: str, words: str
) -> None:
    prometheus.data[name] = broken
    status, found = prometheus.states()[check]
    assert status == Status.FOUND
    assert words in found


@pytest.mark.parametrize(
    ("name", "silent", "check"),
    [
        ("alertmanagers", {"activeAlertmanagers": []}, "Alertmanager"),
        ("targets", {"activeTargets": [{"labels": TARGET["labels"]}]}, "intervals"),
    ],
)
def test_what_a_prometheus_does_not_say_is_not_enough_data(
    prometheus: Answers, name: str, silent: Any, check: str
) -> None:
    prometheus.data[name] = silent
    assert prometheus.states()[check][0] == Status.NOT_ENOUGH_DATA


@pytest.mark.parametrize("seconds", [5, 15, 30, 60])
def test_rules_that_were_rendered_for_the_scrape_interval_fit_it(prometheus: Answers, seconds: int) -> None:
    files = render(Options(scraping=Scraping(seconds)))
    groups = [group for text in files.values() for group in yaml.safe_load(text)["groups"]]
    prometheus.data["rules"] = {
        "groups": [
            {
                "name": group["name"],
                "rules": [{"name": "a rule", "query": rule["expr"]} for rule in group["rules"]],
            }
            for group in groups
        ]
    }
    prometheus.data["targets"] = {"activeTargets": [{**TARGET, "scrapeInterval": f"{seconds}s"}]}
    fit = (Status.HEALTHY, f"the rules fit scrapes every {seconds} s")
    assert prometheus.states()["intervals"] == fit


def test_nodes_of_dcgm_exporter_are_counted_that_have_an_exporter(prometheus: Answers) -> None:
    prometheus.data["dcgm"] = {"result": [{"metric": {"instance": name}} for name in ("n1", "n2")]}
    status, found = prometheus.states()["names"]
    assert (status, found) == (Status.HEALTHY, "nodes of dcgm-exporter with an exporter: 1 of 2")


@needs_prometheus
def test_a_real_prometheus_has_our_rules_and_scrapes_no_exporter_yet(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    rules = Path(__file__).parents[3] / "rules" / "*.yml"
    config.write_text(f"rule_files: ['{rules}']\n")
    with serving(config, tmp_path / "data") as server:
        states = {check.name: check.status for check in of_prometheus(server.url)}
    assert states["rules"] == states["Prometheus"] == Status.HEALTHY
    assert states["scraping"] == Status.FOUND
    assert states["intervals"] == states["Alertmanager"] == Status.NOT_ENOUGH_DATA


def test_a_check_that_fails_itself_costs_only_its_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Node) -> Check:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checks, "processes", broken)
    states = [one.status for one in checks.of_node(node)]
    assert len(states) == 6
    assert states[1] == Status.FAILED


def test_a_prometheus_that_cannot_be_reached_is_one_line() -> None:
    (check,) = of_prometheus("http://user:secret@127.0.0.1:1")
    assert check.status == Status.FOUND
    assert "cannot be reached" in check.found
    assert "secret" not in check.found


def test_the_exit_status_is_1_if_something_is_broken(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", f"--path.procfs={node.procfs}", f"--path.sysfs={node.sysfs}"]
    words += [f"--path.nvml-library={node.nvml_library}", f"--ledger-dir={node.ledgers}"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [check["name"] for check in found] == [
        "GPUs", "processes", "cgroups", "pressure", "ledgers", "hooks",
    ]  # fmt: skip
    node.ledgers.chmod(0o700)
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert f"▲ found: ledgers: {node.ledgers} is not shared: other users' runs are not recorded" in shown
    assert f"    fix: chmod 1777 {node.ledgers}" in shown
