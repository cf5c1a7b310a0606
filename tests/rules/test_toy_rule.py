"""Adding a rule is adding one file: a rule in a folder of its own is seen wherever ours are."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stepscope.analysis
import yaml
from stepscope.commands.cli import main
from stepscope.prometheus.rules.usage import ADVICE
from stepscope.rules import all_rules
from stepscope.rules.parts.registry import FOLDERS, PLUGINS

from tests.support.crosscheck import crosscheck, table
from tests.support.grafana import panels
from tests.support.prometheus import needs_prometheus
from tests.support.scenarios import WrittenScenarios
from tests.support.waiting import SECONDS

TOY = Path(__file__).parents[1] / "support" / "toy_rule.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    toys = tmp_path_factory.mktemp("toys")
    shutil.copy(TOY, toys)
    return toys


@pytest.fixture(autouse=True)
def given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is known, as `STEPSCOPE_RULES_PATH=FOLDER stepscope ...` makes it."""
    monkeypatch.setenv(FOLDERS, str(folder))


@pytest.fixture(scope="module")
def recording(scenarios: WrittenScenarios) -> Path:
    return scenarios.written("few-dataloaders").recording_directory


def rendered(folder: Path) -> Path:
    assert main(["rules", "render", "--docs-url=https://docs.test", "--out", str(folder)]) == 0
    return folder / "stepscope.yml"


def entries(rules: Path) -> list[dict[str, Any]]:
    groups = yaml.load(rules.read_text(), yaml.CSafeLoader)["groups"]
    return [entry for group in groups for entry in group["rules"]]


def test_it_is_a_rule_only_while_its_folder_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all_rules()["ToyRule"].question == "Is some core half busy while some GPU is half idle?"
    assert list(all_rules()) == sorted(all_rules())
    monkeypatch.delenv(FOLDERS)
    assert "ToyRule" not in all_rules()


def test_its_alert_says_its_words_and_carries_its_labels(tmp_path: Path) -> None:
    (alert,) = (entry for entry in entries(rendered(tmp_path)) if entry.get("alert") == "StepscopeToyRule")
    assert alert["expr"] == 'stepscope:rule_finding{rule="ToyRule"}'
    assert {name: value for name, value in alert["labels"].items() if "{{" not in value} == {
        "rule": "ToyRule",
        "severity": "warning",
        "audience": "owner",
        "kind": "cause",  # so it silences the idle GPUs of its node
        "symptom": "idle GPUs",
        "scope": "node",
    }
    assert alert["annotations"]["summary"] == "Somebody plays on {{ $labels.instance }}"
    assert alert["annotations"]["recommendation"] == "Put the toys away."
    assert alert["annotations"]["runbook_url"] == "https://docs.test/heuristics.md#toyrule"


def test_its_threshold_can_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "render", "--set", "ToyRule.threshold=30", "--out", str(tmp_path)]) == 0
    assert "toy:busy_while_idle:ratio > 0.3 and" in (tmp_path / "stepscope.yml").read_text()
    assert main(["rules", "render", "--set", "ToyRule.patience=30", "--out", str(tmp_path)]) == 2
    assert "ToyRule has no parameter 'patience'; its parameters are threshold" in capsys.readouterr().err


def test_dashboards_list_it_with_its_words_and_parameters(tmp_path: Path) -> None:
    (described,) = (
        entry["labels"]
        for entry in entries(rendered(tmp_path / "rules"))
        if entry.get("record") == "stepscope:rule_info" and entry["labels"]["rule"] == "ToyRule"
    )
    assert described["parameters"] == "threshold 20 %"
    assert described["recommendation"] == "Put the toys away."
    assert main(["dashboards", "render", "--out", str(tmp_path / "dashboards")]) == 0
    dashboard = json.loads((tmp_path / "dashboards" / "stepscope-run.json").read_text())
    (all_of_them,) = (panel for panel in panels(dashboard) if panel["title"] == "All rules")
    assert any("ToyRule" in target["expr"] for target in all_of_them["targets"])  # its datapoints


def test_dashboards_advise_it_where_it_explains_late_data(tmp_path: Path) -> None:
    rendered(tmp_path)
    every = [entry for file in tmp_path.glob("*.yml") for entry in entries(file)]
    rules = [entry for entry in every if entry.get("record") == ADVICE]
    (advice,) = (entry for entry in rules if entry["labels"]["of"] == "ToyRule")
    of_data = [entry for entry in rules if entry["labels"]["rule"] == "DataStarved"]
    assert advice is of_data[-1]  # it has the highest number
    assert advice["labels"]["recommendation"] == "Put the toys away."


def test_the_terminal_and_markdown_tell_what_it_found(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recording), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert main(["report", str(recording), "--format", "markdown"]) == 0
    for text in (printed.out + printed.err, capsys.readouterr().out):
        assert re.search(
            r"Playing with toys\b.*Somebody played for \d+ % of the run\..*Put the toys", text, re.DOTALL
        )


def test_a_notebook_has_its_finding(recording: Path) -> None:
    run = stepscope.analysis.open(recording, parameters={"ToyRule.threshold": 30})
    (found,) = (row for row in run.findings().to_pylist() if row["rule"] == "ToyRule")
    assert found["finding"].startswith("Somebody played")


def test_the_report_tells_what_it_found_in_every_place(recording: Path, tmp_path: Path) -> None:
    assert main(["report", str(recording), "--out", str(tmp_path)]) == 0
    html = (tmp_path / "report.html").read_text()
    for heading in ("Playing with toys", "Is some core half busy while some GPU is half idle?"):
        assert heading in html
    view = re.search(r'<details id="toyrule" class="view" open>.*?</details>', html, flags=re.DOTALL)
    assert view is not None
    assert re.search(r"Somebody played for \d+[\s\u00a0]% of the run\.", view[0])
    found = json.loads((tmp_path / "profiler-reports" / "ToyRule.json").read_text())
    assert found["RuleParameters"] == "threshold:20"
    assert found["RuleTriggered"] > 0
    assert found["Details"]["percent"] > 20


@needs_prometheus
def test_the_crosscheck_checks_it(recording: Path, tmp_path: Path) -> None:
    rules = rendered(tmp_path)
    parts = re.split(r"(?m)^(?=  - name: )", rules.read_text())
    toy = next(part for part in parts if part.startswith("  - name: stepscope-ToyRule"))
    rules.write_text(parts[0] + toy)
    right = table(crosscheck("--recording", recording, "--rules", rules))["ToyRule"]
    assert 0 < right["firing"] <= right["evaluations"]
    assert right["values"] >= 2 * right["evaluations"]
    assert right["disagreements"] == 0
    rules.write_text(parts[0] + toy.replace("ratio > 0.2 and", "ratio > 0.9 and"))
    wrong = crosscheck("--recording", recording, "--rules", rules)
    assert table(wrong)["ToyRule"]["disagreements"] > 0
    assert re.search(r"(?m)^ToyRule: .* ALERTS\{.*\}: expected firing, Prometheus has nothing$", wrong.stdout)


def with_plugin(site: Path, text: str, file: str = "toys.py") -> subprocess.CompletedProcess[str]:
    """Renders the rules where the entry point `toys` is installed, with this text in a file."""
    information = site / "toys-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{PLUGINS}]\ntoys = toys\n")
    (site / file).write_text(text)
    command = [sys.executable, "-m", "stepscope", "rules", "render", "--out", str(site / "rules")]
    environment = {**os.environ, "PYTHONPATH": str(site), FOLDERS: ""}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_an_installed_plug_in_is_seen_without_a_variable(tmp_path: Path) -> None:
    ended = with_plugin(tmp_path, TOY.read_text())
    assert_rendered_once(ended, tmp_path)


def test_a_plug_in_may_be_a_package_whose_rules_are_in_modules_of_it(tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "__init__.py").write_text("from toys import one\n")
    assert_rendered_once(with_plugin(tmp_path, TOY.read_text(), "toys/one.py"), tmp_path)


def assert_rendered_once(ended: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert ended.returncode == 0, ended.stderr
    alerts = [entry.get("alert") for entry in entries(tmp_path / "rules" / "stepscope.yml")]
    assert alerts.count("StepscopeToyRule") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere", "toys: this plug-in with rules fails ("),
        (
            TOY.read_text().replace("class ToyRule(", "class HostBound("),
            "toys: there is already a rule HostBound",
        ),
    ],
)
def test_a_plug_in_that_fails_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    ended = with_plugin(tmp_path, text)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere", "STEPSCOPE_RULES_PATH=/nowhere: there is no such folder; name a folder with rules"),
        ("{folder}:{twin}", "there is already a rule ToyRule; rename this one"),
        ("{broken}", "/broken/rule.py: this file with rules fails (ModuleNotFoundError"),
    ],
)
def test_a_wrong_folder_is_said_in_one_line(
    path: str,
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    twin = shutil.copytree(folder, tmp_path / "twin")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "rule.py").write_text("import nowhere\n")
    monkeypatch.setenv(FOLDERS, path.format(folder=folder, twin=twin, broken=broken))
    assert main(["rules", "render", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
