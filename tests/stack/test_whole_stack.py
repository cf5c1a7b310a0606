"""The services of docker-compose.yml with their own commands, and no Docker: do they find each other?"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main

from tests.support.compose import needs_compose, services
from tests.support.services_as_processes import as_process, possible, run

pytestmark = [
    needs_compose,
    pytest.mark.skipif(not possible(), reason="needs namespaces, Prometheus and Alertmanager"),
]

STARTED = ("exporter", "prometheus", "alertmanager", "cpu-bottleneck", "healthy")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Prometheus and Alertmanager of the stack say, with two of the simulated nodes."""
    folder = tmp_path_factory.mktemp("stack")
    processes = {}
    for number, name in enumerate(STARTED):
        service = services("demo")[name]
        speed_up(service, folder)
        address = f"127.0.1.{number}"
        command = as_process(name, service, folder)
        if "stepscope" in command:  # in one network, their ports would be the same
            command.append(f"--web.listen-address={address}:9870")
        for known in {name, *((service["networks"]["default"] or {}).get("aliases", ()))}:
            processes[known] = {"command": command if known == name else ["true"], "address": address}
    nodes = 'up{job="stepscope"} == 1'
    return run(
        processes,
        {
            "targets": f"up and on () (count({nodes}) == 3)",
            "starved": "run_instance:stepscope_cpu_starved:ratio > 0.5",
            "firing": 'ALERTS{alertname="StepscopeCPUBottleneck", alertstate="firing"}',
        },
        {"notified": "http://alertmanager:9093/api/v2/alerts?filter=rule%3DCPUBottleneck"},
    )


def speed_up(service: dict[str, Any], folder: Path) -> None:
    """Mounts copies of the configuration and of the rules in which everything happens each second."""
    for mount in service.get("volumes", ()):
        if mount["target"] in ("/etc/stepscope/prometheus", "/etc/stepscope/rules"):
            copied = folder / Path(mount["target"]).name
            if mount["type"] == "volume":  # which the service of its name fills
                command = [word for word in services()[mount["source"]]["command"] if "--out" not in word]
                assert main([*command, f"--out={copied}"]) == 0
                mount["type"] = "bind"
            else:
                shutil.copytree(mount["source"], copied)
            for file in copied.rglob("*.yml"):
                file.write_text(re.sub(r"interval: (\d+s|1m|2m|5m)\b", "interval: 1s", file.read_text()))
            mount["source"] = str(copied)


def instances(result: list[dict[str, Any]]) -> set[str]:
    return {series["metric"]["instance"] for series in result}


def test_prometheus_finds_this_machine_and_the_simulated_nodes_that_run_and_misses_no_others(
    said: dict[str, Any],
) -> None:
    assert instances(said["targets"]) == {"this-machine", "cpu-bottleneck", "healthy", "localhost:9090"}
    assert {series["value"][1] for series in said["targets"]} == {"1"}


def test_the_run_that_is_cpu_bound_is_told_within_the_first_scrapes(said: dict[str, Any]) -> None:
    assert instances(said["starved"]) == {"cpu-bottleneck"}
    assert instances(said["firing"]) == {"cpu-bottleneck"}


def test_alertmanager_gets_the_alert_with_its_advice(said: dict[str, Any]) -> None:
    (alert,) = said["notified"]
    assert alert["labels"]["run"] == "simulated-cpu-bottleneck"
    assert "workers" in alert["annotations"]["recommendation"]
    assert alert["annotations"]["dashboard_url"].startswith("http://localhost:3000/d/stepscope-run?")
