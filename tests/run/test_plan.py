"""Names of runs, and words about findings."""

from __future__ import annotations

import pytest
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.rules.topics import About
from trainwatch.run.live import PRINT_AGAIN_AFTER, Findings
from trainwatch.run.plan import name_of
from trainwatch.status import Status


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 3", "train"),
        ("/usr/bin/python3 -u scripts/finetune.py", "finetune"),
        ("python -m pkg.train --lr 1", "pkg.train"),
        ("torchrun --nproc-per-node 2 train.py", "train"),
        ("./train.sh -m fast", "train.sh"),
        ("python", "python"),
    ],
)
def test_a_run_is_called_after_its_script(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def result(status: str) -> RuleResult:
    return RuleResult(
        rule="CPUBottleneck",
        question="",
        description="",
        recommendation="More workers.",
        status=status,  # type: ignore[arg-type]
        finding="60 % of the samples.",
        triggered=1,
        violations=1,
        datapoints=1,
        parameters={},
        about=About("Waiting for busy CPU cores"),
    )


def test_a_finding_is_said_when_it_appears_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    for minute, status in enumerate(
        [Status.NOT_ENOUGH_DATA, Status.HEALTHY, Status.FOUND, Status.FOUND, Status.FOUND]
    ):
        findings.update([result(status)], now=minute * 60.0)
    assert capsys.readouterr().err == (
        "trainwatch: CPUBottleneck: 60 % of the samples.\ntrainwatch:   More workers.\n"
    )
    findings.update([result(Status.HEALTHY)], now=120.0 + PRINT_AGAIN_AFTER)
    assert capsys.readouterr().err == "trainwatch: CPUBottleneck: no longer the case\n"


def test_a_finding_that_flickers_is_said_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    for second in range(int(PRINT_AGAIN_AFTER)):
        findings.update([result(Status.FOUND if second % 2 else Status.HEALTHY)], now=float(second))
    assert capsys.readouterr().err.count("CPUBottleneck") == 1
