"""Runs read back from a real Prometheus that scraped them."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from trainwatch.cli import main
from trainwatch.demo.scenarios import all_scenarios
from trainwatch.errors import UserError
from trainwatch.evaluation.analysis import Analysis, RuleResult
from trainwatch.evaluation.engine import evaluate
from trainwatch.runs.open import open_source
from trainwatch.runs.prometheus.api import TOKEN, TOKEN_FILE, Address

from tests.support.backfill import Backfill, instance_of, run_of
from tests.support.demo import START
from tests.support.scenarios import WrittenScenarios

needs_servers = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs Debian's prometheus package"
)
SCENARIOS = ("cpu-bottleneck", "few-dataloaders", "memory-leak", "straggler")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Backfill:
    backfill = Backfill(tmp_path_factory.mktemp("prometheus"))
    backfill.add(SCENARIOS)
    return backfill


@pytest.fixture(scope="module")
def url(storage: Backfill) -> Iterator[str]:
    with storage.serving() as server:
        yield server.url


def read(url: str, scenario: str, more: str = "") -> Analysis:
    return evaluate(open_source(f"prometheus+{url}?run={run_of(scenario)}{more}"))


def rule(analysis: Analysis, name: str) -> RuleResult:
    return next(one for one in analysis.rules if one.rule == name)


@needs_servers
@pytest.mark.servers
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_rules_that_fire_on_a_recording_fire_on_what_prometheus_scraped(
    url: str, scenarios: WrittenScenarios, scenario: str
) -> None:
    until = START + 60 * all_scenarios()[scenario].minutes  # the recording ends there
    found, recorded = read(url, scenario, f"&end={until + 1:.0f}"), scenarios.written(scenario).recording
    fired = [{one.rule for one in each.rules if one.status == "found"} for each in (found, recorded)]
    assert fired[0] == fired[1] == all_scenarios()[scenario].fires
    assert abs(found.samples_taken - recorded.samples_taken) <= 1
    for name in ("CPUBottleneck", "IOBottleneck"):
        assert abs(rule(found, name).violations - rule(recorded, name).violations) <= 1
        # Scans end with minutes of the clock, and the two runs began at different seconds.
        assert abs(rule(found, name).triggered - rule(recorded, name).triggered) <= 1
    assert found.phase_seconds["train"] == pytest.approx(recorded.phase_seconds["train"])
    for name, spent in recorded.component_seconds.items():
        assert found.component_seconds[name] == pytest.approx(spent)
    steps = [{(one.rank, one.phase): one for one in each.steps} for each in (found, recorded)]
    assert steps[0].keys() == steps[1].keys()
    for key, one in steps[0].items():
        its = steps[1][key]
        assert one.count == its.count, key
        assert one.mean == pytest.approx(its.mean), key


@needs_servers
@pytest.mark.servers
def test_what_a_scrape_cannot_tell_is_said_and_patience_counts_samples(url: str) -> None:
    analysis = read(url, "cpu-bottleneck")
    assert analysis.interval == 0.5
    assert "every 15 s: one sample in 30" in analysis.unknowns[0]
    assert any("Single steps are not in Prometheus" in one for one in analysis.unknowns)
    result = rule(analysis, "CPUBottleneck")
    assert result.parameters["patience"] == 1000
    assert result.datapoints == analysis.samples_taken
    assert analysis.start == START
    assert analysis.end is not None
    assert analysis.nodes == [instance_of("cpu-bottleneck")]
    assert len(analysis.gpus[instance_of("cpu-bottleneck")]) == 8
    assert analysis.versions["simulated"]


@needs_servers
@pytest.mark.servers
def test_only_the_time_that_is_asked_for_is_read(url: str) -> None:
    some = read(url, "cpu-bottleneck", f"&start={START + 120:.0f}&end={START + 300:.0f}")
    assert 300 <= some.samples_taken <= 360
    assert any("before the first stored scrape" in one for one in some.unknowns)


@needs_servers
@pytest.mark.servers
def test_the_report_of_a_run_in_prometheus_is_written(url: str, tmp_path: Path) -> None:
    source = f"prometheus+{url}?run={quote(run_of('straggler'))}"
    assert main(["report", source, "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/profiler-reports/Straggler.json").read_text())["RuleTriggered"] > 0
    assert "Read from Prometheus" in (tmp_path / "out/report.html").read_text()


@needs_servers
@pytest.mark.servers
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?run=other", f"has no run other; there are {', '.join(map(run_of, SCENARIOS))}"),
        ("", "give a run with ?run=NAME; there are simulated-cpu-bottleneck, "),
        (f"?run={run_of('straggler')}&start=2001-01-01&end=2001-01-02T00:00:00Z", "has no scrape of run"),
    ],
)
def test_a_run_that_is_not_there_is_said_in_one_line(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str, words: str
) -> None:
    assert main(["report", f"prometheus+{url}{query}", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("prometheus+http://127.0.0.1:9?run=a", "http://127.0.0.1:9: cannot be reached"),
        ("prometheus+ftp://host?run=a", "is no address of a run in Prometheus; give one such as"),
        ("prometheus+http://host?name=a", "name is not known; there are run, start and end"),
        ("prometheus+http://host?run=a&start=soon", "start=soon must be a time such as"),
        ("prometheus+http://host?run=a&start=2&end=1", "start is not before end"),
        (
            "http://host:9090",
            "give a directory on this machine, or prometheus+http://localhost:9090?run=NAME",
        ),
    ],
)
def test_an_address_that_is_none_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, words: str
) -> None:
    assert main(["report", source, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@needs_servers
@pytest.mark.servers
def test_two_runs_of_one_name_are_told_apart_by_their_time(tmp_path: Path) -> None:
    text = tmp_path / "scrapes.om"
    labels = '{job="trainwatch",instance="a",run="again"}'
    with text.open("w") as file:
        for start in (START, START + 7200):
            for time in range(int(start), int(start) + 120, 15):
                file.write(f"trainwatch_samples_total{labels} {2 * (time - start)} {time}\n")
                file.write(f"trainwatch_run_start_time_seconds{labels} {start} {time}\n")
        file.write("# EOF\n")
    storage = Backfill(tmp_path)
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*blocks, str(text), str(storage.storage)], check=True, capture_output=True)
    with storage.serving() as server:
        source = f"prometheus+{server.url}?run=again"
        with pytest.raises(
            UserError, match=r"more than one run is called again: they began at .* and .*&start="
        ):
            open_source(source)
        one = evaluate(open_source(f"{source}&end={START + 600:.0f}"))
        other = evaluate(open_source(f"{source}&start={START + 3600:.0f}"))
    assert (one.start, other.start) == (START, START + 7200)


def test_a_token_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "prometheus+https://host/prefix/?run=a"
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    monkeypatch.setenv(TOKEN, "secret")
    assert Address.parse(text).token == "secret"
    monkeypatch.delenv(TOKEN)
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
    assert Address.parse(text).token == "from a file"
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"TOKEN_FILE=.*/none: cannot be read"):
        Address.parse(text)
    monkeypatch.delenv(TOKEN_FILE)
    assert Address.parse(text).token is None
    assert Address.parse(text).url == "https://host/prefix"
    assert "sesame" not in repr(Address.parse("prometheus+http://reader:sesame@host"))


@contextmanager
def guarded(authorization: str) -> Iterator[str]:
    """A proxy's answer to all who do not bring what it wants to see; a run's name to who does."""

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == authorization
            body = b'{"status": "success", "data": []}' if allowed else b"who are you?"
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Guard) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_user_or_a_token_is_shown_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with guarded("Basic cmVhZGVyOm9wZW4gc2VzYW1l") as host:
        with pytest.raises(UserError, match="requires authentication"):
            open_source(f"prometheus+http://{host}")
        with pytest.raises(UserError, match="has no series of Trainwatch"):  # so it was let in
            open_source(f"prometheus+http://reader:open%20sesame@{host}")
    with guarded("Bearer secret") as host:
        monkeypatch.setenv(TOKEN, "secret")
        with pytest.raises(UserError, match="has no series of Trainwatch"):
            open_source(f"prometheus+http://{host}")
