"""The Helm chart, rendered as Helm does it, and what checks its manifests."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import REPOSITORY
from tests.support.processes import ran

CHART = REPOSITORY / "deploy" / "helm"
MODELS = REPOSITORY / "tests" / "operator-models"
IMAGE = "registry.example/stepscope"
OPERATOR = "monitoring.coreos.com"
RESTRICTED_VOLUMES = {
    *(
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
}

Resource = dict[str, Any]

IN_CI = bool(os.environ.get("CI"))  # where nothing of this may be missing
needs_helm = pytest.mark.skipif(
    find_spec("helm_python") is None and not IN_CI, reason="needs helm-python-sdk"
)
needs_operator_models = pytest.mark.skipif(
    (shutil.which("node") is None or not (MODELS / "node_modules").exists()) and not IN_CI,
    reason="needs npm's models of the Prometheus operator",
)


class HelmError(Exception):
    pass


def rendered(values: Mapping[str, Any] | None = None) -> list[Resource]:
    """Returns the resources that `helm template` gives, with an image. Raises HelmError."""
    merged = {"image": {"repository": IMAGE}, **(values or {})}
    return _resources(json.dumps(merged), ())


def installed(flags: Sequence[str]) -> list[Resource]:
    """Returns the resources of `helm install` with these texts of --set."""
    return _resources("{}", tuple(flags))


def raw(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifests by template, and the files of the chart. Raises HelmError."""
    answer: dict[str, Any] = json.loads(_template(json.dumps(values), ()))
    return answer


def _resources(values: str, flags: tuple[str, ...]) -> list[Resource]:
    manifests = json.loads(_template(values, flags))["manifests"]
    return [
        resource
        for name, text in sorted(manifests.items())
        if name.endswith(".yaml")
        for resource in yaml.load_all(text, yaml.CSafeLoader)
        if resource
    ]


@cache
def _template(values: str, flags: tuple[str, ...]) -> str:
    asked = {"chart": str(CHART), "namespace": "stepscope", "values": json.loads(values), "set": flags}
    told = ran([sys.executable, Path(__file__).with_name("helm_template.py")], input=json.dumps(asked))
    if told.returncode:
        raise HelmError(told.stderr)
    return told.stdout


def of_kind(kind: str, resources: Iterable[Resource]) -> dict[str, Resource]:
    """Returns the resources of a kind by name."""
    return {one["metadata"]["name"]: one for one in resources if one.get("kind") == kind}


def pod_of(pool: str, resources: Iterable[Resource]) -> Resource:
    """Returns the pod of a pool's DaemonSet."""
    daemon_set = of_kind("DaemonSet", resources)[f"stepscope-exporter-{pool}"]
    pod: Resource = daemon_set["spec"]["template"]["spec"]
    return pod


def operator_errors(resources: Iterable[Resource]) -> list[str]:
    """Returns what the models of the Prometheus operator object to, unknown fields included."""
    asked = [part for one in resources if OPERATOR in one["apiVersion"] for part in _routes_apart(one)]
    told = ran(["node", MODELS / "validate.mjs"], input=json.dumps(asked), check=True)
    errors: list[str] = json.loads(told.stdout)
    return errors


def _routes_apart(resource: Resource) -> list[Resource]:
    """Returns the resource, and one for each route inside a route: their schema says nothing of these."""
    if "route" not in resource["spec"]:
        return [resource]
    routes = _all_routes(resource["spec"]["route"])
    return [{**resource, "spec": {**resource["spec"], "route": one}} for one in routes]


def _all_routes(route: Resource) -> Iterator[Resource]:
    yield {name: value for name, value in route.items() if name != "routes"}
    for inner in route.get("routes", []):
        yield from _all_routes(inner)


def restricted_violations(pod: Resource) -> list[str]:
    """Returns what a pod's spec has that the restricted profile forbids.

    The profile: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    of_pod = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    for volume in pod.get("volumes", []):
        found += [
            f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - RESTRICTED_VOLUMES
        ]
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        context = {**of_pod, **container.get("securityContext", {})}
        seccomp = context.get("seccompProfile", {}).get("type")
        capabilities = context.get("capabilities", {})
        demanded = {
            "privileged": not context.get("privileged"),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
            "seccompProfile": seccomp in ("RuntimeDefault", "Localhost"),
            "capabilities": "ALL" in capabilities.get("drop", [])
            and {*capabilities.get("add", [])} <= {"NET_BIND_SERVICE"},
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"container {container['name']}: {name}" for name, met in demanded.items() if not met]
    return found
