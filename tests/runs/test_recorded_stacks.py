"""The stacks of a hang in a recording."""

from pathlib import Path

import pytest
from stepscope.runs.model import RankStack
from stepscope.runs.recording.files import STACKS_FILE, read_stacks, write_stacks


def test_stacks_are_read_as_they_were_written(tmp_path: Path) -> None:
    stacks = (RankStack("node-a", 3, 1.8e9, 'File "train.py", line 3 in step'),)
    write_stacks(tmp_path, stacks)
    assert read_stacks(tmp_path) == stacks


@pytest.mark.parametrize(
    "text",
    [
        "[" * 9000,
        "5",
        "[5]",
        '[{"node": "a", "rank": 1e999, "time": 5, "text": ""}]',
        '[{"node": "a", "rank": 0, "time": NaN, "text": ""}]',
        '[{"node": "a", "rank": 0, "time": 1e300, "text": ""}]',
        '[{"node": "a", "rank": 0, "time": -1e18, "text": ""}]',
    ],
)
def test_a_damaged_file_costs_only_itself(tmp_path: Path, text: str) -> None:
    (tmp_path / STACKS_FILE).write_text(text)
    assert read_stacks(tmp_path) == ()
