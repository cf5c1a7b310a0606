"""TLS and passwords: the exporter with --web.config.file, and the errors of a wrong file."""

import ssl
import sys
from http.client import HTTPSConnection
from pathlib import Path

import bcrypt
import pytest
import requests
from stepscope.common.errors import UserError
from stepscope.web.web_config import WebConfig

from tests.support.exporter_process import ExporterProcess
from tests.support.keys import make_keys
from tests.support.processes import ran
from tests.support.training_script import EXPORTER
from tests.support.waiting import SECONDS

HASH = bcrypt.hashpw(b"secret", b"$2b$04$" + 22 * b".").decode()  # the same in every process


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca.pem), and certificates of it for the server and for a client."""
    return make_keys(tmp_path_factory.mktemp("keys"))


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
            assert "stepscope_" not in refused.text
        for _ in range(2):  # the second time it is remembered
            assert node.get("/metrics", auth=("prometheus", "secret")).status_code == 200
        wrong = [("prometheus", "wrong"), ("nobody", "secret"), ("prometheus", ""), ("prometheus", "s" * 100)]
        for credentials in wrong:
            assert node.get("/metrics", auth=credentials).status_code == 401
        for header in ("Basic", "Basic !!!", "Bearer secret", "Basic cHJvbWV0aGV1cw=="):
            assert node.get("/metrics", headers={"Authorization": header}).status_code == 401


def test_a_file_is_read_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_bytes(f"# für alle\nbasic_auth_users:\n  jürgen: {HASH}\n".encode())
    code = (
        "from pathlib import Path; from stepscope.web.web_config import WebConfig; "
        f"print(ascii(list(WebConfig(Path({str(tmp_path / 'web.yml')!r})).authentication.users)))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": EXPORTER}
    command = [sys.executable, "-c", code]
    done = ran(command, env=ascii_only, check=True)
    assert done.stdout == "['j\\xfcrgen']\n"


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
            requests.get(node.url.replace("https", "http"), timeout=SECONDS)
        assert node.get("/metrics", verify=str(keys / "ca.pem")).status_code == 200


def test_versions_and_client_policies_are_those_of_the_file(keys: Path) -> None:
    plain = WebConfig(write(keys, TLS)).tls
    assert plain is not None
    assert (plain.context.minimum_version, plain.context.verify_mode) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.CERT_NONE,
    )
    strict = WebConfig(
        write(
            keys,
            TLS
            + "  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n  max_version: TLS12\n",
        )
    ).tls
    assert strict is not None
    assert (strict.context.maximum_version, strict.context.verify_mode) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.CERT_OPTIONAL,
    )


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    config = WebConfig(write(tmp_path, ""))
    assert (config.tls, config.authentication.users) == (None, {})


def test_without_bcrypt_passwords_are_refused_with_the_fix_and_tls_is_served(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)  # as if it were not installed
    assert WebConfig(write(keys, TLS)).tls is not None
    path = write(keys, f"{TLS}basic_auth_users:\n  prometheus: {HASH}\n")
    with pytest.raises(UserError) as raised:
        WebConfig(path)
    assert str(raised.value) == (
        f"{path}: basic_auth_users needs the package bcrypt; pip install 'stepscope[passwords]'"
    )


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("tls_server_config: [", "not YAML"),
        ("basic_auth_users:\n  2001-99-99: x\n", "not YAML: month must be in 1..12"),
        ("[" * 5000, "not YAML"),
        ("- a\n- b\n", "the file: must be a mapping"),
        ("http_server_config:\n  http2: true\n", "http_server_config: not supported"),
        ("tls_server_config: yes\n", "tls_server_config: must be a mapping"),
        (TLS + "  cipher_suites: []\n", "tls_server_config.cipher_suites"),
        (TLS + "  min_version: 1.2\n", "tls_server_config.min_version"),
        (TLS + "  min_version: SSL3\n", "tls_server_config.min_version: SSL3"),
        (
            TLS + "  client_auth_type: RequireAnyClientCert\n",
            "client_auth_type: RequireAnyClientCert: not supp",
        ),
        (TLS + "  client_auth_type: Please\n", "tls_server_config.client_auth_type: Please must be one of"),
        (
            TLS + "  client_allowed_sans: [client]\n",
            "client_allowed_sans: needs client_auth_type: RequireAnd",
        ),
        (TLS + "  client_allowed_sans: client\n", "client_allowed_sans: must be a list of names"),
        (TLS + "  cert: text\n", "tls_server_config.cert: not supported: put the certificate into a file"),
        ("rate_limit: {interval: 1s, burst: 9}\n", "rate_limit: not supported: remove it"),
        (
            "basic_auth_users:\n  prometheus: " + HASH.replace("$04$", "$17$"),
            "not a bcrypt hash of cost 4 to 16",
        ),
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
        WebConfig(path)
    assert str(path) in str(raised.value)
    assert culprit in str(raised.value)
    assert "\n" not in str(raised.value)


REQUIRED = TLS + "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n"


@pytest.mark.parametrize(("names", "admitted"), [("[127.0.0.1]", True), ("['::1', prometheus]", False)])
def test_a_client_needs_a_certificate_with_one_of_the_allowed_names(
    keys: Path, tmp_path: Path, names: str, admitted: bool
) -> None:
    config = write(keys, REQUIRED + f"  client_allowed_sans: {names}\n")
    trust, pair = str(keys / "ca.pem"), (str(keys / "client.pem"), str(keys / "client.key"))
    with ExporterProcess("--ledger-dir", tmp_path, "--web.config.file", config) as node:
        if admitted:
            with pytest.raises(requests.exceptions.ConnectionError):
                node.get("/metrics", verify=trust)
            assert node.get("/metrics", verify=trust, cert=pair).status_code == 200
        else:
            with pytest.raises(requests.exceptions.ConnectionError):
                node.get("/metrics", verify=trust, cert=pair)
    assert any("client_allowed_sans" in line for line in node.log) != admitted


@pytest.mark.parametrize("name", ["0:0:0:0:0:0:0:1", "::1", "0::1"])
def test_an_ip_address_is_an_allowed_name_in_any_notation(keys: Path, name: str) -> None:
    tls = WebConfig(write(keys, REQUIRED + f"  client_allowed_sans: ['{name}']\n")).tls
    assert tls is not None
    assert tls.admits({"subjectAltName": (("DNS", "a"), ("IP Address", "0:0:0:0:0:0:0:1"))})
    assert not tls.admits({"subjectAltName": (("IP Address", "0:0:0:0:0:0:0:2"),)})
    assert not tls.admits({})
    assert not tls.admits(None)


def test_new_certificates_and_passwords_take_effect_without_a_restart(tmp_path: Path) -> None:
    folder = make_keys(tmp_path)
    users = f"basic_auth_users:\n  prometheus: {HASH}\n"
    config = write(folder, TLS + users)
    with ExporterProcess("--ledger-dir", tmp_path / "l", "--web.config.file", config) as node:
        old, new = tmp_path / "old.pem", tmp_path / "ca.pem"
        old.write_bytes(new.read_bytes())
        with requests.Session() as session:  # keeps its connection, as Prometheus does

            def status(trusted: Path, password: str) -> int:
                try:
                    return session.get(
                        f"{node.url}/metrics",
                        auth=("prometheus", password),
                        verify=str(trusted),
                        timeout=SECONDS,
                    ).status_code
                except requests.exceptions.SSLError:
                    return 0

            assert status(old, "secret") == 200
            assert status(old, "changed") == 401
            make_keys(tmp_path)
            write(folder, TLS + users.replace(HASH, bcrypt.hashpw(b"changed", bcrypt.gensalt(4)).decode()))
            node.wait_for(lambda: status(new, "changed") == 200)
            assert status(new, "secret") == 401
            assert requests.get(f"{node.url}/", verify=str(new), timeout=SECONDS).status_code == 401
    assert any("reread" in line for line in node.log)


def test_a_connection_from_before_new_certificates_is_not_served(tmp_path: Path) -> None:
    folder = make_keys(tmp_path)
    config = write(folder, REQUIRED)
    with ExporterProcess("--ledger-dir", tmp_path / "l", "--web.config.file", config) as node:
        trust = ssl.create_default_context(cafile=folder / "ca.pem")
        trust.load_cert_chain(folder / "client.pem", folder / "client.key")
        kept = HTTPSConnection("127.0.0.1", int(node.url.rpartition(":")[2]), timeout=SECONDS, context=trust)
        kept.request("GET", "/-/healthy")
        assert kept.getresponse().read() == b"Healthy\n"
        make_keys(folder)  # the client's authority is no longer trusted
        node.wait_for(lambda: any("reread" in line for line in node.log))
        kept.request("GET", "/-/healthy")
        with pytest.raises(ConnectionError):
            kept.getresponse()
        kept.close()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("basic_auth_users: [", "not YAML"),
        ("", "no longer has TLS; to serve without TLS, restart"),
        (TLS, "no longer has passwords"),
        (TLS + "  min_version: SSL3\n", "min_version: SSL3"),
        (TLS.replace("server.key", "client.key"), "cert_file"),
    ],
)
def test_a_wrong_file_changes_nothing_and_is_said_once(
    keys: Path, caplog: pytest.LogCaptureFixture, wrong: str, reason: str
) -> None:
    right = TLS + f"basic_auth_users:\n  prometheus: {HASH}\n"
    config = WebConfig(write(keys, right))
    tls, users = config.tls, config.authentication.users
    write(keys, wrong)
    for _ in range(3):
        config.reread()
    assert (config.tls, config.authentication.users) == (tls, users)
    assert not config.last_reload_successful
    assert [reason in line.message for line in caplog.records] == [True]
    (keys / "web.yml").unlink()
    config.reread()
    assert (config.tls, config.authentication.users) == (tls, users)
    assert "no such file" in caplog.records[-1].message
    write(keys, right)
    config.reread()
    assert config.last_reload_successful
    assert config.tls is not tls


def test_the_exporter_publishes_that_its_file_cannot_be_used(tmp_path: Path) -> None:
    metric = "stepscope_web_config_last_reload_successful"
    config = write(tmp_path, "")
    with ExporterProcess("--ledger-dir", tmp_path / "l", "--web.config.file", config) as node:
        assert node.scrape().value(metric) == 1
        write(tmp_path, "basic_auth: {}")
        node.wait_for(lambda: node.scrape().value(metric) == 0)
