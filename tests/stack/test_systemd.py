"""deploy/systemd: a unit that systemd takes, with an exporter that takes its flags."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.compose import REPOSITORY
from tests.support.exporter_process import ExporterProcess

UNIT = REPOSITORY / "deploy" / "systemd" / "trainwatch-exporter.service"


def command() -> list[str]:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return shlex.split(unit["Service"]["ExecStart"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text()))
    verified = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stderr
    assert UNIT.name not in verified.stderr


def test_the_exporter_starts_with_its_flags_and_keeps_its_state_where_systemd_makes_room(
    tmp_path: Path,
) -> None:
    program, subcommand, *flags = command()
    assert (Path(program).name, subcommand) == ("trainwatch", "exporter")
    assert "/var/lib/trainwatch" in flags
    assert "StateDirectory=trainwatch\n" in UNIT.read_text()
    flags = [flag.replace("/var/lib/trainwatch", str(tmp_path)) for flag in flags]
    with ExporterProcess(*flags, f"--ledger-dir={tmp_path}"):
        pass


@pytest.mark.parametrize("hidden", ["PrivateTmp", "PrivateDevices", "PrivateNetwork", "ProtectProc"])
def test_ledgers_gpus_and_the_network_stay_in_sight(hidden: str) -> None:
    assert not re.search(rf"(?m)^{hidden}=", UNIT.read_text())
