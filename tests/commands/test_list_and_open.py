"""`stepscope list` and `open` as they are typed, over folders that are whole, damaged, foreign or empty."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.common.status import Status
from stepscope.report import run_list
from stepscope.report.run_list import source_of
from stepscope.report.write import write_report
from stepscope.runs.recording.files import folders

from tests.support import analysis as made
from tests.support.processes import ran
from tests.support.run_folder import START, recorded, reported
from tests.support.terminal import SEQUENCE, Terminal

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """What a command exits with and prints."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for runs in the current directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stepscope-runs"
    folder.mkdir()
    return folder


def test_the_newest_run_is_first_with_state_verdict_cost_and_trend(runs: Path, typed: Typed) -> None:
    reported(runs, "train-1", 0)
    reported(runs, "train-2", 1000, step=0.25, price=14.4)
    status, out, err = typed("list")
    assert (status, err) == (0, "")
    heading, newest, verdict, oldest, below = out.splitlines()
    assert heading.split() == ["State", "Start", "(UTC)", "Duration", "Step", "Change", "Cost"]
    assert newest.split()[:2] == ["▲", "found"]
    assert "250 ms  −50.0 %  $" in newest
    assert oldest.split()[-2:] == ["–", "–"], "the first run has no trend, and no price was given"
    document = json.loads((runs / "train-2" / "report.json").read_text())
    assert verdict == f"  train-2: {document['verdict']['sentences'][0]}"
    assert below.startswith("  train-1: ")


def test_every_state_is_known_without_a_report(runs: Path, typed: Typed) -> None:
    recorded(runs, "well", 0)
    recorded(runs, "failed", 1, exit_status=3)
    recorded(runs, "killed", 2, end=False)
    (recorded(runs, "exported", 4, end=False) / "node-a").mkdir()
    exporter = os.open(runs / "exported" / "node-a" / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(exporter, fcntl.LOCK_EX)  # as the exporter of a node does
    running = os.open(recorded(runs, "running", 3, end=False) / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(running, fcntl.LOCK_EX)  # as `stepscope run` does
    try:
        _, out, _ = typed("list", "--json")
    finally:
        os.close(running)
        os.close(exporter)
    found = {Path(run["directory"]).name: (run["status"], run["verdict"]) for run in json.loads(out)["runs"]}
    assert found == {
        "exported": (Status.COLLECTING, "In progress."),
        "running": (Status.COLLECTING, "In progress."),
        "killed": (
            Status.NOT_ENOUGH_DATA,
            "Its end was not recorded. No report was written: `stepscope report` writes it.",
        ),
        "failed": (
            Status.FAILED,
            "Failed: exit status 3. No report was written: `stepscope report` writes it.",
        ),
        "well": (Status.NOT_ENOUGH_DATA, "No report was written: `stepscope report` writes it."),
    }


DAMAGED = [
    ("run.json", "{", "run.json is damaged"),
    ("run.json", '{"format": 99}', "use the one that wrote it"),
    ("run.json", '{"format": 1, "name": "a", "start": 1e300}', "run.json is damaged"),
    ("run.json", '{"format": 1, "name": "a", "end": NaN}', "run.json is damaged"),
    ("report.json", "[1]", "is not a report of Stepscope"),
    ("report.json", '{"run": {}, "verdict": 3}', "is not a report of Stepscope"),
    ("report.json", '{"run": {}, "verdict": {"status": "splendid"}}', "is not a report of Stepscope"),
    (
        "report.json",
        '{"run": {"name": "a", "run": "a", "start": 1e300, "seconds": 1, "exit_status": 0}, "steps": [], '
        '"verdict": {"status": "healthy", "sentences": []}}',
        "is not a report of Stepscope",
    ),
    (
        "report.json",
        '{"run": {"name": "a", "run": "a", "start": 1, "seconds": 1, "exit_status": 1e999}, "steps": [], '
        '"verdict": {"status": "healthy", "sentences": []}}',
        "is not a report of Stepscope",
    ),
    ("report.json", "\xff" * 5, "cannot be read"),
    ("notes.txt", "buy milk", "is not a run"),
]


def test_damaged_foreign_and_unreadable_folders_cost_one_line_each(runs: Path, typed: Typed) -> None:
    reported(runs, "train-1", 0)
    (runs / "a file").write_text("is no folder")
    reasons: list[str] = []

    def other(file: str, why: str) -> Path:
        folder = runs / f"other\x1b[31m{len(reasons):02}"
        folder.mkdir()
        reasons.append(why)
        return folder / file

    for file, content, why in DAMAGED:
        other(file, why).write_bytes(content.encode("latin-1"))
    for file in ("run.json", "report.json"):  # as another user may make them
        os.mkfifo(other(file, file))
        other(file, file).symlink_to(runs / "train-1" / file)
        endless = other(file, file)
        endless.touch()
        os.truncate(endless, 1 << 40)  # sparse
    status, out, err = typed("list")
    assert (status, out.count("train-1: "), out.count("other")) == (0, 1, 0)
    lines = sorted(err.splitlines())
    assert [line.partition("[31m")[2][:2] for line in lines] == [f"{n:02}" for n in range(len(reasons))]
    for line, why in zip(lines, reasons, strict=True):
        assert line.startswith("stepscope: other")
        assert why in line
        assert "\x1b" not in line
    assert f"{len(reasons)} folders left out" in (runs / "index.html").read_text(encoding="utf-8")


def test_a_folder_that_is_removed_meanwhile_costs_itself(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported(runs, "train-1", 0)
    monkeypatch.setattr(run_list, "folders", lambda folder: [*folders(folder), folder / "removed"])
    found = run_list.read_folder(runs)
    assert [run.directory.name for run in found.runs] == ["train-1"]
    assert found.unreadable == {"removed": "is not a run: it has neither run.json nor report.json"}


def test_a_name_that_is_no_utf_8_and_a_terminal_that_is_ascii_cost_nothing(runs: Path) -> None:
    name, link = "train-\udcff", "train-%FF/report.html"
    reported(runs, name, 0)
    newest = reported(runs, "train-é", 1000)
    assert f'"../{link}"' in (newest / "report.html").read_text()
    assert f'"{link}"' in (runs / "index.html").read_text()
    both = f"stepscope-runs/{name}", str(newest)
    listed, of_list, opened, compared, reported_again, markdown = printed(
        ["list"],
        ["list", "--json"],
        ["open", "--print", "train-é"],
        ["compare", *both, "--format", "json"],
        ["report", str(newest), "--format", "json"],
        ["report", str(newest), "--format", "markdown"],
    )
    assert "\\xe9: " in listed
    found = [run["directory"] for run in json.loads(of_list)["runs"]]
    assert found == ["stepscope-runs/train-é", f"stepscope-runs/{name}"]
    assert opened.endswith("train-\\xe9/report.html\n")
    assert [json.loads(compared)[each]["source"] for each in "ab"] == [*both]
    assert json.loads(reported_again)["verdict"]["sentences"]
    assert markdown.startswith("## Training run ")


# Types commands one after the other, as if each were the only one of its process.
TYPES = """
import sys
from stepscope.commands.cli import main
for sys.argv[1:] in {}:
    assert main() == 0
    print(end="\\0")
"""


def printed(*typed: list[str]) -> list[str]:
    """Returns what commands print on a terminal that is ASCII."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = ran([sys.executable, "-c", TYPES.format(ascii(typed))], env=environment, check=True)
    return ended.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("gauges", "loss"),
    [({"lr": 1, "train/loss": 0.25}, "0.25"), ({"loss": None}, "not finite"), ({"lr": 1}, "")],
)
def test_the_last_loss_is_a_column_if_some_run_has_one(
    runs: Path, typed: Typed, gauges: dict[str, float | None], loss: str
) -> None:
    reported(runs, "train-1", 0)
    path = runs / "train-1" / "report.json"
    document = json.loads(path.read_text())
    document["run"]["gauges"] = gauges
    path.write_text(json.dumps(document))
    heading, figures, _ = typed("list")[1].splitlines()
    assert heading.endswith("Loss") == bool(loss)
    assert figures.endswith(f"  {loss}" if loss else "–")
    assert json.loads(typed("list", "--json")[1])["runs"][0]["loss"] == (loss or None)
    assert (f"loss {loss}" in (runs / "index.html").read_text()) == bool(loss)


def test_json_for_scripts_has_null_for_what_is_not_known(runs: Path, typed: Typed) -> None:
    reported(runs, "train-1", 0)
    (run,) = json.loads(typed("list", "--json")[1])["runs"]
    assert run["report"] == "stepscope-runs/train-1/report.html"
    assert run["start"] == START
    assert (run["step_seconds"], run["step_change"], run["cost"]) == (0.5, None, None)


def test_only_the_newest_are_listed_on_request(runs: Path, typed: Typed) -> None:
    for number in range(3):
        recorded(runs, f"train-{number}", number)
    listed = json.loads(typed("list", "-n", "2", "--json")[1])["runs"]
    assert [run["run"] for run in listed] == ["train-2", "train-1"]


def test_without_runs_it_says_how_to_start_one(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "There are no runs in stepscope-runs. Start one: stepscope run -- python train.py\n"
    assert typed("list") == (0, hint, "")
    assert typed("open")[0] == 2
    assert list(tmp_path.iterdir()) == []
    status, _, err = typed("list", "nowhere")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "nowhere" in err


def test_a_folder_with_another_name_gets_an_index_only_on_request(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    reported(folder, "train-1", 0)
    (tmp_path / "index.html").write_text("somebody's")
    typed("list", "mine")
    assert not (folder / "index.html").exists()
    assert typed("open", "mine", "--print")[1] == f"{folder / 'index.html'}\n"
    reported(folder, "train-2", 1)
    assert "train-2" in (folder / "index.html").read_text(encoding="utf-8"), "now every report refreshes it"
    write_report(made.slow_loader(), folder)
    assert (tmp_path / "index.html").read_text() == "somebody's"


def test_a_report_opens_by_default_by_name_and_by_path(
    runs: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    old, new = reported(runs, "train-1", 0), reported(runs, "train-2", 1)
    recorded(runs, "eval-1", 2)
    words: tuple[str, ...]
    for words, page in (
        ((), new / "report.html"),
        (("train-1",), old / "report.html"),
        (("stepscope-runs/train-2",), new / "report.html"),
        (("stepscope-runs",), runs / "index.html"),
    ):
        assert typed("open", *words) == (0, f"{page}\n", "")
        assert opened.pop() == page.as_uri()
    for word, why in (
        ("eval", "has no report yet"),
        ("tran-1", "did you mean train-1?"),
    ):
        status, _, err = typed("open", word)
        assert (status, len(err.splitlines())) == (2, 1)
        assert why in err
    assert opened == []


def test_a_name_and_a_beginning_mean_the_newest_run(runs: Path, typed: Typed) -> None:
    new = reported(runs, "b-of-tuesday", 1000)
    reported(runs, "a-of-monday", 0)
    reported(runs, "b-of-monday", 10)
    assert typed("open", "--print", "train")[1] == f"{new / 'report.html'}\n"
    assert typed("open", "--print", "b-of")[1] == f"{new / 'report.html'}\n"
    assert typed("open", "--print", "b-of-monday")[1] == f"{runs / 'b-of-monday' / 'report.html'}\n"


def test_report_and_compare_find_runs_by_name(runs: Path) -> None:
    reported(runs, "train-1", 0)
    new = reported(runs, "train-2", 1000)
    assert source_of("train") == str(Path("stepscope-runs") / new.name)
    address, path = "prometheus+http://host:9090?run=train", "stepscope-runs/train-1"
    assert [source_of(text) for text in (address, path)] == [address, path]
    with pytest.raises(UserError, match="did you mean train-1"):
        source_of("tran-1")


def test_without_a_browser_the_path_is_enough(
    runs: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    page = reported(runs, "train-1", 0) / "report.html"
    status, out, err = typed("open")
    assert (status, out) == (0, f"{page}\n")
    assert err == "stepscope: no browser could be started here; open the file above in yours\n"


def test_compare_takes_the_newest_run_and_the_one_before(runs: Path, typed: Typed) -> None:
    assert typed("compare")[0] == 2
    recorded(runs, "train-1", 0)
    assert "has no run before it with the name train" in typed("compare")[2]
    recorded(runs, "train-2", 1000)
    recorded(runs, "train-3", 2000)
    for words, after in ((["compare"], 3), (["compare", "train-3"], 3), (["compare", "train-2"], 2)):
        document = json.loads(typed(*words, "--format", "json")[1])
        assert document["a"]["source"] == f"stepscope-runs/train-{after - 1}"
        assert document["b"]["source"] == f"stepscope-runs/train-{after}"


@pytest.mark.parametrize("columns", [80, 140])
def test_a_terminal_gets_colours_and_lines_of_its_width(runs: Path, columns: int) -> None:
    reported(runs, "train-1", 0)
    reported(runs, "train-7f3a90c1-20261123T070103Z", 1000, step=0.25, price=14.4)
    recorded(runs, 100 * "x", 2000, exit_status=3)
    command = [sys.executable, "-m", "stepscope", "list"]
    terminal = Terminal(command, runs.parent, columns, NO_COLOR="")
    assert terminal.status() == 0, terminal.shown
    assert "\033[1;31m✕ failed\033[0m" in terminal.shown
    assert "\033[1;33m▲ found\033[0m" in terminal.shown
    lines = [SEQUENCE.sub("", line) for line in terminal.shown.replace("\r", "").split("\n")]
    assert max(len(line) for line in lines if 100 * "x" not in line) <= columns
