"""Ranks that others wait for, under `stepscope run`: report, terminal and `stepscope stacks` name them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from stepscope.commands.cli import main
from stepscope.commands.run.on_findings import HangStacks
from stepscope.runs.recording.files import read_stacks

from tests.support.pytorch import needs_torch
from tests.support.ranks import launcher
from tests.support.waiting import wait_until

pytestmark = needs_torch

FLAGS = ("--stacks", "--set", "CollectiveHang.threshold=0.25", "--live-interval", "1s")

# An unmodified script: rank 1 stays in its data loader until the file is there, and rank 0 waits in backward.
SCRIPT = """
import gc, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        while int(os.environ["RANK"]) == 1 and index >= 80 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        return torch.ones(8)

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for number, batch in enumerate(DataLoader(Data(), batch_size=4)):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if number > 40:
        break
del model
gc.collect()
dist.destroy_process_group()
"""

# Rank 1 comes late to the start of the process group. Then it trains without an end.
LATE = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

while os.environ["RANK"] == "1" and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def observed(folder: Path, script: str, *flags: str) -> subprocess.Popen[str]:
    """Starts two ranks of a script under `stepscope run`. They get the path of the file `go`."""
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "STEPSCOPE_LEDGER_DIR"):
        environment.pop(name, None)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "stepscope", "run", *FLAGS, "--out", str(folder / "out"), *flags),
            *("--", *launcher(2), "train.py", str(folder / "go")),
        ],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def test_the_report_has_the_missing_rank_and_its_stack(tmp_path: Path) -> None:
    out, go = tmp_path / "out", tmp_path / "go"
    with observed(tmp_path, SCRIPT) as run:
        assert run.stderr is not None
        said = ""
        for line in run.stderr:
            said += line
            if "CollectiveHang: " in line:
                break
        stacks = json.loads((out / "stacks.json").read_text())
        go.touch()
        said += run.stderr.read()
        assert run.wait() == 0, said
    assert "has been in the data loader for" in said
    assert "1 rank waits for it in backward" in said
    (stack,) = stacks
    assert stack["rank"] == 1
    assert "in __getitem__" in stack["text"]
    page = (out / "report.html").read_text()
    assert "Where every rank was" in page
    assert "in __getitem__" in page
    details = json.loads((out / "profiler-reports" / "CollectiveHang.json").read_text())["Details"]
    assert (details["rank"], details["component"]) == (1, "data_wait")


def test_a_rank_that_comes_late_is_stopped_and_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, name = tmp_path / "out", f"late-{os.getpid()}"

    def ranks() -> list[list[str]]:
        """Returns the rows of `stepscope stacks`: rank, process, state, where, ..., steps."""
        main(["stacks", name, "--no-stacks"])
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    def steps_of_late() -> int:
        """Returns the steps of rank 1; 0 before its row has a number."""
        rows = ranks()
        return int(rows[1][-1]) if len(rows) == 2 and rows[1][-1].isdigit() else 0

    with observed(tmp_path, LATE, "--name", name) as run:
        assert run.stderr is not None
        line = next(line for line in run.stderr if "CollectiveHang: " in line)
        assert "1 of 2 ranks has waited in init_process_group for" in line
        assert "the other ranks are on nodes that were not observed, or never came this far" in line
        (waiting,) = ranks()
        assert (waiting[0], waiting[2:5]) == ("0", ["waiting", "communication:", "init_process_group"])

        (tmp_path / "go").touch()
        wait_until(lambda: steps_of_late() > 20)
        pid = int(ranks()[1][1])
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: "is stopped (SIGSTOP or a debugger)" in (out / "report.html").read_text())
        waiting, stopped = ranks()
        assert waiting[3:5] == ["communication:", "gradients"]
        assert stopped[2] == "stopped"

        steps = int(stopped[-1])
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: steps_of_late() > steps)
        os.kill(pid, signal.SIGKILL)
        run.stderr.read()
        assert run.wait() == 1, "the status of the launcher, which ends the other rank"
    details = json.loads((out / "profiler-reports" / "CollectiveHang.json").read_text())["Details"]
    hangs = [
        [(rank["rank"], rank["operation"] if rank["waits"] else rank["state"]) for rank in hang["ranks"]]
        for hang in details["hangs"]
    ]
    # The report knows what nobody could see then: the other rank's process had begun before.
    assert [(0, "init_process_group"), (1, "")] in hangs
    # There may be more on a busy machine, such as rank 0 that is late for DDP, or for its end.
    assert [(0, "gradients"), (1, "stopped")] in hangs


def test_stacks_of_eight_ranks_are_taken_and_then_nothing_is_new(tmp_path: Path) -> None:
    ranks = [{"rank": rank, "node": "node-1", "waits": False} for rank in range(10)]
    hang = SimpleNamespace(details_of=lambda _: {"hangs": [{"end": None, "ranks": ranks}]})
    stacks = HangStacks(tmp_path, tmp_path)
    assert stacks.update(hang)  # type: ignore[arg-type]
    assert not stacks.update(hang)  # type: ignore[arg-type]
    assert [each.rank for each in read_stacks(tmp_path)] == list(range(8))
