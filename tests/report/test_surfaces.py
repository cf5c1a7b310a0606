"""One voice: the page, JSON, Markdown, the terminal and the list of runs say the same of a run."""

import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope.common.console import Console
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, GpuUse, RunUse
from stepscope.measurements.step_totals import LastStep
from stepscope.report.document import document
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.printed import print_summary
from stepscope.report.sentences import rules
from stepscope.report.summary import facts
from stepscope.report.verdict import status_of_run, verdict

from tests.report.test_html import Page
from tests.support import analysis as made


def failed_run() -> Analysis:
    """A run in which nothing was found until it was killed."""
    steps = [LastStep("node-a", rank, "train", 899, made.START + 700 + rank) for rank in (0, 1)]
    return replace(made.nothing_found(), exit_status=137, ended="signal SIGKILL", last_steps=steps)


def stopped_run() -> Analysis:
    """A run in which nothing was found until Ctrl-C."""
    return replace(failed_run(), exit_status=130, ended="signal SIGINT", stopped_by="terminal")


RUNS: dict[Status, Callable[[], Analysis]] = {
    Status.FOUND: made.slow_loader,
    Status.HEALTHY: made.nothing_found,
    Status.NOT_ENOUGH_DATA: made.no_gpu,
    Status.COLLECTING: made.one_sample,
    Status.FAILED: failed_run,
    Status.STOPPED: stopped_run,
}


def plain(text: str) -> str:
    """Returns the words without marks for code, line ends and escapes."""
    return re.sub(r"\s+", " ", re.sub(r"[`\\\u200b]", "", text.replace("\u00a0", " ")))


def surfaces(analysis: Analysis) -> dict[str, str]:
    log = io.StringIO()
    print_summary(Console(log), analysis, Path("/runs/7/report.html"))
    said = document(analysis)["verdict"]
    return {
        "page": plain(Page(render_html(analysis)).texts["verdict"]),
        "live page": plain(Page(render_html(analysis, refresh_seconds=5)).texts["verdict"]),
        "terminal": plain(log.getvalue()),
        "markdown": plain(render_markdown(analysis)),
        "json": plain(" ".join([said["status"], *said["sentences"], *said["evidence"]])),
    }


@pytest.mark.parametrize("state", RUNS)
def test_every_surface_has_the_state_the_verdict_and_the_evidence_in_the_same_words(state: Status) -> None:
    analysis = RUNS[state]()
    said = verdict(analysis)
    assert said.status is status_of_run(analysis) is state
    for surface, text in surfaces(analysis).items():
        assert str(state) in text, surface
        for sentence in (*said.sentences, *said.evidence):
            assert plain(sentence) in text, surface


def test_a_run_that_failed_looks_healthy_nowhere() -> None:
    for surface, text in surfaces(failed_run()).items():
        verdict_alone = text.lower().partition("how this was judged")[0]  # which counts the healthy rules
        assert "healthy" not in verdict_alone, surface
        assert "✓" not in text, surface


def test_a_failed_run_says_how_when_in_which_phase_and_after_which_step() -> None:
    ended = document(failed_run())["run"]["ending"]
    assert verdict(failed_run()).sentence == (
        "Failed: the command was killed by SIGKILL at 13:39:00 UTC, after 12 min, in training, 19.0 s after "
        "train step 899 of both ranks."
    )
    assert (ended["failed"], ended["signal"], ended["out_of_memory"]) == (True, "SIGKILL", False)
    assert [step["number"] for step in ended["last_steps"]] == [899, 899]


@pytest.mark.parametrize(
    ("phase", "number", "words"),
    [
        ("train", 898, "train step 899 of rank 1; 1 rank had not finished that step."),
        ("train", 900, "train step 899 of rank 1."),  # ahead: its next step takes longer
        ("eval", 12, "train step 899 of rank 1."),  # another loop
    ],
)
def test_only_a_rank_with_fewer_steps_of_a_loop_is_behind(phase: str, number: int, words: str) -> None:
    other, last = failed_run().last_steps
    run = replace(failed_run(), last_steps=[replace(other, phase=phase, number=number), last])
    assert verdict(run).sentence.endswith(words)


@pytest.mark.parametrize(
    ("status", "ended", "words"),
    [
        (0, "finished", "0"),
        (1, "out of memory", "1 (out of memory)"),
        (137, "signal SIGKILL", "137 (killed by SIGKILL)"),
        (143, "signal SIGTERM", "143 (stopped by SIGTERM)"),
        (139, "", "139 (128 + 11: SIGSEGV)"),
        (None, "", "not known"),
    ],
)
def test_the_exit_status_names_its_signal(status: int | None, ended: str, words: str) -> None:
    assert dict(facts(made.slow_loader(exit_status=status, ended=ended)))["Exit status"] == words


def test_the_corner_of_a_page_says_how_the_run_ended() -> None:
    for analysis, words in ((failed_run(), "✕ failed"), (made.slow_loader(), "finished")):
        corner = render_html(analysis).partition('id="state"')[2].partition("</p>")[0]
        assert words in re.sub("<.*?>", "", corner)
        assert "dot" not in corner, "which means live"


def test_the_verdict_counts_the_rules_without_a_judgement_and_says_where_the_reasons_are() -> None:
    unjudged = [made.rule("DataStarved", Status.NOT_ENOUGH_DATA), made.rule("Straggler", Status.COLLECTING)]
    said = verdict(made.slow_loader(rules=[made.rule("IOBottleneck"), *unjudged]))
    assert (
        said.unjudged
        == said.sentences[-1]
        == (
            "2 of 3 rules could not be judged (1 not enough data and 1 collecting): "
            "the report’s section “Rules” has the reasons."
        )
    )


@pytest.mark.parametrize("state", [Status.NOT_ENOUGH_DATA, Status.COLLECTING])
def test_a_run_is_not_healthy_before_a_gpu_with_little_use_can_be_judged(state: Status) -> None:
    def used(*p95: float, by: str | None = "processes") -> Analysis:
        rest = (1.0, 1.0, 1.0, 8e9, by)
        gpus = [GpuUse("node-a", f"GPU {i}", p, p, p, p, *rest) for i, p in enumerate(p95)]
        waits = made.rule("LowGPUUtilization", state, finding="Too few readings of a GPU: 960.")
        return made.slow_loader(rules=[made.rule(), made.rule("DataStarved"), waits], gpu_use=gpus)

    said = verdict(used(95.0, 45.0, 69.0))
    assert said.status is state
    assert said.sentences[:2] == [
        f"{str(state).capitalize()}: a GPU was used 45 % or less in 95 % of its readings.",
        "Too few readings of a GPU: 960.",
    ]
    assert "healthy" not in " ".join(said.sentences)
    assert verdict(used(95.0, 70.0, math.nan)).status is Status.HEALTHY
    assert verdict(used()).status is Status.HEALTHY
    assert verdict(used(95.0, 45.0, by=None)).status is state, "whose they are is not known"
    assert verdict(used(0.0, 0.0, by=None)).status is Status.HEALTHY, "nobody's"
    judged = replace(used(45.0), rules=made.nothing_found().rules)
    assert verdict(judged).status is Status.HEALTHY


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_status": 1, "ended": "exit status 1"}, "ended with exit status 1 at"),
        ({"exit_status": 1, "ended": "out of memory"}, "ran out of memory (the kernel killed one"),
        ({"exit_status": 139, "ended": ""}, "ended with exit status 139 (128 + 11: SIGSEGV) at"),
        ({"exit_status": 3, "ended": "", "ranks": 1}, "after 12 min, before its first step"),
    ],
)
def test_each_way_to_fail_has_its_words(changes: dict[str, object], words: str) -> None:
    said = verdict(made.slow_loader(**changes))
    assert said.status is Status.FAILED
    assert words in said.sentence
    assert said.details[0] != ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ended": "signal SIGINT", "stopped_by": "terminal"}, "Stopped by you (Ctrl-C) at "),
        ({"ended": "signal SIGQUIT", "stopped_by": "terminal"}, "Stopped by you (Ctrl-\\) at "),
        ({"ended": "signal SIGHUP", "stopped_by": "terminal"}, "Stopped because its terminal was closed at "),
        ({"ended": "signal SIGTERM", "stopped_by": "slurmstepd"}, "Stopped by SIGTERM from slurmstepd at "),
        (
            {"ended": "signal SIGTERM", "stopped_by": "outside"},
            "Stopped by SIGTERM from a process outside its container at ",
        ),
        ({"ended": "signal SIGTERM"}, "Stopped by SIGTERM at "),
    ],
)
def test_a_run_that_was_stopped_says_by_whom_and_then_what_was_found(
    changes: dict[str, object], words: str
) -> None:
    said = verdict(made.slow_loader(exit_status=143, **changes))
    assert said.status is Status.STOPPED
    assert said.sentence.startswith(words)
    found = said.details if "stopped_by" in changes else said.details[1:]
    assert found[0].startswith("Until then: your run spent about"), "nothing is left to find out"
    assert document(made.slow_loader(exit_status=143, **changes))["run"]["ending"]["failed"] is False


KILLED = {"type": "SIGKILL", "message": "killed process 11", "place": "", "rank": "3"}
KEY_ERROR = {"type": "KeyError", "message": "'dog'", "place": "crash.py:18", "rank": "3"}


@pytest.mark.parametrize(
    ("exception", "ranks", "words"),
    [
        (KEY_ERROR, 8, "Failed: KeyError: 'dog', crash.py:18, rank 3"),
        (KEY_ERROR, 1, "Failed: KeyError: 'dog', crash.py:18"),
        ({**KEY_ERROR, "message": "", "place": ""}, 1, "Failed: KeyError"),
        (KILLED, 8, "Failed: SIGKILL: killed process 11, rank 3"),
    ],
)
def test_the_exception_that_ended_a_run_comes_first(
    exception: dict[str, str], ranks: int, words: str
) -> None:
    analysis = made.slow_loader(exit_status=1, ended="exit status 1", exception=exception, world_size=ranks)
    said = verdict(analysis)
    assert said.sentence == words
    assert said.details[0].startswith("The command ended with exit status 1 at ")
    for surface, text in surfaces(analysis).items():
        assert plain(words) in text, surface
    who = "The sender of SIGKILL is not known: `dmesg` and the scheduler’s log have it."
    assert (who in said.details) == (exception == KILLED)


def test_a_training_that_an_exception_ended_failed_also_if_a_shell_hides_its_exit_status() -> None:
    said = verdict(made.slow_loader(exit_status=0, ended="finished", exception=KEY_ERROR))
    assert said.status is Status.FAILED
    assert said.details[0].startswith("The command ended with exit status 0 at ")


USE = RunUse("node-a", 1.0, 4.0, 0.0, 0.0, 0.0, memory=7.6e9, memory_capacity=8e9, memory_growth=1e6)


@pytest.mark.parametrize(
    ("ended", "use", "words"),
    [
        (
            "out of memory",
            USE,
            "When last seen, its processes held 7.60 GB of the 8.00 GB that they may use. Its memory had "
            "grown by 1.00 MB per step. Give the run more memory, or let it use less.",
        ),
        (
            "out of memory",
            replace(USE, memory_growth=math.nan),
            "When last seen, its processes held 7.60 GB of the 8.00 GB that they may use. Give the run",
        ),
        ("out of memory", replace(USE, memory=math.nan), "How much memory the run held is not known. Give"),
        ("signal SIGKILL", USE, "The kernel may have killed it because memory ran out: `dmesg` has it. When"),
        ("signal SIGKILL", replace(USE, memory=1e9), "The sender of SIGKILL is not known"),
    ],
)
def test_a_run_without_memory_says_how_much_it_had(ended: str, use: RunUse, words: str) -> None:
    steps = {"first_step_start": made.START, "last_step_end": made.START + 100}
    last = [LastStep("node-a", 0, "train", 99, made.START + 100)]
    analysis = made.slow_loader(exit_status=1, ended=ended, run_use=[use], last_steps=last, **steps)
    assert verdict(analysis).details[0].startswith(words)


@pytest.mark.parametrize(("more", "risks"), [((), ""), (("GPUMemoryNearlyFull", "GPUError"), "risks, ")])
def test_a_run_of_which_only_the_start_and_pauses_were_judged_is_not_healthy(
    more: tuple[str, ...], risks: str
) -> None:
    names = ("MaxInitializationTime", "TrainingStalled", "StepOutlier", *more)
    unjudged = made.rule("DataStarved", Status.NOT_ENOUGH_DATA, finding="No wait for data was timed.")
    analysis = made.slow_loader(rules=[*map(made.rule, names), unjudged])
    said = verdict(analysis)
    assert said.status is Status.NOT_ENOUGH_DATA
    judged = f"only {risks}the start and pauses could be judged"
    assert said.sentence == f"Not enough data: {judged}, not where the time goes."
    assert said.details[0] == "No wait for data was timed."


@pytest.mark.parametrize("state", RUNS)
def test_rules_are_counted_alike_and_overviews_are_none(state: Status) -> None:
    analysis = RUNS[state]()
    analysis = replace(analysis, rules=[*analysis.rules, made.rule("OverallSystemUsage")])
    counted = {name: number for name, number in document(analysis)["verdict"]["rules"].items() if number}
    assert sum(counted.values()) == len(RUNS[state]().rules) - (state is Status.FOUND)  # it has an overview
    for name, number in counted.items():
        assert f"{number} {name}" in rules(analysis)
