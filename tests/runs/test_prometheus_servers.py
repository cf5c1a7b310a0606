"""Servers with Prometheus's API that limit, let in, or fail: what is read, and what is said."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.common.errors import UserError
from stepscope.evaluation.engine import evaluate
from stepscope.prometheus.crosscheck.server import Grid, Server
from stepscope.runs.open import open_source
from stepscope.runs.prometheus import connection
from stepscope.runs.prometheus.address import ACCESS, ENVIRONMENT, TOKEN, Access
from stepscope.runs.prometheus.api import Api
from stepscope.runs.prometheus.source import PrometheusRun

from tests.support.commands import refusal
from tests.support.keys import make_keys
from tests.support.ports import held_port
from tests.support.small_prometheus import (
    BETWEEN,
    SCRAPES,
    START,
    Answer,
    Asked,
    SmallPrometheus,
    Trouble,
    small_prometheus,
)

END = START + BETWEEN * (SCRAPES - 1)
SAMPLES = 'stepscope_samples_total{run="resnet-1"}'


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (TOKEN, *(ENVIRONMENT + name.upper() for name in ACCESS), "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "requests_ca_bundle"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def at_most(seconds: float) -> Trouble:
    """Mimir's limit of the length of a query."""
    words = "the query time range exceeds the limit (err-mimir-max-query-length)"
    return lambda asked: Answer.error(422, "execution", words) if asked.seconds > seconds else None


def api(server: SmallPrometheus) -> Api:
    return Api(Access.of_flag("--prometheus", server.url))


def test_a_server_that_limits_the_time_of_a_query_is_asked_in_parts() -> None:
    with small_prometheus(SmallPrometheus()) as server:
        (whole,) = api(server).samples(SAMPLES, START, END)
        began = api(server).over_time("min", SAMPLES, START, END)[0].values[0]
        counts = api(server).ranges(f"count(last_over_time({SAMPLES}[60s]))", START, END, 60)
        server.trouble = at_most(310)
        (parts,) = api(server).samples(SAMPLES, START, END)
        assert (parts.times.tolist(), parts.values.tolist()) == (whole.times.tolist(), whole.values.tolist())
        assert len(parts.times) == SCRAPES - 1  # the first one is at START, which is not after START
        limited = api(server)
        assert limited.over_time("min", SAMPLES, START, END)[0].values[0] == began
        assert limited.over_time("max", SAMPLES, START, END)[0].values[0] == 2 * (END - START) + 1
        assert limited.over_time("last", SAMPLES, START, END)[0].values[0] == 2 * (END - START) + 1
        again = limited.ranges(f"count(last_over_time({SAMPLES}[60s]))", START, END, 60)
        assert again[0].times.tolist() == counts[0].times.tolist()


def test_a_query_has_at_most_11_000_points() -> None:
    with small_prometheus(SmallPrometheus()) as server:
        api(server).ranges(f"count(last_over_time({SAMPLES}[1s]))", START, START + 25_000, 1)
        asked = [round(one.seconds) + 1 for one in server.asked]
    assert (len(asked), sum(asked)) == (3, 25_001)
    assert max(asked) <= 11_000


def test_a_run_is_read_from_a_server_that_limits_the_time_of_a_query() -> None:
    with small_prometheus(SmallPrometheus()) as server:
        whole = evaluate(open_source(f"prometheus+{server.url}?run=resnet"))
        server.trouble = at_most(32 * 86_400)
        parts = evaluate(open_source(f"prometheus+{server.url}?run=resnet"))
    assert whole.samples_taken == parts.samples_taken == 2 * (END - START) + 1
    assert not parts.gaps


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(connection, "PAUSES", (0.5, 1.0, 2.0))
    monkeypatch.setattr("time.sleep", waited.append)
    later = [Answer(status, b"busy", {"Retry-After": "3"}), Answer(status), Answer(status)]
    with small_prometheus(SmallPrometheus(lambda _: later.pop(0) if later else None)) as server:
        assert api(server).now() == END + 5
    assert waited == [3.0, 1.0, 2.0]


def test_nobody_waits_for_an_hour_because_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    busy = Answer(429, b"", {"Retry-After": "3600"})
    words = r"is busy \(HTTP status 429\), also after 3 retries; try later"
    with small_prometheus(SmallPrometheus(lambda _: busy)) as server, pytest.raises(UserError, match=words):
        api(server).now()
    assert waited == [30.0, 30.0, 30.0]


def test_a_query_that_takes_too_long_is_halved_and_not_asked_again() -> None:
    def slow(asked: Asked) -> Answer | None:
        return Answer.error(503, "timeout", "query timed out") if asked.seconds > 1000 else None

    with small_prometheus(SmallPrometheus(slow)) as server:
        (series,) = api(server).samples(SAMPLES, START, END)
        assert len(series.times) == SCRAPES - 1
        assert [round(one.seconds) for one in server.asked] == [1785, 892, 893]


def test_what_a_server_never_answers_is_a_gap() -> None:
    def one_part_is_lost(asked: Asked) -> Answer | None:
        time = float(asked.parameters.get("time", 0))
        lost = asked.seconds <= 600 and START + 600 < time <= START + 1200 and "_samples" in str(asked)
        return Answer.error(422, "execution", "store gateway failed") if lost else None

    with small_prometheus(SmallPrometheus(one_part_is_lost)) as server:
        analysis = evaluate(open_source(f"prometheus+{server.url}?run=resnet"))
    assert [gap.what for gap in analysis.gaps] == ["scrapes"]
    assert analysis.gaps[0].reason == "refused a query (store gateway failed)"
    assert analysis.gaps[0].node == "node-a"
    assert analysis.samples_taken == 2 * (END - START) + 1  # the counters after it include that time


def test_a_server_that_answers_for_no_part_of_the_run_is_an_error() -> None:
    def nothing(asked: Asked) -> Answer | None:
        query = asked.parameters.get("query", "")
        is_part = "_samples" in query and "_over_time" not in query
        return Answer.error(422, "execution", "too many chunks") if is_part else None

    words = r"refused a query \(too many chunks\)"
    with small_prometheus(SmallPrometheus(nothing)) as server, pytest.raises(UserError, match=words):
        evaluate(PrometheusRun(f"prometheus+{server.url}?run=resnet"))


def test_time_without_scrapes_is_a_gap_and_a_missed_scrape_is_not() -> None:
    with small_prometheus(SmallPrometheus()) as server:
        server.scrapes = [time for time in server.scrapes if not 30 < (time - START) / BETWEEN < 50]
        del server.scrapes[10]
        analysis = evaluate(open_source(f"prometheus+{server.url}?run=resnet"))
    (gap,) = analysis.gaps
    assert (gap.start, gap.end) == (START + 30 * BETWEEN, START + 50 * BETWEEN)
    assert gap.reason.startswith("Prometheus has none")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"warnings": ["store 10.0.0.7 is unavailable"]}, "It warns: store 10.0.0.7 is unavailable."),
        ({"isPartial": True}, "It warns: some storage nodes did not answer."),
    ],
)
def test_an_answer_that_lacks_a_part_is_said_to(more: dict[str, object], words: str) -> None:
    def in_part(asked: Asked) -> Answer | None:
        is_last = "collector_success" in asked.parameters.get("query", "")
        return Answer.of({"resultType": "vector", "result": []}, **more) if is_last else None

    with small_prometheus(SmallPrometheus(in_part)) as server:
        analysis = evaluate(open_source(f"prometheus+{server.url}?run=resnet"))
    assert [one for one in analysis.unknowns if words in one]


def test_victoriametrics_neither_rounds_times_nor_leaves_out_the_last_30_seconds() -> None:
    """It has vectors only, and searches labels in the last day unless times are given."""

    def victoriametrics(asked: Asked) -> Answer | None:
        assert (asked.parameters["nocache"], asked.parameters["latency_offset"]) == ("1", "1ms")
        if asked.path == "label/run/values" and "start" not in asked.parameters:
            return Answer.of([])
        if asked.parameters.get("query") == "time()":
            return Answer.of({"resultType": "vector", "result": [{"metric": {}, "value": [END + 5, "0"]}]})
        return None

    with small_prometheus(SmallPrometheus(victoriametrics)) as server:
        analysis = evaluate(open_source(f"prometheus+{server.url}/select/0/prometheus?run=resnet"))
        assert all(one.target.startswith("/select/0/prometheus/api/v1/") for one in server.asked)
    assert analysis.samples_taken == 2 * (END - START) + 1


def guarded(name: str, value: str) -> Trouble:
    return lambda asked: None if asked.headers.get(name) == value else Answer(401, b"no org id")


def test_mimir_is_told_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_prometheus(SmallPrometheus(guarded("X-Scope-OrgID", "team-a"))) as server:
        with pytest.raises(UserError, match="or a tenant with &tenant=NAME"):
            open_source(f"prometheus+{server.url}/prometheus?run=resnet")
        assert open_source(f"prometheus+{server.url}/prometheus?run=resnet&tenant=team-a").facts.name
        monkeypatch.setenv("STEPSCOPE_PROMETHEUS_TENANT", "team-a")
        assert open_source(f"prometheus+{server.url}/prometheus?run=resnet").facts.name
        with pytest.raises(UserError, match="requires authentication"):  # the address comes first
            open_source(f"prometheus+{server.url}/prometheus?run=resnet&tenant=team-b")


def test_a_token_or_password_is_shown_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_prometheus(SmallPrometheus(guarded("Authorization", "Bearer sesame"))) as server:
        monkeypatch.setenv(TOKEN, "sesame")
        assert open_source(f"prometheus+{server.url}?run=resnet").facts.name == "resnet"
        monkeypatch.delenv(TOKEN)
    with small_prometheus(SmallPrometheus(guarded("Authorization", "Basic cmVhZGVyOsOkIGI="))) as server:
        assert open_source(f"prometheus+http://reader:%C3%A4%20b@{server.address}?run=resnet").facts.name
    (tmp_path / "secret").write_text("sesame\n")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")  # not for tokens
    (tmp_path / ".netrc").chmod(0o600)
    for header, more in (("Bearer sesame", "token_file"), ("Basic cmVhZGVyOnNlc2FtZQ==", "password_file")):
        with small_prometheus(SmallPrometheus(guarded("Authorization", header))) as server:
            user = "reader@" if more == "password_file" else ""
            source = f"prometheus+http://{user}{server.address}?run=resnet&{more}={tmp_path}/secret"
            assert open_source(source).facts.name == "resnet"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def tls(keys: Path) -> Iterator[str]:
    """A server with a certificate of its own authority, which wants one of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    context.load_verify_locations(keys / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with small_prometheus(SmallPrometheus(), context) as server:
        yield f"prometheus+https://{server.address}?run=resnet"


def test_a_server_with_its_own_authority_asks_for_a_certificate(
    tls: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"&cert_file={keys}/client.pem&key_file={keys}/client.key"
    assert open_source(f"{tls}&ca_file={keys}/ca.pem{own}").facts.name == "resnet"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(keys / "client.pem"))  # the address comes first
    assert open_source(f"{tls}&ca_file={keys}/ca.pem{own}").facts.name == "resnet"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "TLS fails (self-signed certificate in certificate chain); name the server's CA with &ca_file="),
        ("&ca_file=/none", "ca_file=/none: cannot be read (No such file or directory); name another file"),
        ("&ca_file={keys}/ca.key", "TLS fails ("),
        ("&key_file={keys}/client.key", "key_file needs the certificate too; name it with &cert_file=FILE"),
        ("&ca_file={keys}/ca.pem&cert_file={keys}/client.pem", "TLS fails ("),
    ],
)
def test_tls_that_fails_is_said_in_one_line(
    tls: str, keys: Path, tmp_path: Path, more: str, words: str
) -> None:
    assert words in refusal("report", f"{tls}{more.format(keys=keys)}", "--out", tmp_path / "out")


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with small_prometheus(SmallPrometheus()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert open_source("prometheus+http://prometheus.invalid:9090?run=resnet").facts.name == "resnet"
        assert proxy.asked[0].target == "http://prometheus.invalid:9090/api/v1/query"
    with held_port() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        line = refusal("report", "prometheus+http://prometheus.invalid?run=a", "--out", tmp_path / "out")
    assert "the proxy cannot be reached; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY" in line
    with small_prometheus(SmallPrometheus()) as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert open_source(f"prometheus+{server.url}?run=resnet").facts.name == "resnet"


def test_the_crosscheck_asks_the_ruler_for_rules_and_the_server_for_series() -> None:
    def vmalert(asked: Asked) -> Answer:
        if asked.path == "rules":
            return Answer.of({"groups": [{"name": "stepscope-Straggler", "interval": 240, "rules": []}]})
        return Answer(404, b"unsupported path")

    with (
        small_prometheus(SmallPrometheus()) as server,
        small_prometheus(SmallPrometheus(vmalert)) as ruler,
        Server(server.url, ruler.url) as checked,
    ):
        assert checked.pace()["stepscope-Straggler"].interval == 240_000
        assert checked.started() is None  # vmalert does not say
        assert checked.runs(round(1000 * START), round(1000 * END)) == ["resnet-1"]


def test_a_query_frontend_that_rounds_times_is_named_by_the_crosscheck() -> None:
    def thanos(asked: Asked) -> Answer | None:
        rounded = [{"metric": {}, "values": [[START + 7, "1"]]}]
        return Answer.of({"result": rounded}) if asked.path == "query_range" else None

    words = "--query-range.align-range-with-step=false"
    with (
        small_prometheus(SmallPrometheus(thanos)) as server,
        Server(server.url) as checked,
        pytest.raises(UserError, match=words),
    ):
        checked.instants("up", Grid(round(1000 * START), 15_000, 3))


FAILURES = {
    "locked": (Answer(403, b"<html>"), "requires authentication"),
    "nowhere": (
        Answer(404, b"404 page not found"),
        "(HTTP status 404); is a path missing, such as /prometheus?",
    ),
    "moved": (Answer(302, b"", {"Location": "/api/v1/again"}), "does not answer as Prometheus does"),
    "wrong": (Answer.error(400, "bad_data", "parse\nerror"), "refused a query (parse error)"),
    "limited": (Answer.error(422, "execution", "x" * 999), f"refused a query ({'x' * 300} ...)"),
    "broken": (Answer(500, b"oops"), "does not answer as Prometheus does (HTTP status 500)"),
    "busy": (Answer(503, b""), "is busy (HTTP status 503), also after 3 retries; try later"),
    "slow": (Answer(504, b"<html>"), "is busy (HTTP status 504), also after 3 retries; try later"),
    "no JSON": (Answer(200, b"{"), "does not answer as Prometheus does (HTTP status 200)"),
    "a list": (Answer(200, b"[]"), "does not answer as Prometheus does (HTTP status 200)"),
    "deep": (Answer(200, b"[" * 100_000), "does not answer as Prometheus does (HTTP status 200)"),
    "other data": (Answer.of([1]), "not answers of Prometheus"),
    "other points": (Answer.of({"result": [{"metric": {}, "value": ["a"]}]}), "not answers of Prometheus"),
    "cut off": (Answer(200, b"{", {"Content-Length": "99"}), "stopped answering"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("command", ["report", "compare", "crosscheck"])
def test_a_server_that_fails_is_one_line(command: str, failure: str, tmp_path: Path) -> None:
    answer, words = FAILURES[failure]
    with small_prometheus(SmallPrometheus(lambda _: answer)) as server:
        source = f"prometheus+http://reader:sesame@{server.address}?run=resnet"
        out = ("--out", tmp_path / "out.html")
        words_of = {
            "report": (source, *out),
            "compare": (source, source, *out),
            "crosscheck": ("--prometheus", server.url.replace("//", "//a:sesame@")),
        }
        line = refusal(command, *words_of[command])
    assert words in line
    assert server.url in line
    assert "sesame" not in line


@pytest.mark.parametrize(
    "source",
    [
        "http://reader:sesame@host?run=a",
        "prometheus+ftp://reader:sesame@host?run=a",
        "prometheus+http://reader:sesame@host:port?run=a",
        "prometheus+http://reader:sesame@[host?run=a",
        "prometheus+http://host?run=a&token=sesame",
        "prometheus+http://host?run=a&password=sesame",
        "prometheus+http://reader:sesame@host?run=a&start=soon",
    ],
)
def test_no_message_shows_a_secret_of_an_address(source: str, tmp_path: Path) -> None:
    assert "sesame" not in refusal("report", source, "--out", tmp_path / "out")


def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("two\nwords\n")
    with pytest.raises(UserError, match="token_file: holds more than one word"):
        open_source(f"prometheus+http://host?run=a&token_file={tmp_path}/token")
