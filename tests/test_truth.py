"""Training scripts with planted faults: the scoring of `make truth`, and a small part of it."""

import json
import subprocess
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.page import RESULTS, read_table
from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from trials.truth import __main__ as command
from trials.truth.__main__ import main, observe, write_tables
from trials.truth.judge import HEAD, Outcome, holds, judge, table
from trials.truth.observed import SCRIPT, Observer, Seen, Stepscope, environment, training
from trials.truth.plan import (
    ALONE,
    COMPONENTS,
    IN_MATRIX,
    LIGHTNING,
    OTHERS,
    SINGLE,
    SIZES,
    TRAINER,
    Case,
    full,
    healthy,
    matrix,
    others,
    short,
    slow_networks,
    some,
)
from trials.truth.rival import wrapped

FAULT = Case("fault", "DDP", 1, "forward", 2, 0.05)
HEALTHY = healthy(1, 1)[0]
NOTHING_ELSE_MAY_DELAY_A_RANK = pytest.mark.alone("a rank that other tests hold up is slow too")
SMALLEST = (0, 4)  # of the short form: a slow rank and a healthy run
NAMED = Seen(FAULT.name, (2, "forward"), "found", "Rank 2 ...", False, "verdict: rank 2 is slow", 240, 9.0)


def test_a_report_that_names_rank_and_cause_is_right_and_any_other_is_not() -> None:
    assert judge(FAULT, NAMED) == "right"
    assert judge(FAULT, replace(NAMED, accused=(2, "backward"))) == "wrong cause"
    assert judge(FAULT, replace(NAMED, accused=(1, "forward"))) == "wrong rank"
    assert judge(FAULT, replace(NAMED, accused=None, status="healthy")) == "not found"
    assert judge(FAULT, replace(NAMED, status="failed")) == "failed"


def test_a_terminal_that_does_not_name_the_rank_of_the_report_is_a_failure(tmp_path: Path) -> None:
    reports = tmp_path / "run" / "profiler-reports"
    reports.mkdir(parents=True)
    found = {
        "status": "found",
        "finding": "",
        "Datapoints": 240,
        "Details": {"rank": 2, "component": "forward"},
    }
    for rule in ("Straggler", "CommunicationBound"):
        (reports / f"{rule}.json").write_text(json.dumps(found))
    assert judge(FAULT, Stepscope().read(FAULT, tmp_path, "verdict: Rank 2 is slow", 0, 9.0)) == "right"
    assert judge(FAULT, Stepscope().read(FAULT, tmp_path, "verdict: healthy", 0, 9.0)) == "failed"
    assert judge(FAULT, Stepscope().read(FAULT, tmp_path / "empty", "", 1, 9.0)) == "failed"


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([("DataStarved", "Waiting for data", "The training process waited for data for 66 %")], "right"),
        ([("HostBound", "Waiting for the host", "The training process collected garbage")], "wrong cause"),
        ([("Dataloader", "An unsuitable number of loader workers", "n has 2 cores")], "wrong cause"),
        ([("DataStarved", "Not printed", "The training process waited for data")], "failed"),
        ([], "not found"),
    ],
)
def test_the_first_finding_about_the_only_process_must_name_the_cause(
    findings: list[tuple[str, str, str]], outcome: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    found = [{"rule": rule, "title": title, "finding": words} for rule, title, words in findings]
    status = "found" if found else "healthy"
    verdict = {"status": status, "findings": found}
    rules = [{"rule": "StepOutlier", "datapoints": 60}]
    (tmp_path / "run" / "report.json").write_text(json.dumps({"verdict": verdict, "rules": rules}))
    terminal = "Waiting for data. Waiting for the host. An unsuitable number of loader workers."
    cases = [case for case in others(1) if case.script == SINGLE]
    fault, calm = cases[0], cases[-1]
    seen = Stepscope().read(fault, tmp_path, terminal, 0, 9.0)
    assert (fault.place, judge(fault, seen)) == ("data", outcome)
    if outcome != "failed":
        assert judge(calm, seen) == ("accused" if findings else "right")


def test_other_scripts_have_each_fault_that_their_report_can_name() -> None:
    faults = Counter((case.script, case.place) for case in others(1) if case.kind == "fault")
    assert set(faults.values()) == {2}
    for script in (TRAINER, LIGHTNING):
        assert {place for of, place in faults if of == script} == set(COMPONENTS)
        assert {case.rank for case in others(1) if case.script == script and case.expected} == {0, 1}


def test_the_script_of_the_rival_has_its_wrapper_around_each_step() -> None:
    script = wrapped(SCRIPT.read_text())
    compile(script, "train.py", "exec")
    step = script.partition("with traceml_ai.trace_step(model):")[2]
    assert step.lstrip().startswith('delay("host before")')
    assert 'traceml_ai.init(mode="auto")' in script


def test_nobody_may_be_accused_in_a_run_without_a_fault() -> None:
    assert judge(HEALTHY, NAMED) == "accused"
    assert judge(HEALTHY, replace(NAMED, accused=None, status="healthy")) == "right"


def test_a_slow_network_must_be_reported_as_communication() -> None:
    slow = slow_networks(1)[0]
    seen = replace(NAMED, accused=None, status="healthy")
    assert judge(slow, seen) == "failed"
    assert judge(slow, replace(seen, communication_bound=True)) == "right"
    assert judge(slow, replace(NAMED, communication_bound=True)) == "accused"


def test_a_run_without_steps_is_no_success() -> None:
    assert judge(HEALTHY, replace(NAMED, accused=None, status="healthy", steps=0)) == "failed"
    assert judge(HEALTHY, replace(NAMED, accused=None, status="not enough data")) == "failed"


def test_it_holds_with_95_percent_of_the_faults_and_without_an_innocent() -> None:
    right, missed = (FAULT, judge(FAULT, NAMED)), (FAULT, judge(FAULT, replace(NAMED, accused=None)))
    assert holds([*19 * [right], missed, (HEALTHY, "right")])
    assert not holds([*18 * [right], *2 * [missed]])
    assert not holds([*99 * [right], (HEALTHY, "accused")])


def test_the_table_has_a_row_per_fault_and_sums() -> None:
    rows = table([(FAULT, "right"), (FAULT, "wrong rank"), (HEALTHY, "accused")])
    assert [row.cells for row in rows] == [
        ("DDP", "forward, 50 ms", "2", "1", "0", "1", "0", "0", "0"),
        ("DDP", "healthy", "1", "0", "0", "0", "0", "1", "0"),
        ("", "**all faults**", "2", "1", "0", "1", "0", "0", "0"),
        ("", "**all without a fault**", "1", "0", "0", "0", "0", "1", "0"),
    ]


def test_the_matrix_has_each_fault_on_each_rank_in_both_sizes_asleep_and_computing() -> None:
    cases = matrix(1)
    assert Counter(case.script for case in cases) == {"DDP": 9 * 2 * 4, "FSDP2": 9 * 2 * 2}
    assert len({case.name for case in full(1)}) == len(full(1))
    ways = {(case.script, case.place_in_words, case.seconds, case.way) for case in cases}
    assert len(ways) == len(IN_MATRIX) * 9 * 2 * 2
    assert {(case.script, case.place_in_words) for case in some(1) if case.expected} == {
        (case.script, case.place_in_words) for case in cases
    }


def test_the_cases_are_listed_and_a_case_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--full", "--list", "--only", "DDP, gc, 50 ms"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nobody"])


def test_results_in_the_file_are_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text(f"{NAMED.as_json()}\n")
    assert list(observe([FAULT], Stepscope(), file=file)) == [(FAULT, NAMED)]


def test_a_table_of_the_page_is_written_only_if_all_its_cases_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    before = RESULTS.read_text()
    page.write_text(before)
    monkeypatch.setattr(command, "PAGE", page)
    everything = full(1)

    def written(*scripts: str) -> str:
        results: list[tuple[Case, Outcome]] = [
            (case, "right") for case in everything if case.script in scripts
        ]
        flags = Namespace(full=True, short=False, rival=False, only=[*scripts], minutes=inf, seed=1)
        write_tables(results, everything, flags)
        return capsys.readouterr().err

    assert "keeps its table 'others': 58 of its cases were not tried" in written(TRAINER)
    assert "keeps its table 'truth'" in written("DDP")
    assert page.read_text() == before
    assert written(*OTHERS) == ""
    assert '--full --only "HF Trainer" --only "Lightning" --only "one process"' in page.read_text()
    assert read_table(page, "truth") == read_table(RESULTS, "truth")


def test_cases_that_cannot_be_tried_here_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(SystemExit, match="2"):
        main(["--full", "--only", TRAINER])
    said = capsys.readouterr().err
    assert "no HF Trainer: pip install transformers accelerate" in said
    assert "none of these cases can be tried on this machine" in said


def test_the_page_has_the_table_of_the_trial() -> None:
    for name in ("truth", "others"):
        assert {len(row) for row in read_table(RESULTS, name)} == {len(HEAD)}


@NOTHING_ELSE_MAY_DELAY_A_RANK
@pytest.mark.parametrize("case", smallest(short(1), SMALLEST), ids=lambda case: case.name)
@needs_torch
def test_the_report_names_the_planted_fault_and_nobody_else(case: Case) -> None:
    seen = Observer(Stepscope()).observe(case)
    assert seen is not None
    assert judge(case, seen) == "right", seen


@pytest.mark.trial
@needs_torch
def test_training_is_the_same_with_hooks(tmp_path: Path) -> None:
    """test_unseen.py shows it of a model of each kind, in one process."""
    seen = Observer(Stepscope()).observe(HEALTHY)
    assert seen is not None
    words = training(HEALTHY)
    alone = subprocess.run(
        words, cwd=tmp_path, env=environment(HEALTHY), capture_output=True, text=True, check=True
    )
    assert parameters(seen.terminal) == parameters(alone.stdout)


@pytest.mark.trial
@NOTHING_ELSE_MAY_DELAY_A_RANK
@needs_torch
def test_a_loop_without_torch_distributed_is_judged_as_it_is() -> None:
    case = next(case for case in others(1) if case.script == ALONE and case.seconds == SIZES[1])
    assert "torch.distributed.run" not in training(case)
    seen = Observer(Stepscope()).observe(case)
    assert seen is not None
    assert judge(case, seen) == "right", seen


def parameters(output: str) -> list[str]:
    """Returns the digests of all ranks, which must be equal."""
    lines = sorted(line for line in output.splitlines() if line.startswith("parameters of rank "))
    assert len({line.split()[-1] for line in lines}) == 1
    return lines
