"""The ledger directory as each deployment makes it: all users write to it, and the exporter reads it."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import needs_helm, pod_of, rendered
from tests.support.compose import FILE, REPOSITORY
from tests.support.sandbox import Sandbox, SandboxedExporter, needs_sandboxes
from tests.support.systemd_unit import FOLDER, needs_systemd, sandbox_of
from tests.support.training_process import TrainingProcess

pytestmark = needs_sandboxes

SERVICE_USER, ADA, BOB = 64017, 64018, 64019
COMPOSED: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]["exporter"]
SHARED = 0o1777


class Machine:
    """A node with a /dev/shm of its own, on which users train and an exporter runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = folder / "shm"
        self.memory.mkdir()
        self.memory.chmod(SHARED)
        self.ledgers = self.memory / "stepscope"
        self.running = ExitStack()

    def train(self, user: int, umask: int = 0o022) -> TrainingProcess:
        """Starts a run of a user, with one step: its name is the user's number."""
        sandbox = Sandbox(user, umask, mounted={"/dev/shm": self.memory})
        trainer = self.running.enter_context(TrainingProcess(None, run=str(user), sandbox=sandbox.words()))
        trainer.do("stepscope.begin_step(); stepscope.end_step()")
        return trainer

    def export(self, sandbox: Sandbox, *flags: str) -> SandboxedExporter:
        environment = {"PATH": os.environ["PATH"], "STATE_DIRECTORY": "/nonexistent"}
        exporter = SandboxedExporter(
            sandbox, "--sample-interval=50ms", "--no-collector.gpu", *flags, environment=environment
        )
        self.running.enter_context(exporter)
        return exporter

    def mode(self) -> int:
        return stat.S_IMODE(self.ledgers.stat().st_mode)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.running:
        yield machine


def assert_published(exporter: SandboxedExporter, *users: int) -> None:
    def published() -> bool:
        steps = exporter.scrape().all("stepscope_step_duration_seconds_count")
        names = {dict(labels)["run"].rpartition("-")[0] for labels in steps}  # of NAME-LAUNCH
        return names == {str(user) for user in users}

    exporter.wait_for(published)


def from_a_shell(machine: Machine) -> Callable[[], SandboxedExporter]:
    sandbox = Sandbox(SERVICE_USER, umask=0o077, mounted={"/dev/shm": machine.memory})
    return lambda: machine.export(sandbox)


def by_systemd(machine: Machine) -> Callable[[], SandboxedExporter]:
    """At boot systemd makes the directory, before any user and before the exporter."""
    lines = (FOLDER / "stepscope.tmpfiles.conf").read_text()
    configuration = machine.folder / "stepscope.conf"
    configuration.write_text(lines.replace(" stepscope stepscope ", f" {SERVICE_USER} {SERVICE_USER} "))
    capabilities = ("chown", "fowner", "dac_override")
    boot = Sandbox(0, capabilities=capabilities, mounted={"/dev/shm": machine.memory})
    made = boot.run("systemd-tmpfiles", "--create", str(configuration))
    assert made.returncode == 0, made.stderr
    assert machine.ledgers.stat().st_uid == SERVICE_USER
    state = machine.folder / "state"
    state.mkdir()
    os.chown(state, SERVICE_USER, SERVICE_USER)
    sandbox = sandbox_of(FOLDER / "stepscope-exporter.service", SERVICE_USER, state, machine.memory)
    return lambda: machine.export(sandbox)


def by_docker_compose(machine: Machine) -> Callable[[], SandboxedExporter]:
    assert {"/dev/shm:/dev/shm", "/proc:/host/proc:ro", "/sys:/host/sys:ro"} < {*COMPOSED["volumes"]}
    volume = machine.folder / "volume"  # Docker makes it like the image's directory: test_dockerfile.py
    volume.mkdir(0o755)
    os.chown(volume, user_of_the_image(), user_of_the_image())
    mounted = {"/dev/shm": machine.memory, "/host/proc": Path("/proc"), "/host/sys": Path("/sys")}
    mounted["/var/lib/stepscope"] = volume
    read_only = ("/host/proc", "/host/sys")
    sandbox = Sandbox(user_of_the_image(), mounted=mounted, read_only=read_only, devices=False)

    def export() -> SandboxedExporter:
        exporter = machine.export(sandbox, *COMPOSED["command"][1:])
        assert stat.S_IMODE((volume / "state").stat().st_mode) == 0o700
        return exporter

    return export


def by_kubernetes(machine: Machine) -> Callable[[], SandboxedExporter]:
    """The kubelet makes host paths as root, then the init container runs, then the exporter."""
    (init,), (container,) = pod()["initContainers"], pod()["containers"]

    def export() -> SandboxedExporter:
        machine.ledgers.mkdir(0o755, exist_ok=True)
        prepared = in_pod(machine, init).run(sys.executable, *init["command"][1:])
        assert prepared.returncode == 0, prepared.stderr
        command, *flags = [flag.replace("$(NODE_NAME)", "node") for flag in container["args"]]
        assert command == "exporter"
        exporter = machine.export(in_pod(machine, container), *flags)
        assert not [line for line in exporter.log if "will not survive" in line]
        return exporter

    return export


def pod() -> dict[str, Any]:
    """Returns the exporter's pod. Without Helm, its tests are skipped."""
    if needs_helm.args[0]:
        pytest.skip(needs_helm.kwargs["reason"])
    return pod_of("cpu", rendered())


def in_pod(machine: Machine, container: dict[str, Any]) -> Sandbox:
    """Returns what a container of the exporter's pod may do, and sees."""
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    mounted, read_only = {}, []
    for mount in container["volumeMounts"]:
        path = volumes[mount["name"]]["hostPath"]["path"]
        if mount["name"] == "state":
            source = machine.folder / "state"
            source.mkdir(0o755, exist_ok=True)  # by the kubelet, which is root
        else:
            source = machine.memory / Path(path).relative_to("/dev/shm") if "/dev/shm" in path else Path(path)
        mounted[mount["mountPath"]] = source
        read_only += [mount["mountPath"]] if mount.get("readOnly") else []
    context = {**pod()["securityContext"], **container["securityContext"]}
    capabilities = [name.lower() for name in context["capabilities"].get("add", ())]
    return Sandbox(
        context["runAsUser"],
        capabilities=capabilities,
        mounted=mounted,
        read_only=read_only,
        devices=False,
    )


def user_of_the_image() -> int:
    (user,) = (
        line.split()[1]
        for line in (REPOSITORY / "Dockerfile").read_text().splitlines()
        if line[:5] == "USER "
    )
    return int(user.partition(":")[0])


Deployed = Callable[[Machine], Callable[[], SandboxedExporter]]


@needs_systemd
@pytest.mark.parametrize("deployed", [from_a_shell, by_systemd, by_docker_compose, by_kubernetes])
def test_all_users_train_on_a_machine_whose_exporter_came_first(machine: Machine, deployed: Deployed) -> None:
    exporter = deployed(machine)()
    assert machine.mode() == SHARED
    machine.train(ADA, umask=0o022)
    machine.train(BOB, umask=0o077)
    assert_published(exporter, ADA, BOB)


@needs_systemd
@pytest.mark.parametrize(  # what the first user makes does not depend on the exporter that comes later
    ("deployed", "umask"),
    [
        *((from_a_shell, 0o022), (from_a_shell, 0o077), (by_systemd, 0o077)),
        *((by_docker_compose, 0o022), (by_kubernetes, 0o077)),
    ],
)
def test_all_users_train_on_a_machine_where_one_of_them_came_first(
    machine: Machine, deployed: Deployed, umask: int
) -> None:
    export = deployed(machine)
    machine.train(ADA, umask)
    assert machine.mode() == SHARED
    exporter = export()
    machine.train(BOB, umask)
    assert_published(exporter, ADA, BOB)


def test_a_directory_that_a_container_engine_made_is_shared_by_its_owner(machine: Machine) -> None:
    machine.ledgers.mkdir(0o755)
    os.chown(machine.ledgers, ADA, ADA)  # the root of rootless containers
    exporter = by_docker_compose(machine)()
    machine.train(ADA)
    assert machine.mode() == SHARED
    machine.train(BOB)
    assert_published(exporter, ADA, BOB)


def test_a_directory_that_a_kubelet_made_for_a_training_pod_is_opened_to_all_users(machine: Machine) -> None:
    machine.ledgers.mkdir(0o755)  # hostPath: {type: DirectoryOrCreate}
    exporter = by_kubernetes(machine)()
    assert machine.mode() == SHARED
    assert machine.ledgers.stat().st_uid == pod()["securityContext"]["runAsUser"]
    machine.train(ADA)
    assert_published(exporter, ADA)


def test_a_pod_refuses_a_link_in_place_of_the_directory(machine: Machine) -> None:
    (machine.memory / "elsewhere").mkdir(0o700)
    machine.ledgers.symlink_to("elsewhere")
    (init,) = pod()["initContainers"]
    prepared = in_pod(machine, init).run(sys.executable, *init["command"][1:])
    assert "Not a directory: '/dev/shm/stepscope'" in prepared.stderr
    assert stat.S_IMODE((machine.memory / "elsewhere").stat().st_mode) == 0o700


def test_an_exporter_that_may_only_read_shared_memory_finds_the_ledgers_there(machine: Machine) -> None:
    machine.train(ADA)
    mounted = {"/dev/shm": machine.memory}
    exporter = machine.export(Sandbox(SERVICE_USER, mounted=mounted, read_only=["/dev/shm"]))
    assert_published(exporter, ADA)


def test_the_counts_of_a_run_survive_its_exporters_pod(machine: Machine) -> None:
    start = by_kubernetes(machine)
    first = start()
    machine.train(ADA)
    first.wait_for(lambda: counted(first) > 20)
    before = counted(first)
    assert first.stop() == 0
    assert counted(start()) >= before
    state = machine.folder / "state"
    assert (stat.S_IMODE(state.stat().st_mode), state.stat().st_uid) == (0o700, user_of_the_image())


def counted(exporter: SandboxedExporter) -> float:
    return sum(exporter.scrape().all("stepscope_samples_total").values())


def test_a_user_cannot_remove_the_ledger_of_another(machine: Machine) -> None:
    from_a_shell(machine)()
    machine.train(ADA)
    (ledger,) = machine.ledgers.iterdir()
    bob = Sandbox(BOB, mounted={"/dev/shm": machine.memory})
    for command in ("rm -f", "truncate --size=0", "mv -t /dev/shm"):
        assert bob.run(*command.split(), f"/dev/shm/stepscope/{ledger.name}").returncode != 0
    assert ledger.stat().st_size > 0
