"""docker-compose.yml as Docker Compose itself reads it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ran

REPOSITORY = Path(__file__).parents[2]
FILE = REPOSITORY / "docker-compose.yml"
UNPACKED = REPOSITORY / ".venv" / "newer-servers" / "usr" / "bin" / "docker-compose"  # tests/install-servers
PINNED_IMAGE = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}")
Service = dict[str, Any]


@cache
def compose_command() -> tuple[str, ...] | None:
    """How to call Docker Compose 2 or later; None where it is not there. It needs no Docker engine here."""
    for words in (("docker", "compose"), ("docker-compose",), (str(UNPACKED),)):
        if shutil.which(words[0]) is None:
            continue
        told = ran([*words, "version", "--short"])
        if told.returncode == 0 and told.stdout.strip().lstrip("v").partition(".")[0] not in ("", "1"):
            return words
    return None


needs_compose = pytest.mark.skipif(compose_command() is None, reason="needs Docker Compose 2 or later")


def run_compose(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """With these variables and no file .env, whatever lies there on the machine that tests."""
    command = compose_command()
    assert command is not None
    return ran(
        [*command, f"--file={FILE}", f"--env-file={os.devnull}", *words],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})},
    )


def services(*profiles: str, environment: Mapping[str, str] | None = None) -> dict[str, Service]:
    """The services of these profiles, with every variable filled in."""
    flags = tuple(f"--profile={profile}" for profile in profiles)
    found: dict[str, Service] = json.loads(_config(flags, tuple((environment or {}).items())))["services"]
    return found


@cache
def _config(flags: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    told = run_compose(*flags, "config", "--format=json", environment=dict(environment))
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    return told.stdout
