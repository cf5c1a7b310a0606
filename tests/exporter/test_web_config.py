"""TLS and passwords: the exporter with --web.config.file, and the errors of a wrong file."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import bcrypt
import pytest
import requests
from trainwatch.errors import UserError
from trainwatch.web.web_config import read_web_config

from tests.support.exporter_process import ExporterProcess, exporter

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def openssl(*words: str, where: Path) -> None:
    subprocess.run(["openssl", *words], cwd=where, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca.pem), and certificates of it for the server and for a client."""
    folder = tmp_path_factory.mktemp("keys")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=ca",
        *authority,
        where=folder,
    )
    for name in ("server", "client"):
        extension = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
        issuer = ("-CA", "ca.pem", "-CAkey", "ca.key")
        out = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        openssl("req", "-x509", *key, *issuer, *out, *extension, where=folder)
    return folder


def write(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text)
    return path


TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"


def test_passwords_are_asked_for_on_every_page(tmp_path: Path) -> None:
    config = write(tmp_path, f"basic_auth_users:\n  prometheus: {HASH}\n")
    with ExporterProcess("--ledger-dir", tmp_path / "l", "--web.config.file", config) as node:
        for path in ("/metrics", "/", "/-/healthy", "/nonsense"):
            refused = node.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
            assert "trainwatch_" not in refused.text
        for _ in range(2):  # the second time it is remembered
            assert node.get("/metrics", auth=("prometheus", "secret")).status_code == 200
        wrong = [("prometheus", "wrong"), ("nobody", "secret"), ("prometheus", ""), ("prometheus", "s" * 100)]
        for credentials in wrong:
            assert node.get("/metrics", auth=credentials).status_code == 401
        for header in ("Basic", "Basic !!!", "Bearer secret", "Basic cHJvbWV0aGV1cw=="):
            assert node.get("/metrics", headers={"Authorization": header}).status_code == 401


def test_tls_serves_who_trusts_the_authority_and_outlives_who_does_not_speak_it(
    keys: Path, tmp_path: Path
) -> None:
    config = write(keys, TLS + "  min_version: TLS13\n")
    with ExporterProcess("--ledger-dir", tmp_path, "--web.config.file", config) as node:
        assert node.url.startswith("https://127.0.0.1:")
        assert node.get("/-/healthy", verify=str(keys / "ca.pem")).text == "Healthy\n"
        with pytest.raises(requests.exceptions.SSLError):
            node.get("/-/healthy")
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.get(node.url.replace("https", "http"), timeout=60)
        assert node.get("/metrics", verify=str(keys / "ca.pem")).status_code == 200


def test_a_client_without_a_certificate_is_turned_away_where_one_is_required(
    keys: Path, tmp_path: Path
) -> None:
    config = write(keys, TLS + "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n")
    with ExporterProcess("--ledger-dir", tmp_path, "--web.config.file", config) as node:
        trust = str(keys / "ca.pem")
        with pytest.raises(requests.exceptions.ConnectionError):
            node.get("/metrics", verify=trust)
        pair = (str(keys / "client.pem"), str(keys / "client.key"))
        assert node.get("/metrics", verify=trust, cert=pair).status_code == 200


def test_versions_and_client_policies_are_those_of_the_file(keys: Path) -> None:
    plain = read_web_config(write(keys, TLS)).tls
    assert plain is not None
    assert (plain.minimum_version, plain.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)
    strict = read_web_config(
        write(
            keys,
            TLS
            + "  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n  max_version: TLS12\n",
        )
    ).tls
    assert strict is not None
    assert (strict.maximum_version, strict.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_OPTIONAL)


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    config = read_web_config(write(tmp_path, ""))
    assert (config.tls, config.authentication) == (None, None)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("tls_server_config: [", "not YAML"),
        ("- a\n- b\n", "the file: must be a mapping"),
        ("http_server_config:\n  http2: true\n", "http_server_config"),
        ("tls_server_config: yes\n", "tls_server_config: must be a mapping"),
        (TLS + "  cipher_suites: []\n", "tls_server_config.cipher_suites"),
        (TLS + "  min_version: 1.2\n", "tls_server_config.min_version"),
        (TLS + "  min_version: SSL3\n", "tls_server_config.min_version: SSL3"),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", "tls_server_config.client_auth_type"),
        (
            TLS + "  client_auth_type: RequireAndVerifyClientCert\n",
            "tls_server_config.client_ca_file: is missing",
        ),
        (TLS + "  client_ca_file: ca.pem\n", "tls_server_config.client_ca_file: needs"),
        ("tls_server_config:\n  key_file: server.key\n", "tls_server_config.cert_file: is missing"),
        (TLS.replace("server.key", "no.key"), "tls_server_config.key_file"),
        (TLS.replace("server.key", "client.key"), "tls_server_config.cert_file"),
        ("basic_auth_users:\n  prometheus: secret\n", "basic_auth_users.prometheus: not a bcrypt hash"),
    ],
)
def test_a_wrong_file_is_said_in_a_line_that_names_the_file_and_the_key(
    keys: Path, text: str, culprit: str
) -> None:
    path = write(keys, text)
    with pytest.raises(UserError) as raised:
        read_web_config(path)
    assert str(path) in str(raised.value)
    assert culprit in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_exporter_ends_with_status_2_over_a_wrong_file(tmp_path: Path) -> None:
    result = exporter(f"--web.config.file={write(tmp_path, 'basic_auth: {}')}")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "basic_auth: not a key" in result.stderr
