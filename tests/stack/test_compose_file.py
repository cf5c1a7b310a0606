"""docker-compose.yml: what it promises to a machine that runs it."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.commands.exporter import DEFAULT_ADDRESS
from stepscope.demo.scenarios import all_scenarios
from stepscope.training.ledger_files import ledger_directory

from tests.support.compose import (
    FILE,
    PINNED_IMAGE,
    REPOSITORY,
    Service,
    needs_compose,
    run_compose,
    services,
)
from tests.support.exporter_process import ExporterProcess
from tests.support.schemas import validator_of

ENVIRONMENT_EXAMPLE = REPOSITORY / ".env.example"
EVERYTHING = ("demo", "gpu")


@pytest.fixture(scope="module")
def all_services() -> dict[str, Service]:
    return services(*EVERYTHING)


def test_it_follows_the_compose_specification() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    written = yaml.safe_load(FILE.read_text())
    validator_of(json.loads(schema.read_text())).validate(written)


def test_its_environment_example_lists_every_variable_and_no_other() -> None:
    asked = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    listed = set(re.findall(r"(?m)^#?([A-Z_]+)=", ENVIRONMENT_EXAMPLE.read_text()))
    assert listed - {"COMPOSE_PROFILES"} == asked  # that one is for Docker Compose itself


def test_the_environment_example_repeats_the_defaults() -> None:
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", FILE.read_text()))
    listed = dict(re.findall(r"(?m)^#([A-Z_]+)=(.+)$", ENVIRONMENT_EXAMPLE.read_text()))
    assert {name: listed[name] for name in defaults if name != "STEPSCOPE_EXPORTERS"} == {
        name: value for name, value in defaults.items() if name != "STEPSCOPE_EXPORTERS"
    }


class TestAsDockerComposeReadsIt:
    pytestmark = needs_compose

    def test_one_command_gives_the_four_services_and_the_rules(self) -> None:
        assert set(services()) == {"exporter", "rules", "prometheus", "alertmanager", "grafana"}

    def test_alerts_link_to_the_grafana_of_this_stack_whatever_its_port(self) -> None:
        for environment, port in (({}, 3000), ({"GRAFANA_PORT": "3001"}, 3001)):
            stack = services(environment=environment)
            assert f"--grafana-url=http://localhost:{port}" in stack["rules"]["command"]
            assert stack["grafana"]["ports"][0]["published"] == str(port)
        assert stack["prometheus"]["depends_on"]["rules"]["condition"] == "service_completed_successfully"

    def test_the_profile_demo_adds_a_node_a_scenario(self) -> None:
        demos = services("demo").keys() - services().keys()
        assert demos == all_scenarios().keys()
        for name in demos:
            command, scenario, *flags = services("demo")[name]["command"]
            assert (command, scenario) == ("demo", name)
            assert flags[0].startswith("--begun-ago=")

    def test_the_profile_gpu_adds_an_exporter_that_sees_gpus_in_place_of_the_other(self) -> None:
        without, with_gpus = services("gpu")["exporter"], services("gpu")["exporter-gpu"]
        (device,) = with_gpus["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])
        assert without["command"] == [*with_gpus["command"], "--no-collector.gpu"]
        same = ("volumes", "networks", "ports", "image", "mem_limit")
        assert [without[key] for key in same] == [with_gpus[key] for key in same]
        settings = uncommented("COMPOSE_PROFILES", "STEPSCOPE_EXPORTERS")
        assert services(environment=settings)["exporter"]["deploy"]["replicas"] == 0
        assert "exporter-gpu" in services(environment=settings)

    def test_images_are_pinned_or_built_here_by_one_service_alone(
        self, all_services: dict[str, Service]
    ) -> None:
        built = [name for name, service in all_services.items() if "build" in service]
        assert built == ["exporter", "rules"]
        for service in all_services.values():
            if service["image"].startswith("stepscope:"):
                assert service["pull_policy"] == "never"
            else:
                assert PINNED_IMAGE.fullmatch(service["image"])

    def test_no_port_is_open_to_other_machines(self, all_services: dict[str, Service]) -> None:
        ports = [port for service in all_services.values() for port in service.get("ports", ())]
        assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
        assert {port["target"] for port in ports} == {3000, 9090, 9093, 9870}

    def test_every_service_is_restarted_has_few_rights_and_says_whether_it_is_well(
        self, all_services: dict[str, Service]
    ) -> None:
        for name, service in all_services.items():
            assert service["restart"] == ("no" if name == "rules" else "unless-stopped"), name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
            checked_by_image = service["image"].startswith("stepscope:")  # test_dockerfile.py
            assert checked_by_image or service["healthcheck"]["test"][0] == "CMD", name

    def test_what_must_outlive_a_container_lies_in_a_volume(self, all_services: dict[str, Service]) -> None:
        volumes = {
            mount["source"]: f"{name}:{mount['target']}"
            for name, service in all_services.items()
            for mount in service.get("volumes", ())
            if mount["type"] == "volume" and name != "exporter-gpu" and not mount.get("read_only")
        }
        assert volumes == {
            "exporter": "exporter:/var/lib/stepscope",
            "rules": "rules:/var/lib/stepscope",
            "prometheus": "prometheus:/prometheus",
            "alertmanager": "alertmanager:/alertmanager",
            "grafana": "grafana:/var/lib/grafana",
        }
        for name in ("prometheus", "alertmanager", "exporter"):
            target = volumes[name].partition(":")[2]
            assert any(f"={target}" in word for word in all_services[name]["command"]), name

    def test_every_file_that_is_mounted_is_there_and_only_read(
        self, all_services: dict[str, Service]
    ) -> None:
        mounts = [mount for service in all_services.values() for mount in service.get("volumes", ())]
        binds = [mount for mount in mounts if mount["type"] == "bind"]
        for mount in binds:
            assert Path(mount["source"]).exists(), mount
            assert mount.get("read_only") or mount["source"] == "/dev/shm", mount

    def test_ledgers_are_looked_for_where_training_processes_of_the_machine_leave_them(
        self, all_services: dict[str, Service]
    ) -> None:
        exporter = all_services["exporter"]
        (shared,) = [mount for mount in exporter["volumes"] if mount["target"] == "/dev/shm"]
        assert shared["source"] == "/dev/shm"
        assert ledger_directory({}).startswith("/dev/shm/")
        assert not any(word.startswith("--ledger-dir") for word in exporter["command"])
        assert f":{exporter['ports'][0]['target']}" == DEFAULT_ADDRESS

    def test_no_account_exists_unless_a_password_was_given(self) -> None:
        without = services()["grafana"]["environment"]
        assert without["GF_SECURITY_ADMIN_PASSWORD"] == ""  # Grafana passes over empty variables
        assert without["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == ""
        secret = services(environment={"GRAFANA_ADMIN_PASSWORD": "s3cret"})["grafana"]["environment"]
        assert secret["GF_SECURITY_ADMIN_PASSWORD"] == "s3cret"
        assert secret["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "false"

    def test_the_exporter_starts_with_the_command_that_stands_there(
        self, tmp_path: Path, all_services: dict[str, Service]
    ) -> None:
        flags = [
            word.replace("/host", "").replace("/var/lib/stepscope", str(tmp_path))
            for word in all_services["exporter"]["command"][1:]
        ]
        with ExporterProcess(*flags, f"--ledger-dir={tmp_path}") as exporter:
            exporter.wait_for(lambda: "stepscope_cpu_utilization_ratio" in exporter.scrape())

    def test_it_says_nothing_when_it_is_checked(self) -> None:
        checked = run_compose("--profile=*", "config", "--quiet")
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def uncommented(*names: str) -> dict[str, str]:
    """The first suggestion of each variable in .env.example."""
    listed: dict[str, Any] = {}
    for name, value in re.findall(r"(?m)^#([A-Z_]+)=(.*)$", ENVIRONMENT_EXAMPLE.read_text()):
        listed.setdefault(name, value)
    return {name: listed[name] for name in names}
