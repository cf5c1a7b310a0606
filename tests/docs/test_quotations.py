"""What pages quote is what the program says today."""

import re
from pathlib import Path

import pytest
import yaml
from stepscope.commands.cli import main

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


def block_after(page: str, start: str) -> str:
    """Returns the rest of the code block from the line that starts like this."""
    return (DOCS / page).read_text().split(f"\n{start}", 1)[1].split("\n", 1)[1].split("\n```", 1)[0]


def test_the_comparison_is_the_golden_one() -> None:
    golden = (TESTS / "compare" / "golden" / "few-dataloaders-healthy.txt").read_text()
    quoted = block_after("compare.md", "$ stepscope compare before after").splitlines()[3:]
    assert len(quoted) > 10
    assert [line for line in quoted if line not in {*golden.splitlines(), "..."}] == []


def test_the_prediction_is_the_golden_one() -> None:
    golden = (TESTS / "compare" / "golden" / "few-dataloaders-healthy.txt").read_text()
    (quoted,) = re.findall(r"(?m)^Predicted for .+$", (DOCS / "compare.md").read_text())
    assert quoted in golden.splitlines()


def test_the_right_sizing_is_the_golden_one() -> None:
    golden = (TESTS / "report" / "golden" / "few-dataloaders.md").read_text()
    (quoted,) = re.findall(r"(?m)^> (\| loader workers of a rank.+)$", (DOCS / "right-sizing.md").read_text())
    assert quoted in golden.splitlines()


def test_the_refused_threshold_is_answered_as_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    command = "stepscope rules render --set CPUBottleneck.gpu_threshold=55"
    assert main(command.split()[1:]) == 2
    assert capsys.readouterr().err.strip() == block_after("rules.md", f"$ {command}")


def test_the_message_in_slack_is_that_of_the_alert() -> None:
    groups = yaml.load((TESTS.parent / "rules" / "stepscope.yml").read_text(), yaml.CSafeLoader)["groups"]
    rules = [
        rule for group in groups for rule in group["rules"] if rule.get("alert") == "StepscopeCPUBottleneck"
    ]
    page = (DOCS / "notifications.md").read_text()
    quoted = " ".join(line[1:].strip(" \\") for line in page.splitlines() if line.startswith(">"))
    for key in ("summary", "description", "recommendation"):
        words = re.split(r"{{.*?}}", rules[0]["annotations"][key])
        assert re.search(".+?".join(map(re.escape, words)), quoted), key


def test_the_readme_quotes_the_words_of_the_rule() -> None:
    golden = (TESTS / "report" / "golden" / "cpu-bottleneck.md").read_text()
    text = " ".join(
        (TESTS.parent / "README.md").read_text().partition("    why   ")[2].partition("\n\n")[0].split()
    )
    text = re.sub(r" line .*? do ", " do ", text).partition(" gain ")[0]
    finding, _, advice = text.partition(" do ")
    finding = finding[finding.index("the transform is") :].partition(" It held ")[0]
    words = re.split(r"[\d.]+", re.sub(r"\(.+? s\)", "0", finding))
    assert re.search(".+?".join(map(re.escape, words)), golden)
    assert advice in golden
