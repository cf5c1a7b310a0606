"""The state directory: its user's own, one exporter at a time, and without it an exporter that only warns."""

import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from stepscope.common.errors import UserError
from stepscope.common.users import user_name
from stepscope.exporter.sampling import state_directory as module
from stepscope.exporter.sampling.state_directory import default_state_directory, state_directory

from tests.support.exporter_process import ANY_PORT, ExporterProcess, exporter
from tests.support.ports import held_port
from tests.support.sandbox import Sandbox, SandboxedExporter, needs_sandboxes

PORT = 9870
HERE = f"{socket.gethostname()}-{PORT}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def a_user(monkeypatch: pytest.MonkeyPatch, uid: int, **environment: str) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_systemd_says_where_the_state_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_user(monkeypatch, 0, STATE_DIRECTORY=f"{tmp_path}/first:{tmp_path}/second", XDG_STATE_HOME="/elsewhere")
    assert default_state_directory(PORT) == tmp_path / "first"


def test_a_user_has_it_in_the_home_directory_apart_for_each_node_and_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_user(monkeypatch, 1000, HOME="/home/ada")
    assert default_state_directory(PORT) == Path("/home/ada/.local/state/stepscope", HERE)
    assert default_state_directory(9871) != default_state_directory(PORT)
    monkeypatch.setenv("XDG_STATE_HOME", "/scratch/ada")
    assert default_state_directory(PORT) == Path("/scratch/ada/stepscope", HERE)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_directory(PORT) == Path("/home/ada/.local/state/stepscope", HERE)


def test_root_has_it_in_var_lib(monkeypatch: pytest.MonkeyPatch) -> None:
    a_user(monkeypatch, 0, XDG_STATE_HOME="/home/ada/.local/state", HOME="/home/ada")
    assert default_state_directory(PORT) == Path("/var/lib/stepscope", HERE)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_it_is_made_for_its_user_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "ROOT_STATE", tmp_path / "home")
    before = os.umask(umask)
    try:
        with state_directory(None, PORT) as path:
            assert path == tmp_path / "home" / "stepscope" / HERE
            assert [mode(folder) for folder in (path, path.parent)] == [0o700, 0o700]
            assert mode(path / "exporter.lock") == 0o600
    finally:
        os.umask(before)


def world_writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1707)


def group_writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def foreign(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, 12345)


def linked(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def a_file(path: Path) -> None:
    path.write_text("")


NOT_OWN: dict[Callable[[Path], None], str] = {
    world_writable: "can be written by other users: run `chmod go-w",
    group_writable: "can be written by other users: run `chmod go-w",
    foreign: f"belongs to user {user_name(12345)}: choose a directory of your own",
    linked: "is a symbolic link: give the path of a directory",
    a_file: "is not a directory: give the path of a directory",
}


def not_own(path: Path, make: Callable[[Path], None]) -> str:
    """Makes a directory that is not to be used, and returns the reason."""
    if make is foreign and os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    make(path)
    return NOT_OWN[make]


@pytest.mark.parametrize("make", NOT_OWN)
def test_a_directory_that_others_could_write_to_is_refused_when_it_was_given(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "state"
    reason = not_own(path, make)
    with pytest.raises(UserError) as refused, state_directory(path, PORT):
        pass
    assert str(refused.value).startswith(f"--state-dir {path} {reason}")
    assert not path.is_dir() or not list(path.iterdir())


@pytest.mark.parametrize("make", [make for make in NOT_OWN if make is not linked])
def test_a_default_directory_that_others_could_write_to_is_not_used(
    tmp_path: Path,
    make: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "state"
    reason = not_own(path, make)
    monkeypatch.setenv("STATE_DIRECTORY", str(path))
    with state_directory(None, PORT) as used:
        assert used is None
    assert len(caplog.messages) == 1
    assert f"will not survive a restart: {path} {reason}" in caplog.messages[0]


def test_a_link_that_systemd_made_for_a_dynamic_user_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked(tmp_path / "state")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    with state_directory(None, PORT) as used:
        assert used == tmp_path / "elsewhere"


def test_a_link_that_another_user_put_into_the_place_of_the_default_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "ROOT_STATE", tmp_path)
    (tmp_path / "victim" / HERE).mkdir(parents=True, mode=0o700)
    (tmp_path / "stepscope").symlink_to(tmp_path / "victim")
    with state_directory(None, PORT) as used:
        assert used is None
    assert "is a symbolic link" in caplog.messages[0]
    assert not list((tmp_path / "victim" / HERE).iterdir())


def test_a_directory_that_cannot_be_made_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with state_directory(tmp_path / "file" / "state", PORT) as used:
        assert used is None
    assert len(caplog.messages) == 1
    assert "will not survive a restart" in caplog.messages[0]
    assert "--state-dir" in caplog.messages[0]


def test_a_user_without_a_home_is_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_user(monkeypatch, 1000)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with state_directory(None, PORT) as used:
        assert used is None
    assert f"user {user_name(1000)} has no home directory" in caplog.messages[0]


def test_the_exporter_ends_with_status_2_rather_than_keep_its_state_among_strangers(tmp_path: Path) -> None:
    world_writable(tmp_path / "state")
    ended = exporter(
        "--web.listen-address=127.0.0.1:0", f"--ledger-dir={tmp_path}", f"--state-dir={tmp_path / 'state'}"
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        f"stepscope: --state-dir {tmp_path / 'state'} can be written by other users:"
        f" run `chmod go-w {tmp_path / 'state'}`, or choose another directory\n"
    )


def counts(node: ExporterProcess) -> bool:
    return "stepscope_samples_total" in node.scrape()


@needs_sandboxes
def test_exporters_of_two_users_and_on_two_ports_each_keep_their_own(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    homes = {user: tmp_path / str(user) for user in (64018, 64019)}
    for user, home in homes.items():
        home.mkdir()
        os.chown(home, user, user)
    flags = ("--ledger-dir=/mnt/ledgers", "--run=resnet", "--sample-interval=50ms", "--no-collector.gpu")
    environment = {"PATH": os.environ["PATH"], "HOME": "/mnt/home"}
    with ExitStack() as running:
        other = f"127.0.0.1:{running.enter_context(held_port())}"
        for user, listen in ((64018, ANY_PORT), (64018, other), (64019, ANY_PORT)):
            sandbox = Sandbox(user, mounted={"/mnt/ledgers": tmp_path / "ledgers", "/mnt/home": homes[user]})
            node = SandboxedExporter(sandbox, *flags, environment=environment, listen=listen)
            running.enter_context(node)
            node.wait_for(partial(counts, node))
            assert not [line for line in node.log if "will not survive" in line]
    states = [path for home in homes.values() for path in home.glob(".local/state/stepscope/*/*.samples")]
    assert len({path.parent for path in states}) == len(states) == 3
    assert {mode(path.parent) for path in states} == {0o700}


def test_nothing_of_the_exporter_is_in_the_ledger_directory(tmp_path: Path) -> None:
    with ExporterProcess(f"--ledger-dir={tmp_path}", "--run=resnet", "--sample-interval=20ms") as node:
        node.wait_for(lambda: "stepscope_samples_total" in node.scrape())
        assert not list(tmp_path.iterdir())
