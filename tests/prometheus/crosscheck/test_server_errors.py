"""Addresses behind which there is no Prometheus."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from stepscope.commands.cli import main

from tests.support.http_server import answering
from tests.support.ports import held_port


class Page(BaseHTTPRequestHandler):
    """A web server of some other kind; it answers Prometheus's API at /refusing only, with an error."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        refusing = self.path.startswith("/refusing/")
        body = b'{"status": "error", "error": "query timed\\nout"}' if refusing else b"<html>Hello</html>"
        self.send_response(422 if refusing else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Page)) as port:
        yield f"http://127.0.0.1:{port}"


def mistake(capsys: pytest.CaptureFixture[str], url: str) -> str:
    assert main(["crosscheck", "--prometheus", url]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("stepscope: ").rstrip("\n")


def test_nobody_listens_there_and_the_password_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with held_port() as port:
        said = mistake(capsys, f"http://me:secret@127.0.0.1:{port}/")
    assert said == f"http://127.0.0.1:{port}: cannot be reached; is it the address of Prometheus?"


def test_another_web_server(capsys: pytest.CaptureFixture[str], page: str) -> None:
    assert mistake(capsys, page) == f"{page}: does not answer as Prometheus does (HTTP status 200)"


def test_a_prometheus_that_refuses_says_why(capsys: pytest.CaptureFixture[str], page: str) -> None:
    said = mistake(capsys, f"{page}/refusing")
    assert said == f"{page}/refusing: refused a query (query timed out)"


def test_an_address_without_http(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "localhost:9090")
    assert said == "--prometheus localhost:9090: is not a URL; give one such as http://localhost:9090"
