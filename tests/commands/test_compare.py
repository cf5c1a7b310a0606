"""`stepscope compare` as it is typed: what it prints and writes, and what it exits with."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from stepscope.commands.cli import main

from tests.support.backfill import every_scenario, run_of
from tests.support.processes import ran
from tests.support.prometheus import needs_prometheus
from tests.support.rented_nodes import rented_nodes
from tests.support.scenarios import WrittenScenarios


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


Compare = Callable[..., Result]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Compare:
    """What the command does with these words."""

    def run(*words: str | Path) -> Result:
        status = main(["compare", *map(str, words)])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The published case: 3 nodes for 503 s, then 2 smaller ones for 502 s."""
    folder = tmp_path_factory.mktemp("published")
    return rented_nodes(folder / "before", 3, 503), rented_nodes(folder / "after", 2, 502)


SAME_WORK = ("--workload-a", "1000", "--workload-b", "1000")
PRICES = ("--price-a", "14.688", "--price-b", "3.825")


def test_the_published_case_saves_what_was_published(compare: Compare, published: tuple[Path, Path]) -> None:
    result = compare(*published, *PRICES)
    assert (result.returncode, result.stderr) == (0, "")
    assert "it saves $5.09, 82.6 %." in result.stdout
    (cost,) = [line for line in result.stdout.splitlines() if line.startswith("Cost")]
    assert cost.split()[-4:] == ["$6.16", "$1.07", "−82.6", "%"]


def test_the_page_is_written_and_the_verdict_and_its_path_printed(
    compare: Compare, published: tuple[Path, Path], tmp_path: Path
) -> None:
    page = tmp_path / "comparison.html"
    result = compare(*published, *PRICES, "--out", page)
    assert result.returncode == 0, result.stderr
    first, *_, last = result.stdout.splitlines()
    assert first == "B took 8 min 22 s instead of 8 min 23 s; it saves $5.09, 82.6 %."
    assert last == str(page)
    assert len(result.stdout.splitlines()) < 10
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().startswith("<!doctype html>")
    assert "it saves $5.09, 82.6\u00a0%." in text
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.html"]


@pytest.mark.parametrize(
    ("ending", "flags", "begins"),
    [
        (".json", (), "{\n"),
        (".md", (), "## B took"),
        (".txt", (), "A  published"),
        (".html", ("--format", "markdown"), "## B took"),
        ("", (), "<!doctype html>"),
    ],
)
def test_the_form_is_told_by_a_flag_or_by_the_files_ending(
    compare: Compare,
    published: tuple[Path, Path],
    tmp_path: Path,
    ending: str,
    flags: tuple[str, ...],
    begins: str,
) -> None:
    file = tmp_path / f"comparison{ending}"
    assert compare(*published, "--out", file, *flags).returncode == 0
    assert file.read_text(encoding="utf-8").lstrip().startswith(begins)


def test_without_a_file_the_document_alone_is_printed(compare: Compare, published: tuple[Path, Path]) -> None:
    result = compare(*published, *PRICES, *SAME_WORK, "--format", "json", "--fail-if", "cost>+1%")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert document["figures"]["cost"]["a"] == pytest.approx(3 * 503 / 3600 * 14.688)
    assert document["conditions"] == [
        {"fail_if": "cost>+1%", "state": "passed", "reason": "−82.6 %, not above +1.0 %"}
    ]


def test_a_gate_that_fails_exits_with_1_and_the_reason(
    compare: Compare, published: tuple[Path, Path], tmp_path: Path
) -> None:
    before, after = published
    flags = (
        "--price-a",
        "3.825",
        "--price-b",
        "14.688",
        "--fail-if",
        "cost>+3%",
        "--fail-if",
        "step_p50>+3%",
    )
    result = compare(after, before, *flags, *SAME_WORK, "--out", tmp_path / "gate.html")
    assert result.returncode == 1, "a condition that fails outweighs one that is inconclusive"
    assert result.stderr == (
        "stepscope: failed: cost>+3%: +476 %, above +3.0 %\n"
        "stepscope: inconclusive: step_p50>+3%: neither run has it\n"
    )
    assert "1 failed and 1 inconclusive of 2 conditions." in (tmp_path / "gate.html").read_text(
        encoding="utf-8"
    )


def test_an_inconclusive_gate_exits_with_3(compare: Compare, published: tuple[Path, Path]) -> None:
    result = compare(*published, "--fail-if", "step_p50>+3%")
    assert result.returncode == 3
    assert result.stderr == "stepscope: inconclusive: step_p50>+3%: neither run has it\n"


def test_whole_runs_without_steps_are_compared_once_the_workload_is_given(
    compare: Compare, published: tuple[Path, Path]
) -> None:
    unknown = compare(*published, "--fail-if", "duration>+3%")
    assert unknown.returncode == 3
    assert "give the items that each processed: `--workload-a N --workload-b N`." in unknown.stdout
    assert "not known whether both did the same work" in unknown.stderr
    told = compare(*published, "--fail-if", "duration>+3%", *SAME_WORK)
    assert (told.returncode, told.stderr) == (0, "")
    assert "--workload" not in told.stdout
    twice = compare(*published, "--fail-if", "item_mean>+3%", "--workload-a", "100", "--workload-b", "50")
    assert twice.returncode == 1
    assert "B processed 50 items and A 100: different work" in twice.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--fail-if", "step_p50>3%"), "+3%"),
        (("--fail-if", "cost>+3%"), "--price-a and --price-b"),
        (("--fail-if", "cost>+3%", "--price-a", "1"), "--price-a and --price-b"),
        (("--price-a", "many"), "'many' is not a price"),
        (("--price-b", "-3"), "is not a price"),
        (("--workload-a", "0"), "'0' is not a number of items"),
        (("--out", "missing/comparison.html"), "there is no directory missing"),
        (("--out", "."), "is a directory"),
        (("--format", "pdf"), "invalid choice"),
        (("--set", "Nothing.threshold=3"), "there is no rule 'Nothing'"),
    ],
)
def test_a_mistake_is_one_line_with_status_2_and_writes_nothing(
    compare: Compare,
    published: tuple[Path, Path],
    tmp_path: Path,
    words: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = compare(*published, *words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named_before_a_run_is_read(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # as on a read-only file system
    result = compare(tmp_path / "a", tmp_path / "b", "--out", str(tmp_path / "comparison.html"))
    assert result.returncode == 2
    assert f"{tmp_path} cannot be written to; choose another file with --out" in result.stderr


@pytest.mark.parametrize("position", [0, 1])
def test_a_source_that_is_none_is_named(
    compare: Compare, published: tuple[Path, Path], tmp_path: Path, position: int
) -> None:
    sources = list(published)
    sources[position] = tmp_path / "nowhere"
    result = compare(*sources)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"{tmp_path / 'nowhere'}" in result.stderr


def test_help_names_every_figure_and_as_a_process_it_warns_of_nothing() -> None:
    result = ran([sys.executable, "-W", "error", "-m", "stepscope", "compare", "--help"])
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("step_p50", "throughput", "cost_per_1000_steps", "gpu_memory", "any_rule", "examples:"):
        assert word in result.stdout


def test_a_scenario_gates_and_is_as_good_from_debuggers_output(
    compare: Compare, scenarios: WrittenScenarios
) -> None:
    """A slow run after a fast one fails; one recording against Debugger's output of the same run does not."""
    slow, healthy = scenarios.written("few-dataloaders"), scenarios.written("healthy")
    conditions = ("--fail-if", "step_p50>+3%", "--fail-if", "DataStarved", "--fail-if", "gpu_p95<60")
    worse = compare(healthy.recording_directory, slow.recording_directory, *conditions)
    assert worse.returncode == 1
    said = worse.stderr.splitlines()
    assert [line.split(": ")[2] for line in said] == ["step_p50>+3%", "DataStarved", "gpu_p95<60"]
    same = compare(slow.recording_directory, slow.debugger_directory, "--fail-if", "step_p50>+3%")
    assert same.returncode == 0, same.stderr


@needs_prometheus
def test_a_run_in_prometheus_is_compared_with_its_recording_and_no_password_is_shown(
    compare: Compare, scenarios: WrittenScenarios, tmp_path: Path
) -> None:
    with every_scenario(tmp_path).serving() as server:
        host = server.url.removeprefix("http://")
        place = f"prometheus+http://anna:secret@{host}?run={run_of('few-dataloaders')}"
        recording = scenarios.written("few-dataloaders").recording_directory
        result = compare(place, recording, "--format", "json", "--fail-if", "step_mean>+3%")
    assert result.returncode == 0, result.stderr
    assert "secret" not in result.stdout
    document = json.loads(result.stdout)
    assert document["figures"]["step_mean"]["change"] == pytest.approx(0, abs=0.01)
    assert any("Single steps are not in Prometheus" in said for said in document["a"]["unknowns"])
