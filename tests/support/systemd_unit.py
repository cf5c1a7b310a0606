"""What a systemd unit says, and the same restrictions for a process without systemd."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.support.compose import REPOSITORY
from tests.support.processes import ran
from tests.support.sandbox import Sandbox

FOLDER = REPOSITORY / "deploy" / "systemd"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs Debian's systemd package"
)

# What a sandbox has in any case, what the kernel refuses to a process without capabilities, and settings that
# restrict nothing.
IMPLIED = {
    *("PrivateMounts", "ProtectControlGroups", "ProtectKernelTunables", "SystemCallArchitectures"),
    *("ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules"),
    *("LockPersonality", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallErrorNumber"),
    *("ExecStart", "Group", "MemoryMax", "Restart", "RestartSec", "LoadCredential", "StateDirectoryMode"),
}
SYSTEM_CALLS_OF_NAMESPACES = {"unshare", "setns"}


def settings(unit: Path) -> dict[str, list[str]]:
    """Returns the values of each setting in the section [Service]."""
    section = unit.read_text().partition("[Service]\n")[2].partition("\n[")[0].replace("\\\n", "")
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", section):
        found.setdefault(name, []).append(value)
    return found


def sandbox_of(unit: Path, uid: int, state: Path, shared_memory: Path) -> Sandbox:
    """Returns the restrictions of a unit whose user is `uid`; fails on a setting that it does not know."""
    told = {name: " ".join(values) for name, values in settings(unit).items() if name not in IMPLIED}
    told.pop("User")
    assert told.pop("ProtectSystem") == "strict"
    assert told.pop("NoNewPrivileges") == "yes"
    hidden = ["/home", "/root", "/run/user"] if told.pop("ProtectHome") == "yes" else []
    hidden += ["/tmp", "/var/tmp"] if told.pop("PrivateTmp") == "yes" else []
    kept = told.pop("CapabilityBoundingSet").removeprefix("CAP_").lower().split()
    assert told.pop("AmbientCapabilities").removeprefix("CAP_").lower().split() == kept
    allowed, refused = (system_calls(groups) for groups in settings(unit)["SystemCallFilter"])
    assert told.pop("SystemCallFilter")
    if told.pop("RestrictNamespaces") == "yes":
        refused |= SYSTEM_CALLS_OF_NAMESPACES
    calls = {
        "calls": sorted(allowed - refused | system_calls("@default")),
        "families": told.pop("RestrictAddressFamilies").split(),
        "executable_memory": told.pop("MemoryDenyWriteExecute", "no") == "no",
    }
    sandbox = Sandbox(
        uid,
        umask=int(told.pop("UMask"), 8),
        capabilities=kept,
        mounted={f"/var/lib/{told.pop('StateDirectory')}": state, "/dev/shm": shared_memory},
        read_only=told.pop("ReadOnlyPaths", "").split(),
        hidden=hidden,
        devices=told.pop("PrivateDevices", "no") == "no",
        filter=calls,
    )
    assert not told, "restrictions that no test applies"
    return sandbox


def system_calls(groups: str) -> set[str]:
    """Returns the system calls of `@group @group`."""
    known = _groups()
    calls: set[str] = set()
    for name in groups.lstrip("~").split():
        calls |= system_calls(" ".join(known[name])) if name in known else {name}
    return calls


@cache
def _groups() -> dict[str, list[str]]:
    text = ran(["systemd-analyze", "syscall-filter"], check=True).stdout
    blocks = re.findall(r"(?m)^(@[\w-]+)\n((?:    .*\n)+)", text)
    return {name: re.findall(r"(?m)^    ([@\w-]+)$", body) for name, body in blocks}
