"""What `stepscope run` shows on a terminal, next to the output of the command."""

import re
from functools import partial
from pathlib import Path

import pytest
from stepscope.commands.run.pulse import Pulse
from stepscope.commands.run.status_line import fitting

from tests.support.smallest import smallest
from tests.support.terminal import Terminal, on_terminal

LOOP = """
import select, sys, time, stepscope
def step():
    with stepscope.step("train"), stepscope.component("data_wait"):
        time.sleep(0.01)
for number in range(300):
    step()
    while number == 150 and not select.select([sys.stdin], [], [], 0)[0]:
        step()  # until somebody has seen its row
    print(f"epoch {number} of the training", flush=True)
    for percent in range(0, 101, 50):
        print(f"\\r{percent:3} %|####", end="", flush=True)
    print("", flush=True)
"""


@pytest.mark.parametrize("columns", smallest([80, 140], {0}))
def test_the_last_row_has_the_status_and_the_output_above_it_is_whole(tmp_path: Path, columns: int) -> None:
    terminal = Terminal(on_terminal(tmp_path, LOOP, "--steps", "300"), tmp_path, columns)
    terminal.until(lambda: " steps/s" in terminal.screen.row(23))
    status = terminal.screen.row(23)
    assert re.match(r"(… collecting|▲ \w+(, \w+)*)  step \d", status), status
    assert " of 300  " in status
    assert len(status) < columns
    terminal.type("\n")
    assert terminal.status() == 0
    lines = terminal.screen.text
    assert [line for line in lines if line.startswith("epoch")] == [
        f"epoch {number} of the training" for number in range(300)
    ]
    assert lines.count("100 %|####") == 300
    assert not any("steps/s" in line for line in lines), "the row is the command's again"
    assert all(len(line) <= columns for line in lines)


@pytest.mark.parametrize("sizes", smallest([[(80, 18), (60, 40)], [(80, 30), (120, 24)]], {0}))
def test_a_terminal_may_change_its_size(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    """The command waits while the size changes, so that no row is on its way."""
    script = """
import time, stepscope
for number in range(90):
    with stepscope.step("train"):
        time.sleep(0.02)
    print(f"epoch {number}", flush=True)
    if number % 30 == 29: input()
"""
    terminal = Terminal(on_terminal(tmp_path, script), tmp_path)
    terminal.until(lambda: " step 30" in terminal.screen.row(23) and "epoch 29\r\n" in terminal.shown)
    for number, (columns, rows) in enumerate(sizes, 1):
        before, last = len(terminal.shown), f"epoch {30 * (number + 1) - 1}"
        terminal.resize(columns, rows)
        terminal.until(partial(has, terminal, before, f"\033[1;{rows - 1}r"))
        assert " step " in terminal.screen.row(rows - 1)
        terminal.type("\n")
        terminal.until(partial(has, terminal, before, f"{last}\r\n"))
    terminal.type("\n")
    assert terminal.status() == 0
    lines = terminal.screen.text
    assert [line for line in lines if line.startswith("epoch")] == [f"epoch {number}" for number in range(90)]
    assert not any(re.search(r" step \d", line) for line in lines), "no row is left in the output"


def has(terminal: Terminal, since: int, text: str) -> bool:
    return text in terminal.shown[since:]


def test_without_a_status_line_nothing_moves_the_cursor_and_no_color_leaves_text_alone(
    tmp_path: Path,
) -> None:
    script = "import time; time.sleep(2); print('trained')"
    terminal = Terminal(on_terminal(tmp_path, script, "--no-status-line"), tmp_path, NO_COLOR="1")
    assert terminal.status() == 0
    assert "\0337" not in terminal.shown
    assert "m" not in {sequence[-1:] for sequence in terminal.shown.split("\033[")[1:]}


def test_parts_that_do_not_fit_are_left_out() -> None:
    assert fitting(["found", "step 12", "GPU 3 %"], 16) == " found  step 12"
    assert fitting(["found", "step 12", "GPU 3 %"], 24) == " found  step 12  GPU 3 %"


METRICS = """\
stepscope_gpu_utilization_ratio{{gpu="0"}} 0.5
stepscope_gpu_utilization_ratio{{gpu="1"}} 0.9
stepscope_run_gpu_info{{run="r",gpu="1",uuid="GPU-1"}} 1
stepscope_run_cpus{{run="r"}} 8
stepscope_run_cpu_limit_cores{{run="r"}} 4
stepscope_run_cpu_seconds_total{{run="r"}} {cpu}
stepscope_step_duration_seconds_count{{run="r",rank="0",phase="train"}} {steps}
stepscope_step_duration_seconds_count{{run="r",rank="1",phase="train"}} {steps}
stepscope_step_duration_seconds_count{{run="r",rank="0",phase="eval"}} 7
stepscope_step_duration_seconds_sum{{run="r",rank="0",phase="train"}} {seconds}
stepscope_step_component_seconds_total{{run="r",rank="0",component="data_wait"}} {waited}
stepscope_step_component_seconds_total{{run="r",rank="0",component="forward"}} 1e6
"""


def test_the_figures_are_of_the_last_seconds_and_of_the_runs_own_gpus() -> None:
    now = 100.0
    totals = {"cpu": 10.0, "steps": 50.0, "seconds": 40.0, "waited": 30.0}
    pulse = Pulse(lambda: METRICS.format(**totals).encode(), lambda: now, 1000)
    assert pulse.parts() == ["step 50 of 1000", "GPU 90 %"]
    now, totals = 110.0, {"cpu": 30.0, "steps": 80.0, "seconds": 50.0, "waited": 32.0}
    assert pulse.parts() == [
        "step 80 of 1000",
        "3 steps/s",
        "ETA 5 min 07 s",
        "GPU 90 %",
        "CPU 50 %",
        "waiting 20 %",
    ]
    assert Pulse(lambda: None, lambda: now).parts() == ["no answer from the exporter"]
