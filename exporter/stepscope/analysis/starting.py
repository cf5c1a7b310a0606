"""Starts a training command under `stepscope run` without waiting for its end, as notebooks do."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import read_file, remove
from stepscope.runs.recording.files import holds_recording, new_directory

OUTPUT = "output.log"  # of the command and of `stepscope run`, in the folder of the run
OUTPUT_BYTES = 1 << 20  # that are read for the reason of a failure
LOOK_AGAIN = 0.05  # seconds until it is checked again whether the recording began


def start_run(
    command: Sequence[str], name: str, flags: Sequence[str]
) -> tuple[Path, subprocess.Popen[bytes]]:
    """Returns the folder of a recording that has begun, and the process of `stepscope run`.

    The process outlives an interrupt and the end of the notebook's kernel, as a job does.
    Raises UserError with its words if it ends before it records.
    """
    folder = new_directory(name)
    try:
        folder.mkdir(0o755, parents=True)
    except OSError as error:
        raise UserError(
            f"cannot record in {folder}: {error.strerror}; change to a directory that can be written to"
        ) from error
    run = [sys.executable, "-m", "stepscope", "run", "--no-status-line", "--out", str(folder)]
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [*run, "--name", name, *flags, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while not holds_recording(folder):
        if process.poll() is not None and not holds_recording(folder):
            raise UserError(_last_line(folder))
        time.sleep(LOOK_AGAIN)
    return folder, process


def _last_line(folder: Path) -> str:
    """Returns the reason why nothing was recorded, and removes the folder."""
    lines = read_file(folder / OUTPUT, OUTPUT_BYTES).decode(errors="replace").split("\n")
    remove(folder / OUTPUT)
    remove(folder)
    said = [line for line in lines if line.strip()]
    return said[-1].removeprefix("stepscope: ") if said else "stepscope run ended without a word"
