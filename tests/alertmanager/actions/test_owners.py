"""Which users have had ledgers of a run: remembered, and never forgotten because of another user."""

import os
from pathlib import Path

import pytest
from stepscope.alertmanager.actions import owners
from stepscope.alertmanager.actions.owners import Owners, user_number
from stepscope.training.ledger import create_ledger
from stepscope.training.ranks import Ranks

ME = os.geteuid()


def leave_ledger(folder: Path, run: str) -> Path:
    ledger = create_ledger(str(folder), run, Ranks(0, None, 1))
    os.close(ledger.fd)
    return Path(ledger.path)


def test_an_owner_is_remembered_after_the_ledger_is_gone_and_forgotten_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    seen = Owners(tmp_path)
    assert seen.meant("resnet") == set()
    leave_ledger(tmp_path, "resnet").unlink()
    assert seen.meant("resnet") == set(), "nobody looked in time"
    path = leave_ledger(tmp_path, "resnet")
    assert seen.meant("resnet") == {("resnet", ME)}
    path.unlink()
    now[0] += 3500
    assert seen.meant("resnet") == {("resnet", ME)}
    assert seen.meant("bert") == set()
    now[0] += 200
    assert seen.meant("resnet") == set()


@pytest.mark.skipif(ME != 0, reason="needs root, to give a file to another user")
def test_two_owners_of_a_name_are_both_known_dead_or_alive(tmp_path: Path) -> None:
    leave_ledger(tmp_path, "resnet")
    os.chown(leave_ledger(tmp_path, "resnet"), 1001, 1001)
    os.chown(leave_ledger(tmp_path, "bert"), 1001, 1001)
    assert Owners(tmp_path).meant("resnet") == {("resnet", 0), ("resnet", 1001)}
    assert Owners(tmp_path).meant("bert") == {("bert", 1001)}


def test_the_name_that_the_exporter_gives_to_a_second_users_run_means_that_run(tmp_path: Path) -> None:
    leave_ledger(tmp_path, "resnet")
    assert Owners(tmp_path).meant("resnet@0") == ({("resnet", 0)} if ME == 0 else set())
    assert Owners(tmp_path).meant("resnet@4711") == set()
    assert Owners(tmp_path).meant("resnet@") == set()


@pytest.mark.skipif(ME != 0, reason="needs root, to give a file to another user")
def test_a_user_who_gives_a_run_the_name_with_anothers_user_in_it_makes_it_ambiguous(tmp_path: Path) -> None:
    leave_ledger(tmp_path, "resnet")
    os.chown(leave_ledger(tmp_path, "resnet@root"), 1001, 1001)
    assert Owners(tmp_path).meant("resnet@root") == {("resnet", 0), ("resnet@root", 1001)}


def test_a_user_with_too_many_runs_to_remember_may_have_had_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "MOST_RUNS", 3)
    seen = Owners(tmp_path)
    for number in range(3):
        assert seen.meant("resnet") == set()
        leave_ledger(tmp_path, f"run-{number}")
    assert seen.meant("resnet") == {("resnet", ME)}


def test_a_user_with_too_many_runs_is_known_while_there_are_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(owners, "MOST_RUNS", 1)
    seen = Owners(tmp_path)
    leave_ledger(tmp_path, "resnet")
    for _ in range(3):
        assert seen.meant("resnet") == {("resnet", ME)}
        now[0] += 3700


def test_a_user_is_given_by_name_or_number() -> None:
    assert user_number("root") == 0
    assert user_number("4711") == 4711
    assert user_number("no such user") is None
    assert user_number("9" * 5000) is None
    assert user_number("a\0b") is None
