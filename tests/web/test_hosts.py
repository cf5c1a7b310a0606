"""The Host header: this server's names are served, and no page elsewhere reads it by rebinding its name."""

import socket
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from stepscope.web.hosts import Hosts, external_url
from stepscope.web.messages import Request, RequestError

from tests.support.exporter_process import ExporterProcess

HERE = socket.gethostname().lower()


def refusal(host: str, path: str = "/", *, listen: str = "", external: str = "http://proxy.example/x") -> str:
    """The line that a request for this host is refused with; nothing if it is not."""
    try:
        Hosts([listen], [external]).check(Request("GET", path, {"host": host}))
    except RequestError as error:
        return f"{error.status.value} {error}"
    return ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost.:9870",
        "127.0.0.1:9870",
        "[::1]:9870",
        "[2001:DB8::7]",
        "10.1.2.3:31000",  # a forwarded port, a Kubernetes service
        HERE,
        f"{HERE.upper()}:80",
        "gpu-1.corp.example",
        "proxy.example",
        "proxy.example:8443",
    ],
)
def test_an_address_and_a_name_of_this_server_are_served(host: str) -> None:
    assert refusal(host, listen="gpu-1.corp.example") == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9870",
        "localhost.evil.example",
        "evil.localhost",
        f"{HERE}.evil.example",
        "127.0.0.1.evil.example",
        "127.1",  # a browser would have sent 127.0.0.1
        "2130706433",
        "proxy.example.evil.example",
    ],
)
def test_any_other_name_is_refused_with_the_flag_to_set(host: str) -> None:
    line = refusal(host)
    assert line.startswith(f"421 {host.partition(':')[0]} is not a name of this server")
    assert f"--web.external-url=http://{host}/" in line


@pytest.mark.parametrize(
    "host", ["", "a b", "a, b", "localhost@evil", "::1", "[::1", "localhost:http", "\xe4", "."]
)
def test_what_is_no_host_name_is_refused(host: str) -> None:
    assert refusal(host) == "400 Host: not a host name"


def test_metrics_are_served_for_any_name_and_for_none() -> None:
    assert refusal("stepscope.monitoring.svc", "/metrics") == ""
    Hosts().check(Request("GET", "/report", {}))  # HTTP/1.0: not a browser


@pytest.mark.parametrize("url", ["gpu-1:9870", "ftp://gpu-1/", "http://", "http://[::1"])
def test_a_wrong_external_url_is_named(url: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a URL such as"):
        external_url(url)


def test_a_page_that_rebinds_its_name_gets_nothing_but_metrics(tmp_path: Path) -> None:
    flags = (
        "--ledger-dir",
        tmp_path / "l",
        "--report-dir",
        tmp_path,
        "--web.external-url=https://proxy.example/",
    )
    (tmp_path / "report.html").write_text("secret")
    with ExporterProcess(*flags) as node:
        for path in ("/", "/report", "/report/content", "/-/healthy", "/-/ready", "/nonsense"):
            refused = node.get(path, headers={"Host": "evil.example"})
            assert refused.status_code == 421
            assert refused.text.count("\n") == 1
            assert "secret" not in refused.text
            assert node.get(path, headers={"Host": "proxy.example"}).status_code in (200, 404)
        assert node.get("/metrics", headers={"Host": "evil.example"}).status_code == 200
        assert node.scrape().value("stepscope_web_refused_total", reason="host") == 6
    assert sum("--web.external-url" in line for line in node.log) == 1  # not once per request
