"""`stepscope.analysis.start`: a training goes on next to the notebook, and its run is there at once."""

import sys
from pathlib import Path

import psutil
import pytest
import stepscope.analysis
from stepscope.analysis import Run, UserError
from stepscope.analysis.starting import OUTPUT
from stepscope.runs.recording.files import RUNS

STEPS = """
import sys, time, stepscope
print("began", flush=True)
for _ in range(30):
    with stepscope.step():
        time.sleep(0.002)
while "--forever" in sys.argv:
    time.sleep(1)
"""


def kill(run: Run) -> None:
    """Ends `stepscope run` and all that it has started, without a chance to say so."""
    assert run.process is not None
    try:
        family = psutil.Process(run.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    run.process.kill()
    for process in family:
        process.kill()
    run.process.wait()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STEPS)
    return "train.py"


def test_a_started_run_is_open_while_it_goes_on_and_whole_at_its_end(script: str) -> None:
    run = stepscope.analysis.start(
        [sys.executable, script, "--forever"], name="small", price=3.0, parameters={"StepOutlier.stddev": 2}
    )
    assert run.process is not None
    try:
        assert len(run.wait_for_data("steps").steps()) > 0
        assert not run.finished
        with pytest.raises(UserError, match=r"goes on after 0 s; wait longer with timeout="):
            run.wait_for_end(timeout=0)
        run.process.terminate()
        assert run.wait_for_end().finished
    finally:
        kill(run)
    assert len(run.steps()) == 30
    folder = Path(run.source)
    assert folder.parent == RUNS.absolute()
    assert "began" in (folder / OUTPUT).read_text()
    assert "report.html" in run._repr_html_()
    assert stepscope.analysis.open("small").run == run.run


@pytest.mark.usefixtures("script")
def test_what_does_not_start_is_said_and_leaves_nothing() -> None:
    with pytest.raises(UserError, match=r"^command not found: no-such-program"):
        stepscope.analysis.start(["no-such-program"], name="small")
    assert list(RUNS.glob("small*")) == []
    with pytest.raises(UserError, match=r"^price=-1: is not a price"):
        stepscope.analysis.start([sys.executable], name="small", price=-1)
    with pytest.raises(UserError, match=r"^command='python train.py': is one word; give a list"):
        stepscope.analysis.start("python train.py", name="small")
    RUNS.rmdir()
    RUNS.write_text("")
    with pytest.raises(UserError, match=r"^cannot record in .*: Not a directory; change to a directory"):
        stepscope.analysis.start([sys.executable], name="small")


@pytest.mark.usefixtures("script")
def test_waiting_for_data_of_a_run_that_was_killed_ends() -> None:
    run = stepscope.analysis.start([sys.executable, "-c", "import time; time.sleep(600)"], name="killed")
    kill(run)
    with pytest.raises(UserError, match="has ended without steps"):
        run.wait_for_data("steps")
