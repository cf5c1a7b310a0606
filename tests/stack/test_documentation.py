"""What docs/stack.md, kubernetes.md and grafana.md tell people to write and to type."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.rules import all_rules

from tests.support.chart import CHART, installed, needs_helm, of_kind, pod_of, rendered
from tests.support.compose import FILE, REPOSITORY
from tests.support.processes import ran
from tests.support.prometheus import needs_prometheus
from tests.support.schemas import validate_for_kubernetes
from tests.support.waiting import SECONDS

DOCS = REPOSITORY / "docs"
PAGES = ("stack.md", "kubernetes.md", "slurm.md", "grafana.md")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", (DOCS / page).read_text())


def of_yaml(page: str) -> list[Any]:
    return [yaml.safe_load(block) for block in blocks(page, "yaml")]


def test_the_training_pod_is_one_that_kubernetes_takes() -> None:
    pods = of_kind("Pod", of_yaml("kubernetes.md"))
    for pod in pods.values():
        validate_for_kubernetes(pod, "1.37")
    shared = yaml.safe_load((CHART / "values.yaml").read_text())["ledgers"]["directory"]
    (ledgers,) = [volume["hostPath"] for volume in pods["train"]["spec"]["volumes"] if "hostPath" in volume]
    assert ledgers == {"path": shared, "type": "Directory"}  # made by the exporter's pod, for all users


@needs_helm
def test_every_helm_command_of_the_page_installs_valid_manifests() -> None:
    commands = [shlex.split(line) for line in commands_of("kubernetes.md") if line.startswith("helm ")]
    of_install = flags_of(commands[0])
    assert commands[0][1:4] == ["install", "stepscope", "deploy/helm"]
    for command in commands:
        assert command[2:4] == ["stepscope", "deploy/helm"]
        reused = of_install if "--reuse-values" in command else []
        resources = installed([*reused, *flags_of(command)])
        assert pod_of("gpu", resources)["containers"][0]["image"].startswith("registry.example/stepscope:")
        rules = of_kind("PrometheusRule", resources)
        assert {one["metadata"]["labels"]["release"] for one in rules.values()} == {"kube-prometheus-stack"}


@needs_helm
def test_the_helm_command_of_the_readme_installs_exporters() -> None:
    (command,) = re.findall(r"(?m)^helm install .*$", (REPOSITORY / "README.md").read_text())
    assert of_kind("DaemonSet", installed(flags_of(shlex.split(command))))


@needs_helm
def test_own_rules_reach_the_chart_by_the_commands_of_the_page(tmp_path: Path) -> None:
    lines = commands_of("kubernetes.md")
    (render,) = [shlex.split(line) for line in lines if line.startswith("stepscope rules render")]
    subprocess.run(
        [sys.executable, "-m", *render], cwd=tmp_path, check=True, capture_output=True, timeout=SECONDS
    )
    (given,) = [
        re.findall(r"--set-file rules\.files\.(\S+)=(\S+)", line) for line in lines if "--set-file" in line
    ]
    files = {name: (tmp_path / path).read_text() for name, path in given}
    assert len(files) == len(list(tmp_path.glob("*/*.yml")))
    rules = of_kind("PrometheusRule", rendered({"rules": {"files": files}}))
    assert {name: one["spec"] for name, one in rules.items()} == {
        name: yaml.safe_load(text) for name, text in files.items()
    }


def commands_of(page: str) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]


def flags_of(command: list[str]) -> list[str]:
    """Returns the values that a command sets, files as one line of text."""
    pairs = list(pairwise(command))
    files = [text.partition("=")[0] + "=groups: []" for flag, text in pairs if flag == "--set-file"]
    return [text for flag, text in pairs if flag == "--set"] + files


def test_the_training_job_of_kubeflow_shares_the_ledger_directory_on_all_replicas() -> None:
    (job,) = of_kind("PyTorchJob", of_yaml("kubernetes.md")).values()
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        template = {"metadata": {"name": "replica"}, **replica["template"]}
        validate_for_kubernetes({"apiVersion": "v1", "kind": "Pod", **template}, "1.37")
        (volume,) = template["spec"]["volumes"]
        assert volume["hostPath"]["path"] == "/dev/shm/stepscope"


@needs_prometheus
def test_prometheus_takes_the_scrape_of_kubernetes(tmp_path: Path) -> None:
    (config,) = [block for block in of_yaml("kubernetes.md") if "scrape_configs" in block]
    (job,) = config["scrape_configs"]
    # Debian builds its Prometheus without the discovery in Kubernetes.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["stepscope"]}}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    checked = ran(["promtool", "check", "config", tmp_path / "prometheus.yml"])
    assert checked.returncode == 0, checked.stderr


def test_the_provider_of_the_page_is_that_of_the_stack() -> None:
    (page,) = of_yaml("grafana.md")
    own = yaml.safe_load((REPOSITORY / "grafana/provisioning/dashboards/stepscope.yml").read_text())
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
    for name in re.findall(r"`((?:GRAFANA|PROMETHEUS|ALERTMANAGER|STEPSCOPE)_\w+)`", text):
        assert f"${{{name}" in written, name
    for port in re.findall(r"http://localhost:(\d+)", text):
        assert f":-{port}}}:" in written, port
    for scaled in re.findall(r"--scale (\w+)=0", text):
        assert scaled in services


def test_the_advice_that_the_page_quotes_is_the_rules_own() -> None:
    text = " ".join((DOCS / "stack.md").read_text().split())
    assert f"*{all_rules()['CPUBottleneck'].recommendation}*" in text
