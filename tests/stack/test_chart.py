"""deploy/helm: manifests that Kubernetes and the Prometheus operator take, of the repository's files."""

import base64
import gzip
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import stepscope
import yaml

from tests.support.alertmanager import needs_alertmanager
from tests.support.chart import (
    CHART,
    OPERATOR,
    HelmError,
    Resource,
    needs_helm,
    needs_operator_models,
    of_kind,
    operator_errors,
    pod_of,
    raw,
    rendered,
    restricted_violations,
)
from tests.support.compose import FILE, REPOSITORY
from tests.support.exporter_process import ExporterProcess
from tests.support.keys import make_keys
from tests.support.processes import ran
from tests.support.prometheus import needs_prometheus, serving
from tests.support.schemas import validate_for_kubernetes
from tests.support.smallest import smallest
from tests.support.systemd_unit import FOLDER, settings
from tests.support.waiting import SECONDS

VERSIONS = ("1.27", "1.30", "1.33", "1.37")
CONFIG_MAP_LIMIT = SECRET_LIMIT = 1 << 20  # bytes. A release is stored in a Secret
WEB = "stepscope-web"
# How Prometheus scrapes exporters that ask for certificates and passwords.
PROTECTED = {
    "scheme": "https",
    "tlsConfig": {
        "ca": {"secret": {"name": WEB, "key": "ca.pem"}},
        "cert": {"secret": {"name": "scrape", "key": "tls.crt"}},
        "keySecret": {"name": "scrape", "key": "tls.key"},
        "serverName": "stepscope-exporter",
    },
    "basicAuth": {
        "username": {"name": "scrape", "key": "username"},
        "password": {"name": "scrape", "key": "password"},
    },
}
# Together they render every template, and every branch of each.
EVERYTHING: tuple[Resource, ...] = (
    {
        "ledgers": {"claims": ["team-a", "team-b"]},
        "alertmanagerConfig": {"enabled": True},
        "monitor": PROTECTED,
    },
    {
        "monitor": {
            "kind": "ServiceMonitor",
            "labels": {"release": "kube"},
            "endpoint": {"scrapeTimeout": "9s"},
            **PROTECTED,
        },
        "rules": {"kind": "ConfigMap", "labels": {"release": "kube"}},
        "exporter": {
            "podLabels": {"team": "ml"},
            "podAnnotations": {"note": "x"},
            "webConfigSecret": WEB,
            "priorityClassName": "system-node-critical",
            "stateDirectory": "",
        },
        "image": {"repository": "registry.example/t", "pullSecrets": [{"name": "registry"}]},
        "pools": {"cpu": None, "h100": {"enabled": True, "gpus": True, "args": ["--metrics.profile=lean"]}},
    },
)
MONITORS = (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints"))  # of each of EVERYTHING

pytestmark = needs_helm


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# -- schemas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", smallest(VERSIONS, {0, len(VERSIONS) - 1}))
@pytest.mark.parametrize("values", EVERYTHING, ids=["default", "other"])
def test_kubernetes_takes_every_resource(values: Resource, version: str) -> None:
    resources = [one for one in rendered(values) if OPERATOR not in one["apiVersion"]]
    assert {one["kind"] for one in resources} >= {"DaemonSet", "ConfigMap", "NetworkPolicy"}
    for resource in resources:
        if resource["kind"] == "ConfigMap":  # all alike, and long
            resource = {**resource, "data": dict.fromkeys(resource["data"], "text")}
        validate_for_kubernetes(resource, version)


@needs_operator_models
@pytest.mark.parametrize("values", EVERYTHING, ids=["default", "other"])
def test_the_prometheus_operator_takes_its_resources(values: Resource) -> None:
    assert operator_errors(rendered(values)) == []


@needs_operator_models
@pytest.mark.parametrize(("kind", "endpoints"), MONITORS)
def test_a_field_that_the_operator_does_not_know_is_an_error(kind: str, endpoints: str) -> None:
    wrong = {"endpoint": {"scrapeTimeOut": "9s"}, "tlsConfig": {"serverNam": "a"}}
    errors = operator_errors(rendered({"monitor": {"kind": kind, **wrong}}))
    where = f"{kind} stepscope-exporter: /spec/{endpoints}/0"
    assert sorted(errors) == [f"{where}/scrapeTimeOut is unknown", f"{where}/tlsConfig/serverNam is unknown"]


def test_all_is_in_the_namespace_of_the_release_but_claims_are_where_the_pods_are() -> None:
    namespaces = {
        (one["kind"], one["metadata"].get("namespace"))
        for values in EVERYTHING
        for one in rendered(values)
        if one["metadata"].get("namespace") != "stepscope"
    }
    assert namespaces == {
        ("PersistentVolume", None),
        ("PriorityClass", None),
        ("PersistentVolumeClaim", "team-a"),
        ("PersistentVolumeClaim", "team-b"),
    }


def test_a_release_fits_into_the_secret_that_helm_stores_it_in() -> None:
    release = raw({"image": {"repository": "r"}})
    stored = base64.b64encode(gzip.compress(json.dumps(release).encode()))
    assert len(stored) < SECRET_LIMIT / 2


# -- values --------------------------------------------------------------------------------------------


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == stepscope.__version__
    (container,) = pod_of("cpu", rendered())["containers"]
    assert container["image"] == f"registry.example/stepscope:{stepscope.__version__}"


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = f"sha256:{'ab' * 32}"
    image = {"repository": "registry.example/t", "tag": "1.2", "digest": digest}
    pod = pod_of("gpu", rendered({"image": image}))
    images = {one["image"] for one in pod["initContainers"] + pod["containers"]}
    assert images == {f"registry.example/t:1.2@{digest}"}


def test_without_an_image_it_says_what_to_do() -> None:
    with pytest.raises(HelmError, match=r"image\.repository: build the image from the Dockerfile, push it"):
        raw({})


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        (
            {
                "rulez": {},
                "image": {"repository": "r", "digest": "ab12"},
                "monitor": {
                    "kind": "podMonitor",
                    "scheme": "HTTPS",
                    "tlsConfig": "insecure",
                    "basicAuth": ["me", "secret"],
                },
                "pools": {"gpu": {"gpu": True}},
                "ledgers": {"directory": "ledgers"},
                "exporter": {"args": ["node=a"], "stateDirectory": "/state", "webConfigSecret": "./web.yml"},
            },
            (
                *("'rulez' not allowed", "'gpu' not allowed", "/image/digest", "/monitor/kind"),
                *("/monitor/scheme", "/monitor/tlsConfig", "/monitor/basicAuth", "/ledgers/directory"),
                *("/exporter/args/0", "/exporter/stateDirectory", "/exporter/webConfigSecret"),
            ),
        ),
        ({"exporter": {"webConfigSecret": {"name": WEB}}}, ("/exporter/webConfigSecret",)),
    ],
)
def test_wrong_values_are_refused(values: Resource, problems: tuple[str, ...]) -> None:
    with pytest.raises(HelmError) as refused:
        rendered(values)
    assert [problem for problem in problems if problem not in str(refused.value)] == []


def test_the_schema_describes_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert undescribed(schema, read(CHART / "values.yaml")) == []


def undescribed(schema: Mapping[str, Any], values: Mapping[str, Any], path: str = "") -> list[str]:
    """Returns the values, among those of every pool, that the schema does not know or does not describe."""
    found = []
    for name, value in values.items():
        here = f"{path}.{name}".lstrip(".")
        known = schema["properties"].get(name, {})
        if "properties" in known:
            found += undescribed(known, value, here)
        elif not known.get("description"):
            found.append(here)
        if name == "pools":
            for pool, of_pool in value.items():
                found += undescribed(known["additionalProperties"], of_pool, f"{here}.{pool}")
    return found


# -- exporters -----------------------------------------------------------------------------------------


def nodes_of(pool: str, labels: Mapping[str, str]) -> bool:
    """Returns whether a node with these labels is in a pool."""
    pod = pod_of(pool, rendered())
    selected: bool = pod.get("nodeSelector", {}).items() <= labels.items()
    terms = pod.get("affinity", {}).get("nodeAffinity", {})
    for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", []):
        for one in term["matchExpressions"]:
            assert one["operator"] == "NotIn"
            selected = selected and labels.get(one["key"]) not in one["values"]
    return selected


def test_every_node_is_in_one_pool() -> None:
    gpu, cpu, other = {"nvidia.com/gpu.present": "true"}, {"a": "b"}, {"nvidia.com/gpu.present": "false"}
    assert [nodes_of("gpu", labels) for labels in (gpu, cpu, other)] == [True, False, False]
    assert [nodes_of("cpu", labels) for labels in (gpu, cpu, other)] == [False, True, True]


def test_on_gpu_nodes_the_exporter_sees_the_gpus_and_takes_none() -> None:
    plain, gpus = (pod_of(pool, rendered()) for pool in ("cpu", "gpu"))
    (container,) = gpus["containers"]
    assert [*container["args"], "--no-collector.gpu"] == plain["containers"][0]["args"]
    assert (gpus["runtimeClassName"], "runtimeClassName" in plain) == ("nvidia", False)
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])


def test_only_exporters_that_read_gpus_are_in_the_pid_namespace_of_the_node() -> None:
    assert pod_of("gpu", rendered())["hostPID"] is True
    assert "hostPID" not in pod_of("cpu", rendered())
    assert "hostPID" not in pod_of("gpu", rendered({"pools": {"gpu": {"hostPID": False}}}))


def test_a_pool_has_its_own_settings_or_those_of_all() -> None:
    own = {
        "resources": {"limits": {"memory": "1Gi"}},
        "tolerations": [{"key": "gpu"}],
        "args": ["--log-level=debug"],
    }
    resources = rendered({"exporter": {"args": ["--limit.runs=9"]}, "pools": {"gpu": own}})
    gpu, cpu = (pod_of(pool, resources) for pool in ("gpu", "cpu"))
    assert gpu["containers"][0]["args"][-2:] == ["--limit.runs=9", "--log-level=debug"]
    assert cpu["containers"][0]["args"][-1] == "--limit.runs=9"
    assert gpu["containers"][0]["resources"] == own["resources"] != cpu["containers"][0]["resources"]
    assert (gpu["tolerations"], cpu["tolerations"]) == (own["tolerations"], [{"operator": "Exists"}])


def test_more_pools_may_be_added_and_others_left_out() -> None:
    daemon_sets = of_kind("DaemonSet", rendered(EVERYTHING[1]))
    assert daemon_sets.keys() == {"stepscope-exporter-gpu", "stepscope-exporter-h100"}
    selectors = [json.dumps(one["spec"]["selector"]) for one in daemon_sets.values()]
    assert len({*selectors}) == 2  # neither adopts the pods of the other


def test_the_exporter_starts_with_its_arguments_and_has_every_path_mounted(tmp_path: Path) -> None:
    pod = pod_of("cpu", rendered())
    (container,) = pod["containers"]
    command, *flags = container["args"]
    assert command == "exporter"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    (init,) = pod["initContainers"]
    assert {mount["name"] for one in (container, init) for mount in one["volumeMounts"]} == volumes
    for flag in flags:
        path = Path(flag.partition("=")[2])
        assert not path.is_absolute() or mounted & {str(path), str(path.parent)}, flag
    assert container["ports"][0]["containerPort"] == 9870
    places = {"/host": "", "/var/lib/stepscope": str(tmp_path), "/dev/shm/stepscope": str(tmp_path / "l")}
    for place, here in {**places, "$(NODE_NAME)": "n"}.items():
        flags = [flag.replace(place, here) for flag in flags]
    with ExporterProcess(*flags) as exporter:
        exporter.wait_for(lambda: "stepscope_cpu_utilization_ratio" in exporter.scrape())
        for probe in ("readinessProbe", "livenessProbe"):
            assert exporter.get(container[probe]["httpGet"]["path"]).status_code == 200


def test_an_exporter_with_tls_and_passwords_starts_from_the_secret_and_its_probes_log_in_nowhere(
    tmp_path: Path,
) -> None:
    pod = pod_of("cpu", rendered({"exporter": {"webConfigSecret": WEB}}))
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "web-config"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "web-config"]
    assert (volume["secret"], mount["readOnly"]) == ({"secretName": WEB}, True)
    (flag,) = [flag for flag in container["args"] if flag.startswith("--web.config.file=")]
    here = flag.replace(mount["mountPath"], str(secret_as_mounted(tmp_path)))
    with ExporterProcess(here, "--ledger-dir", tmp_path / "ledgers") as exporter:
        trust, me = str(tmp_path / "ca.pem"), ("prometheus", "secret")
        assert exporter.get("/-/healthy", verify=trust).status_code == 401
        assert exporter.get("/metrics", verify=trust, auth=me).status_code == 200
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"] == {"port": "metrics"}
            assert "httpGet" not in container[probe]
        host, _, port = exporter.url.removeprefix("https://").partition(":")
        for _ in range(3):
            socket.create_connection((host, int(port)), timeout=SECONDS).close()
        assert exporter.get("/metrics", verify=trust, auth=me).status_code == 200
    assert not [line for line in exporter.log if " INFO " not in line], "no probe is logged as trouble"
    assert "web" not in str(pod_of("cpu", rendered()))


def secret_as_mounted(folder: Path) -> Path:
    """Returns a directory in which each file is a link into another one, as Kubernetes mounts a Secret."""
    keys = make_keys(folder)
    password = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (keys / "web.yml").write_text(
        "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
        f"basic_auth_users: {{prometheus: '{password}'}}\n"
    )
    mounted = folder / "mounted"
    mounted.mkdir()
    (mounted / "..data").symlink_to(keys)
    for name in ("web.yml", "server.pem", "server.key"):
        (mounted / name).symlink_to(Path("..data") / name)
    return mounted


def test_it_is_the_same_exporter_as_in_docker_compose() -> None:
    composed = read(FILE)["services"]["exporter"]["command"]
    (container,) = pod_of("cpu", rendered())["containers"]
    own = ("--node=", "--ledger-dir=/dev/shm/stepscope")
    assert [word for word in container["args"] if not word.startswith(own)] == composed


def test_it_runs_as_the_user_of_the_image() -> None:
    pod = pod_of("cpu", rendered())
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert f"\nUSER {user}\n" in (REPOSITORY / "Dockerfile").read_text()


@pytest.mark.parametrize("pool", ["cpu", "gpu"])
def test_every_container_has_as_few_privileges_as_its_work_allows(pool: str) -> None:
    pod = pod_of(pool, rendered())
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod.keys() & {"hostNetwork", "hostIPC"}
    for container in (*pod["containers"], *pod["initContainers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in context
    (exporter,) = pod["containers"]
    assert exporter["securityContext"].keys().isdisjoint({"runAsUser", "runAsNonRoot"})
    assert "add" not in exporter["securityContext"]["capabilities"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    writable = {paths.get(one["name"]) for one in exporter["volumeMounts"] if not one.get("readOnly")}
    assert writable == {"/dev/shm/stepscope", "/var/lib/stepscope-exporter"}


def test_the_state_is_on_the_node_unless_told_otherwise() -> None:
    systemd = settings(FOLDER / "stepscope-exporter.service")["StateDirectory"]
    path = state_volume(rendered())["hostPath"]["path"]
    assert path not in [f"/var/lib/{name}" for name in systemd]  # each has an owner of its own
    assert state_volume(rendered(EVERYTHING[1])) == {"name": "state", "emptyDir": {}}


def state_volume(resources: list[Resource]) -> Resource:
    volumes: dict[str, Resource] = {one["name"]: one for one in pod_of("gpu", resources)["volumes"]}
    return volumes["state"]


def test_an_exporter_is_evicted_after_training_pods_and_never_evicts_them() -> None:
    ((name, priority),) = of_kind("PriorityClass", rendered()).items()
    assert {pod_of(pool, rendered())["priorityClassName"] for pool in ("cpu", "gpu")} == {name}
    assert priority["preemptionPolicy"] == "Never"
    assert 0 < priority["value"] <= 1_000_000_000  # more is reserved for Kubernetes itself
    assert "globalDefault" not in priority
    own = rendered(EVERYTHING[1])
    assert pod_of("gpu", own)["priorityClassName"] == "system-node-critical"
    assert not of_kind("PriorityClass", own)


def test_the_network_policy_lets_scrapes_in_and_nothing_out() -> None:
    (policy,) = of_kind("NetworkPolicy", rendered()).values()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels_of_pods().items()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["egress"] == []
    (allowed,) = policy["spec"]["ingress"]
    assert allowed["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert not of_kind("NetworkPolicy", rendered({"networkPolicy": {"enabled": False}}))


def labels_of_pods() -> dict[str, str]:
    daemon_set = of_kind("DaemonSet", rendered())["stepscope-exporter-gpu"]
    labels: dict[str, str] = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    return labels


# -- ledgers -------------------------------------------------------------------------------------------


def test_a_claim_is_bound_to_the_directory_that_the_exporter_reads() -> None:
    resources = rendered(EVERYTHING[0])
    (shared,) = [
        one["hostPath"]["path"] for one in pod_of("gpu", resources)["volumes"] if one["name"] == "ledgers"
    ]
    volumes = of_kind("PersistentVolume", resources)
    claims = [one for one in resources if one["kind"] == "PersistentVolumeClaim"]
    assert [claim["metadata"]["namespace"] for claim in claims] == ["team-a", "team-b"]
    for claim in claims:
        volume = volumes[claim["spec"]["volumeName"]]["spec"]
        # `Directory`: a pod waits until the exporter's pod has made it for all users.
        assert volume["hostPath"] == {"path": shared, "type": "Directory"}
        bound = {name: claim["metadata"][name] for name in ("namespace", "name")}
        assert bound.items() <= volume["claimRef"].items()
        assert "nodeAffinity" not in volume  # it is on every node
        for name in ("accessModes", "storageClassName"):
            assert volume[name] == claim["spec"][name]
        assert volume["capacity"] == claim["spec"]["resources"]["requests"]


def test_the_restricted_pod_of_the_page_is_one_and_uses_the_claim() -> None:
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```", (REPOSITORY / "docs" / "kubernetes.md").read_text())
    pods = of_kind("Pod", map(yaml.safe_load, blocks))
    restricted, open_pod = pods["restricted-train"]["spec"], pods["train"]["spec"]
    assert restricted_violations(restricted) == []
    assert "volume ledgers: hostPath" in restricted_violations(open_pod)
    (claim,) = [one["persistentVolumeClaim"] for one in restricted["volumes"] if one["name"] == "ledgers"]
    assert claim["claimName"] in of_kind("PersistentVolumeClaim", rendered(EVERYTHING[0]))


# -- rules, dashboards, notifications ------------------------------------------------------------------


def test_rules_are_those_of_the_repository() -> None:
    files = {path.stem: path for path in (REPOSITORY / "rules").glob("*.yml")}
    resources = of_kind("PrometheusRule", rendered())
    assert {name: one["spec"] for name, one in resources.items()} == {n: read(p) for n, p in files.items()}
    mounted = of_kind("ConfigMap", rendered(EVERYTHING[1]))["stepscope-rules"]
    assert mounted["data"] == {path.name: path.read_text() for path in files.values()}
    assert mounted["metadata"]["labels"]["release"] == "kube"


def test_own_rules_replace_those_of_the_chart() -> None:
    own = "groups:\n  - name: own\n\n    rules: []\n"
    resources = rendered({"rules": {"files": {"mine": own}, "labels": {"release": "kube"}}})
    ((name, rule),) = of_kind("PrometheusRule", resources).items()
    assert (name, rule["spec"]) == ("mine", yaml.safe_load(own))
    assert rule["metadata"]["labels"]["release"] == "kube"


@needs_prometheus
def test_prometheus_loads_the_rules_that_the_chart_renders(tmp_path: Path) -> None:
    wanted = set()
    for name, resource in of_kind("PrometheusRule", rendered()).items():
        # The operator writes the spec as a rule file.
        (tmp_path / f"{name}.yml").write_text(json.dumps(resource["spec"]))
        wanted |= {(group["name"], len(group["rules"])) for group in resource["spec"]["groups"]}
    config = tmp_path / "prometheus.yml"
    config.write_text("rule_files: ['stepscope*.yml']\n")
    with serving(config, tmp_path / "data") as prometheus:
        groups = prometheus.get("rules")["groups"]
    assert {(group["name"], len(group["rules"])) for group in groups} == wanted
    assert not [rule for group in groups for rule in group["rules"] if rule.get("lastError")]


def test_dashboards_are_those_of_the_repository_and_the_sidecar_finds_them() -> None:
    maps = of_kind("ConfigMap", rendered())
    for path in (REPOSITORY / "grafana" / "dashboards").glob("*.json"):
        found = maps.pop(f"stepscope-dashboard-{path.stem.removeprefix('stepscope-')}")
        assert found["data"] == {path.name: path.read_text()}
        assert len(json.dumps(found)) < CONFIG_MAP_LIMIT
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Stepscope"}
    assert not maps
    assert not of_kind("ConfigMap", rendered({"dashboards": {"enabled": False}}))


@pytest.mark.parametrize(("kind", "endpoints"), MONITORS)
def test_a_monitor_selects_the_exporters_and_names_nodes_as_prometheus_yml_does(
    kind: str, endpoints: str
) -> None:
    resources = rendered({"monitor": {"kind": kind, "labels": {"release": "kube"}}})
    (monitor,) = of_kind(kind, resources).values()
    labels = labels_of_pods()
    if kind == "ServiceMonitor":
        (service,) = of_kind("Service", resources).values()
        assert service["spec"]["selector"].items() <= labels.items()
        labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "kube"
    (endpoint,) = monitor["spec"][endpoints]
    assert endpoint["port"] == "metrics"
    assert endpoint["interval"] == read(REPOSITORY / "prometheus/prometheus.yml")["global"]["scrape_interval"]
    named = {one["targetLabel"] for one in endpoint["relabelings"] if "targetLabel" in one}
    assert named == {"instance", "job"}
    (dropped,) = [one["regex"] for one in endpoint["relabelings"] if one.get("action") == "labeldrop"]
    assert {*dropped.split("|")} == {"namespace", "pod", "container", "endpoint", "service"}
    assert endpoint["scheme"] == "http"
    assert not endpoint.keys() & {"tlsConfig", "basicAuth"}


@pytest.mark.parametrize(("values", "monitor"), [*zip(EVERYTHING, MONITORS, strict=True)])
def test_a_monitor_scrapes_with_tls_and_passwords_if_told(values: Resource, monitor: tuple[str, str]) -> None:
    kind, endpoints = monitor
    (resource,) = of_kind(kind, rendered(values)).values()
    (endpoint,) = resource["spec"][endpoints]
    assert PROTECTED.items() <= endpoint.items()


def test_nothing_for_the_operator_where_there_is_none() -> None:
    resources = rendered({"monitor": {"kind": "none"}, "rules": {"kind": "none"}})
    assert not [one for one in resources if OPERATOR in one["apiVersion"]]


def test_the_alertmanager_config_routes_and_inhibits_as_alertmanager_yml() -> None:
    (resource,) = of_kind("AlertmanagerConfig", rendered(EVERYTHING[0])).values()
    known = read(REPOSITORY / "alertmanager" / "alertmanager.yml")
    inhibited = [
        {
            "source_matchers": matchers(one["sourceMatch"]),
            "target_matchers": matchers(one["targetMatch"]),
            "equal": one["equal"],
        }
        for one in resource["spec"]["inhibitRules"]
    ]
    assert inhibited == known["inhibit_rules"]
    assert as_written_for_alertmanager(resource["spec"]["route"]) == known["route"]


@needs_alertmanager
def test_no_name_changes_the_look_of_the_message_in_slack(tmp_path: Path) -> None:
    (resource,) = of_kind("AlertmanagerConfig", rendered(EVERYTHING[0])).values()
    (slack,) = (one["slackConfigs"][0] for one in resource["spec"]["receivers"] if "slackConfigs" in one)
    hostile = "a\n*b* _c_ ~d~ `e` <!channel> f_g"
    alert = {"status": "firing", "annotations": {"description": hostile, "recommendation": "Do."}}
    data = {"status": "firing", "groupLabels": {"alertname": "A"}, "commonLabels": {"run": hostile}}
    (tmp_path / "data.json").write_text(json.dumps({**data, "alerts": [alert]}))
    render = ["amtool", "template", "render", f"--template.data={tmp_path}/data.json", "--template.glob=none"]
    title, text = (
        ran([*render, f"--template.text={slack[key]}"], check=True).stdout for key in ("title", "text")
    )
    assert title.strip() == "FIRING: A, run a b c d e !channel f_g"
    assert text.strip() == "a b c d e !channel f_g Do."


def as_written_for_alertmanager(route: Resource) -> Resource:
    """The names of Alertmanager's own file; here, both audiences are told by Slack."""
    told = {re.sub("[A-Z]", lambda large: f"_{large[0].lower()}", key): value for key, value in route.items()}
    if "routes" in told:
        told["routes"] = [as_written_for_alertmanager(one) for one in told["routes"]]
    if "matchers" in told:
        told["matchers"] = matchers(told["matchers"])
    if told.get("receiver") == "slack":
        told["receiver"] = "owners" if "matchers" in told else "platform"
    return told


def matchers(written: list[dict[str, str]]) -> list[str]:
    return [f'{one["name"]}{one.get("matchType", "=")}"{one["value"]}"' for one in written]
