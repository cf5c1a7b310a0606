"""The audit's file on a disk that is full for a while."""

import resource
from pathlib import Path

import pytest
from stepscope.alertmanager.actions.audit import STOP, Audit

DECISION = {
    "decision": STOP,
    "fingerprint": "1a",
    "starts_at": "2026-11-20T13:27:00+00:00",
    "processes": [{"pid": 7, "start": 8, "stop": True}],
}


def test_a_decision_after_a_full_disk_is_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="the disk is full"):
            audit.write("decision", DECISION)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    audit.write("decision", DECISION)  # Alertmanager sent the alert again
    assert Audit(path).processes == {(7, 8)}
