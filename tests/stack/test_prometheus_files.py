"""The configurations of Prometheus: for a machine of its own, and for docker-compose.yml."""

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from stepscope.demo.scenarios import all_scenarios

from tests.support.alertmanager import alertmanager, configured, needs_alertmanager
from tests.support.compose import FILE, REPOSITORY
from tests.support.processes import ran
from tests.support.prometheus import needs_prometheus
from tests.support.servers import Programs
from tests.support.waiting import SECONDS, wait_until

FILES = [REPOSITORY / "prometheus" / name for name in ("prometheus.yml", "compose.yml")]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def has_sent(url: str) -> bool:
    metrics = requests.get(f"{url}/metrics", timeout=SECONDS).text
    return re.search(r"(?m)^prometheus_notifications_sent_total{.*} [1-9]", metrics) is not None


@needs_alertmanager
@needs_prometheus
def test_a_pair_of_servers_sends_each_alert_once(tmp_path: Path) -> None:
    manager = configured(tmp_path, "platform")
    rule = {"alert": "Always", "expr": "vector(1)"}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [rule]}]}))
    config = read(FILES[0])
    with ExitStack() as stack:
        server = stack.enter_context(alertmanager(manager))
        (target,) = config["alerting"]["alertmanagers"]
        target["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
        for name in "ab":
            labels = {"cluster": "north", "prometheus_replica": name}
            config["global"] = {"evaluation_interval": "1s", "external_labels": labels}
            own = {key: config[key] for key in ("global", "alerting")} | {"rule_files": ["../rules.yml"]}
            (tmp_path / name).mkdir()
            (tmp_path / name / "prometheus.yml").write_text(yaml.safe_dump(own))
            started = Programs().prometheus(tmp_path / name / "prometheus.yml", tmp_path / name / "data")
            wait_until(partial(has_sent, stack.enter_context(started)), "sending")
        (alert,) = server.alerts()
    assert alert["labels"] == {"alertname": "Always", "cluster": "north"}


@needs_prometheus
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_prometheus_takes_it_with_all_rules(file: Path) -> None:
    checked = ran(["promtool", "check", "config", file])
    assert checked.returncode == 0, checked.stderr
    for rules in (REPOSITORY / "rules").glob("*.yml"):
        assert rules.name in checked.stdout


def test_both_scrape_and_evaluate_alike() -> None:
    own, composed = map(read, FILES)
    for key in ("global", "rule_files"):
        assert own[key] == composed[key]
    jobs = [[job["job_name"] for job in file["scrape_configs"]] for file in (own, composed)]
    assert jobs[0] == jobs[1]


def test_the_stack_asks_for_the_names_of_its_services_and_of_every_scenario() -> None:
    composed = read(FILES[1])
    services = read(FILE)["services"]
    (discovery,) = composed["scrape_configs"][0]["dns_sd_configs"]
    aliases = services["exporter"]["networks"]["default"]["aliases"]
    assert discovery["names"] == [*aliases, *all_scenarios()]
    (manager,) = composed["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    name, _, port = manager.partition(":")
    assert services[name]["ports"][0].endswith(f":{port}")


def test_the_compose_file_starts_prometheus_with_a_file_that_is_mounted() -> None:
    service = read(FILE)["services"]["prometheus"]
    (config,) = [word.partition("=")[2] for word in service["command"] if word.startswith("--config.file=")]
    mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    folder = REPOSITORY / mounts[str(Path(config).parent)]
    assert folder / Path(config).name == FILES[1]
    assert str(Path(config).parents[1] / "rules") in mounts  # ../rules/*.yml
    assert "--enable-feature=exemplar-storage" in service["command"]
