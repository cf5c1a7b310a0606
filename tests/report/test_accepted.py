"""Accepted findings: on every surface, apart, with reason and end. They decide nothing until they end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from trainwatch.accepted import Acceptance, write_accepted
from trainwatch.cli import main
from trainwatch.evaluation.acceptance import marked
from trainwatch.evaluation.analysis import Analysis, Band
from trainwatch.evaluation.problems import in_order, problems
from trainwatch.report.document import document
from trainwatch.report.html import render_html
from trainwatch.report.verdict import status_of_run, verdict
from trainwatch.report.write import write_report
from trainwatch.runs.recording.files import RUNS
from trainwatch.status import Status

from tests.report.test_html import Page
from tests.report.test_surfaces import plain, surfaces
from tests.support import analysis as made
from tests.support.scenarios import WrittenScenarios

ENTRY = Acceptance("CPUBottleneck", "resnet", "new loader in January", "2026-12-31", "alice")
BEFORE = ENTRY.end - 1


def run_of(**rules: Status) -> Analysis:
    """A run with the name resnet and these rules."""
    results = [made.rule(name, status, finding=f"{name} says so.") for name, status in rules.items()]
    return made.slow_loader(name="resnet", rules=in_order(results))


def accepted(now: float = BEFORE, **rules: Status) -> Analysis:
    return marked(run_of(**rules), [ENTRY], now)


def test_a_run_with_only_accepted_findings_is_healthy_and_says_so_everywhere() -> None:
    analysis = accepted(CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY)
    said = verdict(analysis)
    assert said.sentence == "Healthy: 2 rules judged, nothing found but 1 accepted finding."
    assert "CPUBottleneck is accepted and not counted." in said.details
    (line,) = said.accepted
    assert line == (
        "CPUBottleneck, accepted until 2026-12-31: new loader in January (by alice). CPUBottleneck says so."
    )
    for surface, text in surfaces(analysis).items():
        for sentence in said.sentences:
            assert plain(sentence) in text, surface
        if surface != "json":
            assert line in text, surface
    assert document(analysis)["verdict"]["accepted"] == [line]


def test_other_findings_decide_the_verdict() -> None:
    both = accepted(CPUBottleneck=Status.FOUND, IOBottleneck=Status.FOUND)
    assert status_of_run(both) is Status.FOUND
    assert [problem.rule.rule for problem in problems(both.rules)] == ["IOBottleneck"]
    assert [rule.rule for rule in both.rules] == ["IOBottleneck", "CPUBottleneck"]
    found = document(both)["verdict"]
    assert [finding["rule"] for finding in found["findings"]] == ["IOBottleneck"]
    assert found["rules"]["found"] == 2, "both were measured"


def test_an_ended_acceptance_hides_nothing_and_is_reported() -> None:
    analysis = accepted(ENTRY.end, CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY)
    said = verdict(analysis)
    assert said.status is Status.FOUND
    assert said.accepted == []
    ended = "CPUBottleneck counts again: it was accepted until 2026-12-31 (new loader in January)."
    for surface, text in surfaces(analysis).items():
        assert ended in text, surface
    (rule, _) = document(analysis)["rules"]
    assert (rule["accepted"], rule["acceptance_ended"]["until"]) == (None, "2026-12-31")


def test_acceptances_of_other_runs_and_rules_that_did_not_fire_change_nothing_in_the_verdict() -> None:
    found = run_of(CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY)
    assert marked(found, [replace(ENTRY, run="bert")], BEFORE) == found
    healthy = run_of(CPUBottleneck=Status.HEALTHY, DataStarved=Status.HEALTHY)
    assert verdict(marked(healthy, [ENTRY], BEFORE)) == verdict(healthy)


def test_too_little_data_stays_so_next_to_an_accepted_finding() -> None:
    analysis = accepted(CPUBottleneck=Status.FOUND, DataStarved=Status.NOT_ENOUGH_DATA)
    assert status_of_run(analysis) is Status.NOT_ENOUGH_DATA


def test_an_accepted_rule_that_held_for_a_time_is_listed_apart_too() -> None:
    band = Band("node-a", "", made.START + 60, made.START + 120, lasts=False, worst=0.7, words="70 %")
    rule = made.rule("CPUBottleneck", bands=[band])
    run = made.slow_loader(name="resnet", rules=[rule, made.rule("DataStarved")])
    assert any("held" in sentence for sentence in verdict(run).details)
    said = verdict(marked(run, [ENTRY], BEFORE))
    assert not any("held" in sentence for sentence in said.details)
    assert "It held" in said.accepted[0]


def test_each_rule_of_the_json_has_reason_end_and_person_or_null(tmp_path: Path) -> None:
    analysis = accepted(CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY)
    own = {"reason": "new loader in January", "until": "2026-12-31", "by": "alice"}
    by_rule = {rule["rule"]: rule["accepted"] for rule in document(analysis)["rules"]}
    assert by_rule == {"CPUBottleneck": own, "DataStarved": None}
    write_report(analysis, tmp_path)
    for name, expected in by_rule.items():
        assert (
            json.loads((tmp_path / "profiler-reports" / f"{name}.json").read_text())["accepted"] == expected
        )


def test_the_page_folds_it_away_from_the_findings() -> None:
    page = render_html(accepted(CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY))
    folded = re.search(r'<details class="view" id="accepted">.*?</details>', page, re.S)
    assert folded is not None
    assert "new loader in January" in folded[0]
    assert "<h3>Evidence</h3>" not in page
    row = page.partition('id="rule-CPUBottleneck"')[2].partition("</tbody>")[0]
    assert 'class="accepted"' in row
    assert "Accepted until 2026-12-31: new loader in January (by alice)" in row
    assert Page(page).texts["verdict"]


@pytest.mark.parametrize("flag", [True, False])
def test_report_reads_the_file_of_the_folder_of_runs_or_the_named_one(
    scenarios: WrittenScenarios,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yml" if flag else RUNS / "accepted.yml"
    recording = scenarios.written("cpu-bottleneck").recording_directory
    name = json.loads((recording / "run.json").read_text())["name"]
    write_accepted(file, [replace(ENTRY, run=name, until="2999-12-31")])
    assert (
        main(["report", str(recording), "--format", "json", *(["--accepted", str(file)] if flag else [])])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    (rule,) = (rule for rule in said["rules"] if rule["rule"] == "CPUBottleneck")
    assert rule["status"] == "found"
    assert rule["accepted"]["until"] == "2999-12-31"
    assert all("CPUBottleneck" not in (each["rule"], *each["also"]) for each in said["verdict"]["findings"])


def test_a_named_file_must_exist_and_name_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "accepted.yml"
    assert main(["report", str(tmp_path), "--accepted", str(file)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    write_accepted(file, [replace(ENTRY, rule="CPUBottelneck")])
    for command in (["report", str(tmp_path)], ["compare", str(tmp_path), str(tmp_path)]):
        assert main([*command, "--accepted", str(file)]) == 2
        assert "did you mean CPUBottleneck?" in capsys.readouterr().err
