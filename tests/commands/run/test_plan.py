"""Names of runs, and words about findings."""

from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope.commands.run.command import add_arguments
from stepscope.commands.run.live import PRINT_AGAIN_AFTER, Findings
from stepscope.commands.run.plan import name_of, planned
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, Band, RuleResult
from stepscope.rules.collective_hang import NOW
from stepscope.rules.parts.topics import About

from tests.support import analysis as made


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


@pytest.mark.parametrize(
    ("words", "variable", "name"),
    [
        (["--name=flag"], "variable", "flag"),
        ([], "variable", "variable"),
        ([], "", "train"),
    ],
)
def test_a_flag_goes_before_the_variable_and_that_before_the_script(
    words: list[str], variable: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_RUN", variable)
    parser = ArgumentParser()
    add_arguments(parser)
    given = [*words, "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}", "--", "python", "train.py"]
    arguments = parser.parse_args(given)
    arguments.typed = ()
    with planned(arguments) as plan:
        assert plan.launch.name == name


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


def so_far(rule: RuleResult) -> Analysis:
    """A run that goes on."""
    return made.slow_loader(rules=[rule], finished=False)


def test_a_finding_is_said_when_it_appears_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    for minute, status in enumerate(
        [Status.NOT_ENOUGH_DATA, Status.HEALTHY, Status.FOUND, Status.FOUND, Status.FOUND]
    ):
        findings.update(so_far(result(status)), now=minute * 60.0)
    assert capsys.readouterr().err == "stepscope: ▲ CPUBottleneck: 60 % of the samples.\n"
    findings.update(so_far(result(Status.HEALTHY)), now=120.0 + PRINT_AGAIN_AFTER)
    assert capsys.readouterr().err == "stepscope: ✓ CPUBottleneck: no longer the case\n"


def test_a_finding_that_flickers_is_said_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    for second in range(int(PRINT_AGAIN_AFTER)):
        state = Status.FOUND if second % 2 else Status.HEALTHY
        findings.update(so_far(result(state)), now=float(second))
    assert capsys.readouterr().err.count("CPUBottleneck") == 1


def test_a_finding_that_has_cleared_is_said_as_past(capsys: pytest.CaptureFixture[str]) -> None:
    """Over the run so far the rule stays found, as Debugger counts; the window has cleared."""
    findings = Findings()
    band = Band("node-a", "", made.START, made.START + 600, True, 0.83, "83 % of the samples")
    findings.update(so_far(replace(result(Status.FOUND), bands=[band])), now=0.0)
    over = replace(result(Status.FOUND), bands=[replace(band, end=made.START + 720, lasts=False)])
    capsys.readouterr()
    findings.update(so_far(over), now=PRINT_AGAIN_AFTER)
    assert capsys.readouterr().err == (
        "stepscope: ✓ CPUBottleneck: It no longer holds: it held from 13:27:00 to 13:39:00 UTC "
        "on node-a, at worst 83 % of the samples.\n"
    )
    findings.update(so_far(over), now=2 * PRINT_AGAIN_AFTER)
    assert capsys.readouterr().err == ""


def test_a_rank_for_which_others_wait_is_said_once_before_it_is_a_hang(
    capsys: pytest.CaptureFixture[str],
) -> None:
    findings = Findings()
    waits = (
        "Rank 3 on node-a has been in the data loader for 16.0 s; 3 ranks wait for it in backward (16.0 s)."
    )
    healthy = replace(result(Status.HEALTHY), rule="CollectiveHang", finding="No rank waited.")
    for now, finding in enumerate(
        (healthy.finding, f"No rank waited.{NOW}{waits}", f"No rank waited.{NOW}{waits}")
    ):
        findings.update(so_far(replace(healthy, finding=finding)), now=10.0 * now)
    assert capsys.readouterr().err == f"stepscope: {Status.COLLECTING.icon} {waits}\n"


def test_what_holds_now_is_said_although_the_whole_run_is_healthy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    band = Band("node-a", "GPU 0", made.START, made.START + 600, True, 0.83, "83 % of the time")
    Findings().update(so_far(replace(result(Status.HEALTHY), bands=[band])), now=0.0)
    assert "CPUBottleneck: It has held from 13:27:00 to 13:37:00 UTC" in capsys.readouterr().err
