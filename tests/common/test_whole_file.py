"""Files that are written whole."""

from pathlib import Path

import pytest
from stepscope.common import whole_file
from stepscope.common.whole_file import write_whole


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_file, "DEVICES", tmp_path)
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    write_whole(null, "a report\n")
    assert list(tmp_path.iterdir()) == [null]
    assert null.is_char_device()
