"""Runs at s3://, gs:// and http(s)://: copied whole, in bounds, and never out of the temporary folder."""

import errno
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import stepscope.analysis
from stepscope.analysis import UserError
from stepscope.commands.cli import main
from stepscope.runs import remote
from stepscope.runs.remote import local_copy

from tests.support.scenarios import WrittenScenarios

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The files of memory://, which stands for S3."""
    monkeypatch.setattr(remote, "SCHEMES", (*remote.SCHEMES, "memory"))
    monkeypatch.setattr(remote, "_copies", {})
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[Any]:
    """A function that serves a folder, or by a handler, and returns the address."""
    servers = []

    def serve(folder: Path | type[BaseHTTPRequestHandler]) -> str:
        handler = partial(Quiet, directory=str(folder)) if isinstance(folder, Path) else folder
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def trace(steps: int) -> str:
    """Returns a trace of PyTorch's profiler with so many steps."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 100, "tid": 1}
        | {"ts": number * 1e6, "dur": 5e5}
        for number in range(steps)
    ]
    return json.dumps({"traceEvents": events})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_recording_on_a_web_server_opens_as_the_one_here(
    scenarios: WrittenScenarios, served: Any, tmp_path: Path
) -> None:
    recording = scenarios.written("few-dataloaders").recording_directory
    (tmp_path / "my run+1").symlink_to(recording)
    address = f"{served(tmp_path)}/my%20run+1"
    here, there = stepscope.analysis.open(recording), stepscope.analysis.open(address)
    assert there.source == address
    assert there.name == here.name
    columns = ["node", "rank", "number", "duration_seconds"]
    assert there.steps().select(columns).equals(here.steps().select(columns))
    assert there.samples("gpu", columns=["gpu", "time"]).equals(here.samples("gpu", columns=["gpu", "time"]))


def test_report_and_compare_read_a_trace_on_a_web_server(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.pt.trace.json").write_text(trace(3))
    address = f"{served(tmp_path)}/rank0.pt.trace.json?signature=1"
    assert local_copy(address).name == "rank0.pt.trace.json"
    assert main(["report", address, "--out", "out"]) == 0
    assert main(["compare", address, address, "--out", "both.html"]) == 0
    assert all(Path(name).exists() for name in ("out/report.html", "both.html"))


def test_a_folder_is_copied_with_its_folders_and_again_only_what_changed(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({"/bucket/run/run.json": b"1", "/bucket/run/node/steps-1": b"22", "/bucket/other": b"3"})
    seen: list[tuple[int, int]] = []
    copy = local_copy("memory://bucket/run", lambda done, total: seen.append((done, total)))
    assert files(copy) == {"run.json": b"1", "node/steps-1": b"22"}
    assert (seen[0], seen[-1]) == ((0, 3), (3, 3))
    assert copy.name == "run"
    memory.pipe({"/bucket/run/run.json": b"now", "/bucket/run/node/steps-2": b"4"})
    memory.rm("/bucket/run/node/steps-1")
    assert local_copy("memory://bucket/run") == copy
    assert files(copy)["run.json"] == b"1"
    opened: list[str] = []
    open_there = memory.open

    def noted(_: Any, path: str, *words: Any) -> Any:
        opened.append(path)
        return open_there(path, *words)

    monkeypatch.setattr(type(memory), "open", noted)
    assert local_copy("memory://bucket/run", again=True) == copy
    assert files(copy) == {"run.json": b"now", "node/steps-2": b"4"}
    assert local_copy("memory://bucket/run", again=True) == copy
    assert sorted(opened) == ["/bucket/run/node/steps-2", "/bucket/run/run.json"]


def test_refresh_copies_a_run_again(memory: Any) -> None:
    memory.pipe("/bucket/rank0.pt.trace.json", trace(3).encode())
    run = stepscope.analysis.open("memory://bucket/rank0.pt.trace.json")
    memory.pipe("/bucket/rank0.pt.trace.json", trace(4).encode())
    assert len(run.steps()) == 3
    assert len(run.refresh().steps()) == 4


def test_a_journal_that_becomes_a_part_while_a_run_is_copied_is_copied_as_a_part(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({"/run/run.json": b"1", "/run/node/steps-1.journal": b"22"})
    open_there = memory.open

    def becomes_a_part(_: Any, path: str, *words: Any, **named: Any) -> Any:
        if path.endswith(".journal"):
            memory.pipe("/run/node/steps-1.parquet", b"33")
            memory.rm(path)
        return open_there(path, *words, **named)

    monkeypatch.setattr(type(memory), "open", becomes_a_part)
    assert files(local_copy("memory://run")) == {"run.json": b"1", "node/steps-1.parquet": b"33"}


@pytest.mark.parametrize("name", ["../../escaped", "a/../../escaped", "a//b", "./a", "a\0b", "a" * 256])
def test_a_listed_name_that_leads_out_of_the_folder_is_refused(
    name: str, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [{"name": f"/bucket/run/{name}", "size": 1, "type": "file"}]
    monkeypatch.setattr(type(memory), "ls", lambda *_, **__: listed)
    memory.pipe("/bucket/run/a", b"1")
    with pytest.raises(UserError, match=r"^memory://bucket/run: lists .*, which is no name of a file"):
        local_copy("memory://bucket/run")


def test_a_listed_name_elsewhere_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/bucket/run/a", b"1")
    listed = [{"name": "/bucket/other", "size": 1, "type": "file"}]
    monkeypatch.setattr(type(memory), "ls", lambda *_, **__: listed)
    with pytest.raises(UserError, match=r"lists '/bucket/other', which is not in it"):
        local_copy("memory://bucket/run")


class Hostile(Quiet):
    """Lists a link up, and in each folder another folder without an end."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def answer(self) -> bytes:
        link = "%2e%2e%2fescaped" if self.path.startswith("/up") else "deeper/"
        page = f'<a href="{link}">x</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return page


def test_a_hostile_server_writes_nowhere_and_ends(served: Any) -> None:
    address = served(Hostile)
    with pytest.raises(UserError, match=r"which is no name of a file"):
        local_copy(f"{address}/up/")
    with pytest.raises(UserError, match=r"8 folders in folders; give the folder of one run"):
        local_copy(f"{address}/down/")


def test_what_is_too_large_is_refused_whatever_was_listed(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_BYTES", 1000)
    memory.pipe({"/bucket/run/a": b"0" * 600, "/bucket/run/b": b"0" * 600})
    with pytest.raises(UserError, match=r"is larger than 1.00 kB; give the folder of one run"):
        local_copy("memory://bucket/run")
    listed = [{"name": f"/bucket/run/{name}", "size": 1, "type": "file"} for name in "ab"]
    monkeypatch.setattr(type(memory), "ls", lambda *_, **__: listed)
    with pytest.raises(UserError, match=r"is larger than 1.00 kB"):
        local_copy("memory://bucket/run")
    monkeypatch.setattr(remote, "MOST_FILES", 1)
    with pytest.raises(UserError, match=r"has more than 1 files"):
        local_copy("memory://bucket/run")


@pytest.mark.usefixtures("memory")
def test_what_is_not_there_is_said_in_one_line(served: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^memory://bucket/gone: does not exist, or does not answer"):
        local_copy("memory://bucket/gone")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:\d+/gone: does not exist"):
        local_copy(f"{served(tmp_path)}/gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no file; a web server must list its folders"):
        local_copy(f"{served(tmp_path)}/empty/")


@pytest.mark.usefixtures("memory")
def test_a_full_disk_here_is_no_matter_of_credentials(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/run/trace.json", b"{}")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote, "_download", refuse)
    with pytest.raises(UserError, match=r"run: cannot be copied: No space left on device; set TMPDIR"):
        local_copy("memory://run")


def test_without_a_temporary_folder_the_address_is_not_doubted(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.pipe("/run/trace.json", b"{}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"run: cannot be copied: No such file or directory; set TMPDIR"):
        local_copy("memory://run")


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UserError, match=r"^s3://bucket/run: needs .*: pip install 'stepscope\[remote\]'$"):
        stepscope.analysis.open("s3://bucket/run")


def test_what_is_no_run_is_said_with_its_address(memory: Any) -> None:
    memory.pipe("/bucket/run/model.pt", b"1")
    with pytest.raises(UserError, match=r"^memory://bucket/run is not a recording"):
        stepscope.analysis.open("memory://bucket/run")


@pytest.mark.usefixtures("memory")
def test_no_password_or_signature_is_shown(served: Any, tmp_path: Path) -> None:
    address = served(tmp_path).replace("127.0.0.1", "me:hunter2@127.0.0.1")
    with pytest.raises(UserError) as raised:
        local_copy(f"{address}/gone?X-Amz-Signature=0123456789abcdef")
    assert "hunter2" not in str(raised.value)
    assert "0123456789abcdef" not in str(raised.value)
