"""Runs read back from a real Prometheus that scraped them."""

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import requests
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.demo.scenarios import all_scenarios
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.prometheus.crosscheck.server import Server
from stepscope.report.document import render_json
from stepscope.runs.open import open_source
from stepscope.runs.prometheus import api
from stepscope.runs.prometheus.address import ENVIRONMENT, TOKEN, Address
from stepscope.runs.prometheus.connection import Connection
from stepscope.runs.prometheus.series import OF_RUN, LastValues

from tests.support.backfill import Backfill, every_scenario, instance_of, run_of, seconds_of
from tests.support.commands import refusal
from tests.support.demo import START
from tests.support.prometheus import Prometheus, needs_prometheus
from tests.support.scenarios import WrittenScenarios
from tests.support.smallest import smallest

TOKEN_FILE = f"{ENVIRONMENT}TOKEN_FILE"
ALL = ", ".join(map(run_of, sorted(all_scenarios())))
SCENARIOS = ("cpu-bottleneck", "few-dataloaders", "memory-leak", "straggler")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with every_scenario(tmp_path_factory.mktemp("prometheus")).serving() as server:
        yield server.url


def read(url: str, scenario: str, more: str = "") -> Analysis:
    return evaluate(open_source(f"prometheus+{url}?run={run_of(scenario)}{more}"))


def rule(analysis: Analysis, name: str) -> RuleResult:
    return next(one for one in analysis.rules if one.rule == name)


def test_numbers_of_the_script_are_read_by_rank() -> None:
    def series(metric: str, value: float, **labels: str) -> api.Series:
        return api.Series(f"stepscope_{metric}", {"run": "r", **labels}, np.array([5.0]), np.array([value]))

    found = [
        series("phase_seconds_total", 9, rank="0", phase="train"),
        series("phase_seconds_total", 9, rank="1", phase="train"),
        series("run_gauge", 0.5, rank="0", name="loss"),
        series("run_counted_total", 100, rank="0", name="tokens"),
        series("run_counted_total", 50, rank="1", name="tokens"),
    ]
    first, second = LastValues("n", found, 5.0).ranks()
    assert (first.gauges, first.counts) == ({"loss": 0.5}, {"tokens": 100})
    assert (second.gauges, second.counts) == ({}, {"tokens": 50})
    assert all(re.fullmatch(OF_RUN, one.name) for one in found)


ODD_VALUES = ("NaN", "1e999", "-1", "9" * 400, "null", "true", '""', '"x"', "[]", "{}", '"+Inf"', '"-1e300"')
VALUE = re.compile(r'(?<=[:\[,])\s*("[^"]*"|[-+\w.]+)')


@needs_prometheus
@pytest.mark.parametrize("every", smallest([12, 1], {0}))
def test_odd_answers_give_a_report_or_one_line(url: str, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    random, real = Random(1), Connection._data
    asked = 0

    def odd(connection: Connection, response: requests.Response) -> Any:
        nonlocal asked
        asked += 1
        text = json.dumps(real(connection, response))
        if asked == wrong:
            place = random.choice(list(VALUE.finditer(text)))
            text = text[: place.start()] + random.choice(ODD_VALUES) + text[place.end() :]
        return json.loads(text)

    wrong = 0
    monkeypatch.setattr(Connection, "_data", odd)
    read(url, "few-dataloaders")
    answers, refused = asked, []
    for number in range(0, answers, every):
        asked, wrong = 0, number + 1
        try:
            assert render_json(read(url, "few-dataloaders"))
        except UserError as error:
            refused.append(str(error))
    assert 0 < len(refused) < answers
    assert not [line for line in refused if "\n" in line]


@needs_prometheus
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_rules_that_fire_on_a_recording_fire_on_what_prometheus_scraped(
    url: str, scenarios: WrittenScenarios, scenario: str
) -> None:
    until = START + seconds_of(scenario)  # the recording ends there
    found, recorded = read(url, scenario, f"&end={until + 1:.0f}"), scenarios.written(scenario).recording
    fired = [{one.rule for one in each.rules if one.status == "found"} for each in (found, recorded)]
    assert fired[0] == fired[1] == all_scenarios()[scenario].fires
    assert abs(found.samples_taken - recorded.samples_taken) <= 1
    for name in ("CPUBottleneck", "IOBottleneck"):
        assert abs(rule(found, name).violations - rule(recorded, name).violations) <= 1
        assert rule(found, name).triggered == rule(recorded, name).triggered
    for name in ("CPUThrottled", "NoisyNeighbour"):
        assert rule(found, name).status == rule(recorded, name).status
    assert found.phase_seconds["train"] == pytest.approx(recorded.phase_seconds["train"])
    for name, spent in recorded.component_seconds.items():
        assert found.component_seconds[name] == pytest.approx(spent)
    steps = [{(one.rank, one.phase): one for one in each.steps} for each in (found, recorded)]
    assert steps[0].keys() == steps[1].keys()
    for key, one in steps[0].items():
        its = steps[1][key]
        assert one.count == its.count, key
        assert one.mean == pytest.approx(its.mean), key


@needs_prometheus
def test_what_a_scrape_cannot_tell_is_said_and_patience_counts_samples(url: str) -> None:
    analysis = read(url, "cpu-bottleneck")
    assert analysis.interval == 0.5
    assert any("every 15 s: one sample in 30" in one for one in analysis.unknowns)
    assert any("Single steps are not in Prometheus" in one for one in analysis.unknowns)
    result = rule(analysis, "CPUBottleneck")
    assert result.parameters["patience"] == 1000
    assert result.datapoints == analysis.samples_taken
    assert analysis.start == START
    assert analysis.end is not None
    assert analysis.nodes == [instance_of("cpu-bottleneck")]
    assert len(analysis.gpus[instance_of("cpu-bottleneck")]) == 8
    assert analysis.versions["simulated"]


@needs_prometheus
def test_only_the_time_that_is_asked_for_is_read(url: str) -> None:
    some = read(url, "cpu-bottleneck", f"&start={START + 120:.0f}&end={START + 300:.0f}")
    assert 300 <= some.samples_taken <= 360
    assert any("before the first stored scrape" in one for one in some.unknowns)


@needs_prometheus
def test_the_report_of_a_run_in_prometheus_is_written(url: str, tmp_path: Path) -> None:
    source = f"prometheus+{url}?run={quote(run_of('straggler'))}"
    assert main(["report", source, "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/profiler-reports/Straggler.json").read_text())["RuleTriggered"] > 0
    assert "Read from Prometheus" in (tmp_path / "out/report.html").read_text()


@needs_prometheus
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("prometheus+{url}?run=other", f"has no run other; there are {ALL}"),
        ("prometheus+{url}", "give a run with ?run=NAME; there are simulated-cpu-bottleneck, "),
        (
            f"prometheus+{{url}}?run={run_of('straggler')}&start=2001-01-01&end=2001-01-02T00:00:00Z",
            "has no scrape of run",
        ),
        ("prometheus+http://127.0.0.1:9?run=a", "http://127.0.0.1:9: cannot be reached"),
        ("prometheus+ftp://host?run=a", "is no address of a run in Prometheus; give one such as"),
        ("prometheus+http://host?name=a", "name is not known; there are run, cluster, start, end, tenant, "),
        ("prometheus+http://host?run=a&start=soon", "start=soon must be a time such as"),
        ("prometheus+http://127.0.0.1:9?run=a&start=nan", "start=nan must be a time such as"),
        ("prometheus+http://127.0.0.1:9?run=a&end=1e300", "end=1e300 must be a time such as"),
        ("prometheus+http://host?run=a&start=2&end=1", "start is not before end"),
        (
            "http://host:9090",
            "does not exist, or does not answer; check the address, or give prometheus+http://localhost:9090?run=NAME",
        ),
    ],
)
def test_a_run_or_an_address_that_is_none_is_said_in_one_line(
    url: str, tmp_path: Path, source: str, words: str
) -> None:
    assert words in refusal("report", source.format(url=url), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def serving_runs(folder: Path, *runs: tuple[str, str, float]) -> AbstractContextManager[Prometheus]:
    """A Prometheus with two minutes of each run: its name with the launch, its name, and when it began."""
    text = folder / "runs.om"
    with text.open("w") as file:
        for run, name, start in runs:
            labels = f'job="stepscope",instance="a",run="{run}"'
            for time in range(int(start), int(start) + 120, 15):
                file.write(f"stepscope_samples_total{{{labels}}} {2 * (time - start)} {time}\n")
                file.write(f"stepscope_run_start_time_seconds{{{labels}}} {start} {time}\n")
                file.write(f'stepscope_run_info{{{labels},name="{name}"}} 1 {time}\n')
    storage = Backfill(folder)
    storage.store([text])
    return storage.serving()


@needs_prometheus
def test_two_runs_of_one_name_are_told_apart_by_their_time(tmp_path: Path) -> None:
    with serving_runs(tmp_path, ("again", "again", START), ("again", "again", START + 7200)) as server:
        source = f"prometheus+{server.url}?run=again"
        with pytest.raises(
            UserError, match=r"more than one run is called again: they began at .* and .*&start="
        ):
            open_source(source)
        one = evaluate(open_source(f"{source}&end={START + 600:.0f}"))
        other = evaluate(open_source(f"{source}&start={START + 3600:.0f}"))
    assert (one.start, other.start) == (START, START + 7200)


@needs_prometheus
def test_a_name_means_its_newest_launch_and_lists_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = int(START)
    runs = (
        ("train.py-00000001", "train.py", began + 7200),
        ("train.py-00000002", "train.py", began),
        ("slurm-7-train.py-00000003", "train.py", began + 3600),
        ("trainxpy-4", "trainxpy", began + 9000),
    )
    with serving_runs(tmp_path, *runs) as server:
        source = f"prometheus+{server.url}?run=train.py"
        newest = open_source(source).facts
        assert (newest.run, newest.name, newest.start) == ("train.py-00000001", "train.py", began + 7200)
        assert capsys.readouterr().err == (
            "stepscope: train.py is train.py-00000001, its newest launch; "
            "earlier: slurm-7-train.py-00000003, train.py-00000002\n"
        )
        assert open_source(f"{source}&end={began + 600}").facts.run == "train.py-00000002"
        assert open_source(source.replace("train.py", "train.py-00000002")).facts.start == began
        assert capsys.readouterr().err == ""
        with pytest.raises(
            UserError, match=r"has no run train; there are slurm-7-train.py-00000003, train.py-"
        ):
            open_source(source.replace("train.py", "train"))
        with Server(server.url) as checked:
            started = checked.launches("train.py", 1000 * began, 1000 * (began + 5000))
            assert started == {"train.py-00000002": began, "slurm-7-train.py-00000003": began + 3600}


def test_a_token_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "prometheus+https://host/prefix/?run=a"
    monkeypatch.delenv(TOKEN_FILE, raising=False)
    monkeypatch.setenv(TOKEN, "secret")
    assert Address.parse(text).access.token == "secret"
    monkeypatch.delenv(TOKEN)
    (tmp_path / "token").write_text("of-a-file\n")
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
    assert Address.parse(text).access.token == "of-a-file"
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"token_file=.*/none: cannot be read"):
        Address.parse(text)
    monkeypatch.delenv(TOKEN_FILE)
    assert Address.parse(text).access.token is None
    assert Address.parse(text).access.url == "https://host/prefix"
    assert "sesame" not in repr(Address.parse("prometheus+http://reader:sesame@host"))
