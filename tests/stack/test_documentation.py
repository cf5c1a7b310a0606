"""What docs/stack.md, kubernetes.md and grafana.md tell people to write and to type."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from trainwatch.rules import all_rules

from tests.support.compose import FILE, REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = ("stack.md", "kubernetes.md", "grafana.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", (DOCS / page).read_text())


def of_yaml(page: str) -> list[Any]:
    return [yaml.safe_load(block) for block in blocks(page, "yaml")]


def test_the_training_pod_is_one_that_kubernetes_takes() -> None:
    (pod,) = [block for block in of_yaml("kubernetes.md") if block.get("kind") == "Pod"]
    kubernetes_validate.validate(pod, "1.37", strict=True)
    exporter = yaml.safe_load((REPOSITORY / "deploy/kubernetes/base/exporter.yaml").read_text())
    (shared,) = [
        volume["hostPath"]["path"]
        for volume in exporter["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "shared-memory"
    ]
    (ledgers,) = [volume["hostPath"] for volume in pod["spec"]["volumes"] if "hostPath" in volume]
    assert ledgers["path"] == f"{shared}/trainwatch"


@pytest.mark.servers
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus package")
def test_prometheus_takes_the_scrape_of_kubernetes(tmp_path: Path) -> None:
    (config,) = [block for block in of_yaml("kubernetes.md") if "scrape_configs" in block]
    (job,) = config["scrape_configs"]
    # Debian builds its Prometheus without the discovery in Kubernetes.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["trainwatch"]}}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    checked = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_the_provider_of_the_page_is_that_of_the_stack() -> None:
    (page,) = of_yaml("grafana.md")
    own = yaml.safe_load((REPOSITORY / "grafana/provisioning/dashboards/trainwatch.yml").read_text())
    assert page["providers"][0].items() <= own["providers"][0].items()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_command_names_is_there(page: str) -> None:
    words = [word for block in blocks(page, "sh") for word in shlex.split(block, comments=True)]
    paths = [word for word in words if re.match(r"(deploy|grafana|rules|prometheus|alertmanager)/", word)]
    assert all(list(REPOSITORY.glob(path)) for path in paths), paths


def test_compose_has_every_profile_service_and_variable_that_the_page_speaks_of() -> None:
    text = (DOCS / "stack.md").read_text()
    written = FILE.read_text()
    services = yaml.safe_load(written)["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
    assert set(re.findall(r"--profile (\w+)", text)) == profiles
    for name in re.findall(r"`((?:GRAFANA|PROMETHEUS|ALERTMANAGER|TRAINWATCH)_\w+)`", text):
        assert f"${{{name}" in written, name
    for port in re.findall(r"http://localhost:(\d+)", text):
        assert f":-{port}}}:" in written, port
    for scaled in re.findall(r"--scale (\w+)=0", text):
        assert scaled in services


def test_the_advice_that_the_page_quotes_is_the_rules_own() -> None:
    text = " ".join((DOCS / "stack.md").read_text().split())
    assert f"*{all_rules()['CPUBottleneck'].recommendation}*" in text
