"""`stepscope run` on several nodes of one job: one run, and another one for each launch of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.runs.recording.directory import RecordingDirectory

from tests.support.observing import RUN
from tests.support.waiting import SECONDS

# Instead of PyTorch, whose import takes seconds: a store that the ranks share.
TRAIN = """
import os, sys, time, types

class Store:
    def compare_set(self, key, expected, desired):
        own = f"{os.environ['STORE']}.{os.getpid()}"
        with open(own, "w") as file:
            file.write(desired)
        try:
            os.link(own, os.environ["STORE"])
        except FileExistsError:
            pass
        return open(os.environ["STORE"], "rb").read()

c10d = types.ModuleType("distributed_c10d")
c10d.is_initialized, c10d._get_default_store = lambda: True, Store
sys.modules["torch.distributed.distributed_c10d"] = c10d
import stepscope
for _ in range(40):
    with stepscope.step():
        time.sleep(0.05)
"""
# As static torchrun gives it to two nodes with a rank each; it is the same for each launch.
STATIC = (
    *("WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "GROUP_WORLD_SIZE=2", "LOCAL_RANK=0"),
    *("MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none"),
)


def uts_namespaces() -> bool:
    tried = subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def launch(folder: Path) -> list[Path]:
    """Observes both nodes of a job at the same time. Returns their recordings."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    nodes = []
    for rank in range(2):
        command = [
            *RUN,
            *("--listen", "127.0.0.1:0", "--no-lines", "--out", str(folder / f"node-{rank}"), "--"),
            *("env", f"RANK={rank}", f"GROUP_RANK={rank}", *STATIC, f"STORE={folder / 'store'}"),
            *(sys.executable, str(folder / "train.py")),
        ]
        in_its_node = f'hostname node-{rank}.example && exec "$@"'
        nodes.append(
            subprocess.Popen(
                ["unshare", "--uts", "sh", "-c", in_its_node, "sh", *command],
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"STEPSCOPE_INSTRUMENT": "0"},
            )
        )
    for node in nodes:
        _, errors = node.communicate(timeout=SECONDS)
        assert node.returncode == 0, errors
        assert "the ranks of this run agreed on its label: train-" in errors
    return [folder / "node-0", folder / "node-1"]


def document(directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return report


@pytest.mark.skipif(not uts_namespaces(), reason="needs the right to name a node: unshare --uts")
def test_both_nodes_of_a_launch_record_one_run_and_the_next_launch_is_another(tmp_path: Path) -> None:
    recordings = launch(tmp_path / "one")
    runs = [json.loads((recording / "run.json").read_text())["run"] for recording in recordings]
    assert len(set(runs)) == 1
    for rank, recording in enumerate(recordings):
        source = RecordingDirectory(recording)
        list(source.read())
        facts = source.facts
        assert [(known.node, known.rank, known.world_size) for known in facts.ranks] == [
            (f"node-{rank}", rank, 2)
        ]
        assert facts.label == runs[0]
        assert document(recording)["run"]["run"] == runs[0]
    places = [str(recording) for recording in recordings]
    assert main(["report", *places, "--out", str(tmp_path / "together")]) == 0
    together = document(tmp_path / "together")
    assert together["run"]["run"] == runs[0]
    assert [(row["rank"], row["count"]) for row in together["steps"]] == [(0, 40), (1, 40)]
    assert {row["node"] for row in together["usage"]} >= {"node-0", "node-1"}
    assert json.loads((launch(tmp_path / "another")[0] / "run.json").read_text())["run"] != runs[0]
