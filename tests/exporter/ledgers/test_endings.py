"""How a run ended, as `stepscope run` tells its exporter."""

import os
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.presence import UNSAID, ending, tell_ending

ME = os.geteuid()


@pytest.mark.parametrize("reason", ["finished", "exit status 7", "signal SIGKILL", "out of memory"])
def test_what_was_told_is_how_the_run_ended(reason: str, tmp_path: Path) -> None:
    assert ending(tmp_path, "resnet-1", ME) == UNSAID
    tell_ending(tmp_path, "resnet-1", reason)
    assert ending(tmp_path, "resnet-1", ME) == reason
    assert ending(tmp_path, "resnet-2", ME) == UNSAID


def test_nobody_else_can_say_how_a_run_ended(tmp_path: Path) -> None:
    tell_ending(tmp_path, "resnet", "finished")
    (file,) = tmp_path.iterdir()
    if ME == 0:
        os.chown(file, 1234, 1234)
        assert ending(tmp_path, "resnet", 1234) == "finished"
        assert ending(tmp_path, "resnet", 4321) == UNSAID
    file.unlink()
    (tmp_path / "elsewhere").write_text("finished")
    file.symlink_to("elsewhere")
    assert ending(tmp_path, "resnet", ME) == UNSAID


@pytest.mark.parametrize(
    "text", ["", "failed", "finished\n", 'x"} 1', "exit status 99999", "signal SIG" + "X" * 99]
)
def test_other_words_are_not_published(text: str, tmp_path: Path) -> None:
    tell_ending(tmp_path, "resnet", text)
    assert ending(tmp_path, "resnet", ME) == UNSAID
