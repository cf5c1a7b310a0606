"""deploy/kubernetes: manifests that Kubernetes takes, with the files of the repository in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.compose import FILE, REPOSITORY
from tests.support.exporter_process import ExporterProcess

DEPLOY = REPOSITORY / "deploy" / "kubernetes"
VERSIONS = ("1.27", "1.30", "1.33", "1.37")
CONFIG_MAP_LIMIT = 1 << 20  # bytes
SECONDS = 60
Resource = dict[str, Any]

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def kustomized(name: str) -> list[Resource]:
    built = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / name], capture_output=True, text=True, timeout=SECONDS
    )
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def of_kind(kind: str, resources: list[Resource]) -> dict[str, Resource]:
    return {one["metadata"]["name"]: one for one in resources if one["kind"] == kind}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", ["namespace.yaml", "exporter.yaml"])
def test_kubernetes_takes_the_manifests(file: str, version: str) -> None:
    kubernetes_validate.validate(read(DEPLOY / "base" / file), version, strict=True)


def test_each_dashboard_and_rule_file_is_in_a_kustomization() -> None:
    generators = {
        folder: [generator["files"] for generator in read(REPOSITORY / folder / "kustomization.yaml")[each]]
        for folder, each in (("grafana", "configMapGenerator"), ("rules", "configMapGenerator"))
    }
    for folder, files in generators.items():
        listed = {name for names in files for name in names}
        there = [*(REPOSITORY / folder).glob("*.yml"), *(REPOSITORY / folder).glob("*/*.json")]
        there += (REPOSITORY / folder).glob("provisioning/*/*.yml")
        assert listed == {str(path.relative_to(REPOSITORY / folder)) for path in there}


@needs_kubectl
@pytest.mark.parametrize("name", ["base", "gpu"])
def test_what_kustomize_makes_is_valid_and_small_enough(name: str) -> None:
    for resource in kustomized(name):
        kubernetes_validate.validate(resource, VERSIONS[-1], strict=True)
        assert len(json.dumps(resource)) < CONFIG_MAP_LIMIT
        namespace = resource["metadata"].get("namespace", resource["metadata"]["name"])
        assert namespace == "trainwatch"


@needs_kubectl
def test_config_maps_hold_the_files_of_the_repository_as_they_are() -> None:
    maps = of_kind("ConfigMap", kustomized("base"))
    rules = maps.pop("trainwatch-rules")["data"]
    assert rules == {path.name: path.read_text() for path in (REPOSITORY / "rules").glob("*.yml")}
    for path in (REPOSITORY / "grafana" / "dashboards").glob("*.json"):
        found = maps.pop(f"trainwatch-dashboard-{path.stem.removeprefix('trainwatch-')}")
        assert found["data"] == {path.name: path.read_text()}
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    # No sidecar must find these: a second default data source keeps Grafana from starting.
    assert maps.keys() == {"trainwatch-grafana-data-sources", "trainwatch-grafana-dashboards"}
    for found in maps.values():
        assert found["metadata"]["labels"] == {"app.kubernetes.io/part-of": "trainwatch"}


@needs_kubectl
def test_on_gpu_nodes_the_exporter_sees_the_gpus_and_takes_none() -> None:
    plain, gpus = (pod_of(kustomized(name)) for name in ("base", "gpu"))
    (container,) = gpus["containers"]
    assert [*container["args"], "--no-collector.gpu"] == plain["containers"][0]["args"]
    assert gpus["runtimeClassName"] == "nvidia"
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])


def pod_of(resources: list[Resource]) -> Resource:
    (daemon_set,) = of_kind("DaemonSet", resources).values()
    pod: Resource = daemon_set["spec"]["template"]["spec"]
    return pod


def test_the_exporter_starts_with_its_arguments_and_has_every_path_mounted(tmp_path: Path) -> None:
    pod = pod_of([read(DEPLOY / "base" / "exporter.yaml")])
    (container,) = pod["containers"]
    command, *flags = container["args"]
    assert command == "exporter"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for flag in flags:
        path = flag.partition("=")[2]
        assert not path.startswith("/") or path in mounted, flag
    assert container["ports"][0]["containerPort"] == 9870
    flags = [
        flag.replace("/host", "").replace("/var/lib/trainwatch", str(tmp_path)).replace("$(NODE_NAME)", "n")
        for flag in flags
    ]
    with ExporterProcess(*flags, f"--ledger-dir={tmp_path}") as exporter:
        exporter.wait_for(lambda: "trainwatch_cpu_utilization_ratio" in exporter.scrape())
        for probe in ("readinessProbe", "livenessProbe"):
            assert exporter.get(container[probe]["httpGet"]["path"]).status_code == 200


def test_it_is_the_same_exporter_as_in_docker_compose() -> None:
    composed = read(FILE)["services"]["exporter"]["command"]
    (container,) = pod_of([read(DEPLOY / "base" / "exporter.yaml")])["containers"]
    assert [word for word in container["args"] if not word.startswith("--node=")] == composed


def test_it_runs_as_the_user_of_the_image() -> None:
    pod = pod_of([read(DEPLOY / "base" / "exporter.yaml")])
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert f"\nUSER {user}\n" in (REPOSITORY / "Dockerfile").read_text()


def test_rules_for_the_operator_are_the_rules_of_the_repository() -> None:
    files = sorted((REPOSITORY / "rules").glob("*.yml"))
    script = DEPLOY / "operator" / "prometheus-rules.sh"
    written = subprocess.run(
        [script, *files],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "LABELS": "release=kube team=ml"},
    )
    resources = list(yaml.safe_load_all(written.stdout))
    assert [one["metadata"]["name"] for one in resources] == [file.stem for file in files]
    for resource, file in zip(resources, files, strict=True):
        assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert resource["kind"] == "PrometheusRule"
        assert resource["metadata"]["labels"]["release"] == "kube"
        assert resource["spec"] == read(file)


def test_the_pod_monitor_selects_the_exporters_and_names_nodes_as_prometheus_yml_does() -> None:
    monitor = read(DEPLOY / "operator" / "pod-monitor.yaml")
    daemon_set = read(DEPLOY / "base" / "exporter.yaml")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = pod_of([daemon_set])["containers"]
    assert endpoint["port"] == container["ports"][0]["name"]
    assert (
        endpoint["interval"]
        == read(REPOSITORY / "prometheus" / "prometheus.yml")["global"]["scrape_interval"]
    )
    known = {
        "sourceLabels",
        "targetLabel",
        "replacement",
        "action",
        "regex",
    }  # of the operator's RelabelConfig
    assert all(relabeling.keys() <= known for relabeling in endpoint["relabelings"])
    assert {one["targetLabel"] for one in endpoint["relabelings"] if "targetLabel" in one} == {
        "instance",
        "job",
    }
