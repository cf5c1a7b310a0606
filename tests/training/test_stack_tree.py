"""Whole stacks: which functions they name, how a tree counts them, and what a full one loses."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.line_files import read_line_file
from stepscope.training import line_layout as layout
from stepscope.training.line_layout import SEPARATOR
from stepscope.training.line_names import LineNames
from stepscope.training.line_table import LineTable
from stepscope.training.main_stack import Frame

OWN = str(Path.cwd() / "train.py")
TRAIN: Frame = (OWN, 30, "<module>")
TORCH = str(Path(sys.prefix) / "lib/python3/site-packages/torch")
IMPORTS: Frame = ("<frozen importlib._bootstrap>", 1, "_find_and_load")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([TRAIN], ["train.py:30"]),
        (
            [TRAIN, (f"{TORCH}/nn/modules/module.py", 7, "_call_impl"), (OWN, 12, "Net.forward")],
            ["train.py:30", "Net.forward, train.py:12"],
        ),
        (  # an import of a library ends the stack,
            [TRAIN, IMPORTS, IMPORTS, (f"{TORCH}/__init__.py", 3, "<module>"), (f"{TORCH}/a.py", 1, "f")],
            ["train.py:30", "import", "torch.<module>"],
        ),
        (  # that of a file of the user's own does not
            [TRAIN, IMPORTS, (str(Path.cwd() / "data.py"), 3, "<module>"), (f"{TORCH}/a.py", 1, "f")],
            ["train.py:30", "import", "data.py:3", "torch.a.f"],
        ),
        (
            [(OWN, 3, "parent"), ("/usr/lib/python3/multiprocessing/process.py", 1, "_bootstrap"), TRAIN],
            ["train.py:30"],
        ),
        ([], [""]),
    ],
)
def test_a_stack_names_what_a_reader_knows_outermost_first(frames: list[Frame], expected: list[str]) -> None:
    assert LineNames().whole(frames[::-1]).split(SEPARATOR) == expected


def counted(
    tmp_path: Path, samples: Sequence[tuple[int, str, float]], nodes: int
) -> dict[tuple[str, ...], float]:
    table = LineTable(slots=8, nodes=nodes)
    for code, stack, ticks in samples:
        table.count(code, "train.py:1\n\n\n\n", 0, ticks, stack)
    table.publish(str(tmp_path), 1e9)
    return read_line_file(Path(table.path)).counts.stacks


def test_stacks_are_counted_by_part_of_the_run_and_long_steps_are_no_other_part(tmp_path: Path) -> None:
    forward = 16 * layout.FIRST_PHASE + 2
    samples = [(forward, "a\nb", 2), (forward + layout.LONG, "a\nb", 3), (0, "a", 1)]
    assert counted(tmp_path, samples, 16) == {("train", "forward", "a", "b"): 5, ("", "", "a"): 1}


def test_a_full_tree_counts_new_stacks_as_far_as_it_knows_them(tmp_path: Path) -> None:
    samples = [(0, "a\nb", 1.0), *((0, f"a\nc{number}", 1.0) for number in range(100)), (16, "d", 7.0)]
    stacks = counted(tmp_path, samples, nodes=5)  # one of them is for what has none
    assert stacks == {
        ("", "", "a", "b"): 1,
        ("", "", "a", "c0"): 1,
        ("", "", "a", "c1"): 1,
        ("", "", "a"): 98,
        ("", ""): 7,
    }


def test_samples_that_move_to_another_part_take_their_stacks_along(tmp_path: Path) -> None:
    table = LineTable(slots=8, nodes=16)
    place = "train.py:1\n\n\n\n"
    table.count(32, place, 0, 5, "a\nb")
    table.move(32, place, 0, 4, 16 * layout.FINALIZATION, "a\nb")
    table.publish(str(tmp_path), 1e9)
    counts = read_line_file(Path(table.path)).counts
    assert counts.stacks == {("train", "", "a", "b"): 1, ("finalization", "", "a", "b"): 4}
    assert counts.ticks == 5
