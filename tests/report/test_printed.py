"""The verdict as text: the block at the end of `stepscope run`, on terminals and in logs."""

import io
import json
import os
import re
from pathlib import Path

import pytest
from stepscope.common.console import Console
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.places import places
from stepscope.evaluation.problems import problems
from stepscope.report.printed import print_summary
from stepscope.runs.model import LineTime

from tests.support import analysis as made

REPORT = Path("/runs/7/report.html")
GOLDEN = Path(__file__).parent / "golden"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, analysis: Analysis) -> list[str]:
    print_summary(Console(stream), analysis, REPORT)
    return stream.getvalue().splitlines()


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, analysis: Analysis, **environment: str
) -> list[str]:
    for name in ("NO_COLOR", "FORCE_HYPERLINK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Console, "width", columns)
    return printed(Screen(), analysis)


def test_a_log_gets_plain_lines_with_verdict_evidence_advice_and_paths() -> None:
    analysis = made.slow_loader(exit_status=0)
    lines = printed(io.StringIO(), analysis)
    text = "\n".join(lines)
    assert lines[0] == f" stepscope: {analysis.run} ".center(80, "=")
    assert lines[1].startswith("▲ found: ")
    for problem in problems(analysis.rules):
        assert f"    why   {problem.rule.finding}" in text
        assert text.count(problem.rule.recommendation) == 1
    assert "exit status  0" in lines
    assert "report       /runs/7/report.html" in lines
    assert "recording    /runs/7" in lines
    assert re.fullmatch(r"=+ ▲ found in .*, exit status 0 =+", lines[-1])
    assert "\033" not in text


def test_nothing_in_a_recording_controls_the_terminal() -> None:
    raised = {"type": "ValueError", "message": "a\x1b[31mb\x9b2Jc\nd", "place": "train.py:3", "rank": ""}
    run = made.slow_loader(run="\x1b]0;title\x07", exit_status=1, exception=raised)
    text = "\n".join(printed(io.StringIO(), run))
    assert "Failed: ValueError: a [31mb 2Jc d, train.py:3" in text
    assert not {character for character in text if character < " "} - {"\n"}
    assert "\x9b" not in text


def test_each_finding_says_what_its_remedy_may_gain() -> None:
    rules = [
        made.rule("DataStarved", Status.FOUND, seconds_lost=360.0),
        made.rule("StepOutlier", Status.FOUND, seconds_lost=9000.0),  # of several ranks together
        made.rule("GPUMemoryLeak", Status.FOUND),
    ]
    lines = printed(io.StringIO(), made.slow_loader(rules=rules, exit_status=0))
    gains = [line for line in lines if line.startswith("    gain")]
    assert gains == ["    gain  up to 2 h 30 min", "    gain  up to 6 min (50 %)"]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_a_finding_takes_at_most_eight_lines_of_a_hundred_columns(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """Those of the demo scenarios, as if each had a long line of code."""
    text = "total = sum(np.roll(image, shift, axis=0) for shift in range(-radius, radius + 1)) / (2 * radius)"
    states = {"running": 9.0}
    line = LineTime(
        "train", "data_wait", "data/augment.py:36", "blur", "numpy.roll", "", "", states, text=text
    )
    monkeypatch.setattr("stepscope.evaluation.problems._places", lambda *_: places([line]))
    names = ("finding", "recommendation", "seconds_lost")
    for found in json.loads(path.read_text())["verdict"]["findings"]:
        rule = made.rule(found["rule"], Status.FOUND, **{name: found[name] or 0 for name in names})
        lines = on_terminal(monkeypatch, 100, made.slow_loader(rules=[rule]))
        block = "\n".join(lines).rpartition("\033[1m")[2].partition("\n\n")[0].splitlines()
        assert len(block) <= 8
        where = next(row for row in block if row.startswith("    line"))
        assert where.startswith("    line  100 % in blur, data/augment.py:36 (numpy.roll): total = sum(")
        assert where.endswith("…")


def test_a_run_that_failed_says_so_first_and_last() -> None:
    lines = printed(io.StringIO(), made.slow_loader(exit_status=3))
    assert lines[1].startswith("✕ Failed: the command ended with exit status 3")
    assert "✕ failed in " in lines[-1]


@pytest.mark.parametrize("columns", [80, 140])
def test_a_terminal_gets_lines_that_fit_in_the_colours_of_the_state(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = on_terminal(monkeypatch, columns, made.slow_loader(exit_status=0))
    assert lines[1].startswith("\033[1;33m▲ found: ")
    bare = [re.sub(r"\033\[[0-9;]*m", "", line) for line in lines]
    assert max(map(len, bare)) == columns
    words = " ".join(" ".join(bare).split())
    logged = printed(io.StringIO(), made.slow_loader(exit_status=0))
    assert words.replace("=", "") == " ".join(" ".join(logged).split()).replace("=", "")


def test_no_color_and_dumb_terminals_get_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = made.slow_loader(rules=[made.rule("CPUBottleneck", Status.HEALTHY)])
    assert not any("\033" in line for line in on_terminal(monkeypatch, 80, healthy, NO_COLOR="1"))
    assert not any("\033" in line for line in on_terminal(monkeypatch, 80, healthy, TERM="dumb"))
    assert any("\033[32m✓ Healthy" in line for line in on_terminal(monkeypatch, 80, healthy))


def test_paths_are_links_where_the_terminal_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = made.slow_loader(exit_status=0)
    link = f"\033]8;;file://{os.uname().nodename}/runs/7/report.html\033\\/runs/7/report.html\033]8;;\033\\"
    assert f"report       {link}" in on_terminal(monkeypatch, 80, analysis, FORCE_HYPERLINK="1")
    assert "/runs/%FF\033" in Console(Screen()).link(Path("/runs/\udcff"))  # a byte that is no UTF-8
    lines = on_terminal(monkeypatch, 80, analysis, FORCE_HYPERLINK="0")
    assert "report       /runs/7/report.html" in lines
