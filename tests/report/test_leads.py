"""Where a report leads: to the docs, the run before, all runs, and the command that made it."""

import os
import re
import shlex
from html import unescape
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.report.html import render_html
from stepscope.report.index_page import render_index
from stepscope.report.leads import Leads
from stepscope.report.run_list import read_folder
from stepscope.report.shell import shell_command
from stepscope.report.write import write_report

from tests.support import analysis as made
from tests.support.rented_nodes import rented_nodes
from tests.support.run_folder import recorded, reported


def test_rules_link_to_their_docs_only_where_docs_are() -> None:
    analysis = made.slow_loader()
    rule = analysis.rules[0].rule
    page = render_html(analysis, leads=Leads(docs_url="https://docs.example.org/stepscope"))
    assert f'href="https://docs.example.org/stepscope/heuristics.md#{rule.lower()}"' in page
    assert f'{rule}</a> (<a href="https://docs.example.org/stepscope/heuristics.md#{rule.lower()}">' in page
    assert "heuristics.md#" not in render_html(analysis)


def test_the_command_that_made_a_report_is_in_it_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rented_nodes(tmp_path / "runs" / "a run", 1, 60)
    assert main(["report", "runs/a run", "--price", "3.6", "--docs-url", "https://docs.example.org/"]) == 0
    page = (tmp_path / "runs" / "a run" / "report.html").read_text(encoding="utf-8")
    typed = "stepscope report &#39;runs/a run&#39; --price 3.6 --docs-url https://docs.example.org/"
    assert f'<code id="command">{typed}</code>' in page
    (again,) = re.findall(r'<code id="again">(.*?)</code>', page)
    assert re.fullmatch(r"stepscope report &#39;runs/a run&#39; --set \w+\.\w+=\S+", again)
    assert main(shlex.split(unescape(again))[1:]) == 0
    assert "https://docs.example.org/heuristics.md#cpubottleneck" in page
    hidden = shell_command(["stepscope", "report", "prometheus+http://anna:secret@host?run=x"])
    assert "secret" not in hidden


def test_a_docs_url_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--docs-url", "docs/"]) == 2
    assert "'docs/' must be a URL" in capsys.readouterr().err


def test_a_report_links_to_the_run_before_and_to_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "stepscope-runs"
    reported(runs, "oldest", 0)
    reported(runs, "the <first>", 1000)
    page = (reported(runs, "second", 2000) / "report.html").read_text(encoding="utf-8")
    assert 'href="../index.html"' in page
    assert 'href="../the%20%3Cfirst%3E/report.html"' in page
    compare = "stepscope compare &#39;stepscope-runs/the &lt;first&gt;&#39; stepscope-runs/second"
    assert f'<code id="compare">{compare} --out comparison.html</code>' in page
    assert "The run before" not in (runs / "oldest" / "report.html").read_text(encoding="utf-8")
    (runs / "the <first>" / "report.json").write_text("damaged")
    page = (reported(runs, "third", 1500) / "report.html").read_text(encoding="utf-8")
    assert "The run before" not in page, "a damaged run costs its link only"


def test_no_lead_is_invented_for_a_report_elsewhere(tmp_path: Path) -> None:
    write_report(made.slow_loader(), tmp_path / "alone")
    page = (tmp_path / "alone" / "report.html").read_text(encoding="utf-8")
    for words in ("The run before", "../index.html", 'id="command"', 'id="again"'):
        assert words not in page
    assert not (tmp_path / "index.html").exists()


def test_the_index_shows_the_newest_and_says_how_many_more_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.report.index_page.SHOWN", 2)
    folder = tmp_path / "stepscope-runs"
    for number in range(3):
        recorded(folder, f"train-{number}", number)
    page = render_index(read_folder(folder))
    assert ("train-0</h3>" in page, "train-2</h3>" in page) == (False, True)
    assert "1 older run: <code>stepscope list</code>" in page
    assert "3 runs, the newest first" in page
    os.utime(folder / "train-1", (0, 0))
    few = read_folder(folder, 2)
    assert ([run.run for run in few.runs], few.unread) == (["train-2", "train-0"], 1)
