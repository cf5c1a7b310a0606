"""deploy/systemd: units that systemd takes, and services that do their work under these restrictions."""

import os
import re
import shlex
import signal
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.actions_process import TOKEN, a_notification, actions, an_alert_of_it
from tests.support.fake_nvml import FakeNvml
from tests.support.processes import ran
from tests.support.sandbox import Sandbox, SandboxedExporter, needs_sandboxes
from tests.support.systemd_unit import FOLDER, needs_systemd, sandbox_of, settings
from tests.support.training_process import RESNET, TrainingProcess
from tests.support.waiting import SECONDS

EXPORTER = FOLDER / "stepscope-exporter.service"
ACTIONS = FOLDER / "stepscope-actions.service"
UNITS = [EXPORTER, ACTIONS]
SERVICE_USER, TRAINING_USER = 64017, 64018


def command(unit: Path) -> list[str]:
    (words,) = settings(unit)["ExecStart"]
    return shlex.split(words)


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    here.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text()))
    verified = ran(["systemd-analyze", "verify", here])
    assert verified.returncode == 0, verified.stderr
    assert unit.name not in verified.stderr


@needs_systemd
@pytest.mark.parametrize(("unit", "tenths"), [(EXPORTER, 20), (ACTIONS, 16)], ids=["exporter", "actions"])
def test_systemd_rates_the_exposure_as_low(unit: Path, tenths: int) -> None:
    rating = ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(unit)]
    rated = ran(rating)
    assert rated.returncode == 0, rated.stdout.splitlines()[-1]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_is_started_again_however_often_takes_little_memory_and_nothing_is_hidden_from_it(
    unit: Path,
) -> None:
    assert settings(unit)["Restart"] == ["always"]
    assert int(settings(unit)["RestartSec"][0]) > 10 / 5  # systemd gives up after 5 starts in 10 s
    assert settings(unit)["MemoryMax"] == ["256M"]
    hiding = {
        *("DynamicUser", "RemoveIPC"),  # both remove files from /dev/shm
        *("ProtectProc", "ProcSubset", "PrivatePIDs", "PrivateUsers"),  # processes of other users
        *("PrivateNetwork", "IPAddressDeny"),
    }
    if (
        unit == EXPORTER
    ):  # sees GPUs, even if their driver is loaded later. ProtectClock= implies DeviceAllow=
        hiding |= {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"}
    assert settings(unit).keys() & hiding == set()


def shared_memory(folder: Path) -> Path:
    memory = folder / "shm"
    memory.mkdir()
    memory.chmod(0o1777)
    return memory


def state_of(folder: Path) -> Path:
    """Makes a state directory as systemd does."""
    state = folder / "state"
    state.mkdir()
    os.chown(state, SERVICE_USER, SERVICE_USER)
    state.chmod(0o700)
    return state


@needs_sandboxes
@needs_systemd
class TestUnderItsRestrictions:
    def test_the_exporter_publishes_a_run_of_another_user_and_keeps_its_counts(self, tmp_path: Path) -> None:
        assert settings(EXPORTER)["StateDirectoryMode"] == ["0700"]
        memory, state = shared_memory(tmp_path), state_of(tmp_path)
        sandbox = sandbox_of(EXPORTER, SERVICE_USER, state, memory)
        stranger = Sandbox(TRAINING_USER, umask=0o077, mounted={"/dev/shm": memory})
        program, subcommand, *flags = command(EXPORTER)
        assert (Path(program).name, subcommand) == ("stepscope", "exporter")
        environment = {"STATE_DIRECTORY": "/var/lib/stepscope", "PATH": os.environ["PATH"]}
        driver = FakeNvml(tmp_path / "driver", gpus=2)
        for file in (driver.directory, *driver.directory.iterdir()):
            os.chown(file, SERVICE_USER, SERVICE_USER)
        sandbox = replace(sandbox, mounted={**sandbox.mounted, "/opt/driver": driver.directory})
        flags += [f"--path.nvml-library=/opt/driver/{driver.library.name}"]
        exporter = [SandboxedExporter(sandbox, *flags, environment=environment) for _ in range(2)]

        with TrainingProcess(None, sandbox=stranger.words()) as trainer:
            with exporter[0] as first:
                trainer.do("for _ in range(5): stepscope.begin_step(); stepscope.end_step()")
                first.wait_for(lambda: "stepscope_step_duration_seconds_count" in first.scrape())
                for collector in ("cpu", "disk", "gpu", "memory", "network", "training"):
                    assert first.scrape().value("stepscope_collector_success", collector=collector) == 1
                assert len(first.scrape().all("stepscope_gpu_utilization_ratio")) == driver.gpus
                first.wait_for(lambda: first.scrape().value("stepscope_samples_total", run=RESNET) >= 3)
                counted = first.scrape().value("stepscope_samples_total", run=RESNET)
                assert first.stop() == 0
            with exporter[1] as second:
                assert second.scrape().value("stepscope_samples_total", run=RESNET) >= counted
                assert not [line for line in first.log + second.log if "will not survive" in line]

        (kept,) = state.glob("*.samples")
        assert {stat.S_IMODE(file.stat().st_mode) for file in state.iterdir()} == {0o600}
        assert stranger.run("cat", str(kept)).returncode != 0

    def test_the_exporter_sees_devices_and_processes_of_other_users_and_nothing_private(
        self, tmp_path: Path
    ) -> None:
        sandbox = sandbox_of(EXPORTER, SERVICE_USER, state_of(tmp_path), shared_memory(tmp_path))
        (tmp_path / "private").write_text("secret")
        assert sandbox.run("cat", f"/proc/{os.getpid()}/status").stdout.startswith("Name:")
        assert sandbox.run("cat", "/proc/1/stat").stdout.startswith("1 ")
        assert set(sandbox.run("ls", "/dev").stdout.split()) >= set(os.listdir("/dev")) - {"fd"}
        assert sandbox.run("cat", str(tmp_path / "private")).returncode != 0
        assert "Read-only file system" in sandbox.run("touch", "/etc/stepscope").stderr
        assert "Operation not permitted" in sandbox.run("unshare", "--user", "true").stderr

    def test_actions_stop_a_run_of_another_user(self, tmp_path: Path) -> None:
        memory, state = shared_memory(tmp_path), state_of(tmp_path)
        sandbox = sandbox_of(ACTIONS, SERVICE_USER, state, memory)
        stranger = Sandbox(TRAINING_USER, mounted={"/dev/shm": memory})
        credentials = tmp_path / "credentials"
        credentials.mkdir(mode=0o755)
        (credentials / "token").write_text(TOKEN)
        os.chown(credentials / "token", SERVICE_USER, SERVICE_USER)
        (credentials / "token").chmod(0o400)
        sandbox = replace(sandbox, mounted={**sandbox.mounted, "/run/credentials": credentials})
        program, subcommand, *flags = command(ACTIONS)
        assert (Path(program).name, subcommand) == ("stepscope", "actions")
        flags = [flag.replace("${CREDENTIALS_DIRECTORY}", "/run/credentials") for flag in flags]
        del flags[flags.index("--web.listen-address") :]
        with (
            TrainingProcess(None, sandbox=stranger.words()) as trainer,
            actions(*flags, sandbox=sandbox.words()) as receiver,
        ):
            trainer.do("stepscope.start()")
            (decision,) = receiver.decisions(a_notification(an_alert_of_it()))
            assert decision["decision"] == "stop", decision
            assert trainer.process.wait(SECONDS) == 128 + signal.SIGTERM  # bwrap's way to say it
        assert '"result": "sent"' in (state / "audit.log").read_text()
        assert stat.S_IMODE((state / "audit.log").stat().st_mode) == 0o600
