"""`stepscope run` ends with its command's status although the disk of the recording, as NFS may, hangs."""

import sys
from pathlib import Path

import pytest

from tests.support.processes import ran

RUN = """
import sys, time
from stepscope.commands import cli
from stepscope.commands.run import command, hung_disk

def hangs(*_):
    time.sleep(3600)

hung_disk.EVERY_SECONDS = hung_disk.HANGS_AFTER = 0.01
command._complete_recording = hangs
if "hangs" in sys.argv:
    hung_disk.create_file = hangs
else:
    written, create = [], hung_disk.create_file

    def counted(path):
        written.append(path)
        return create(path)

    def until_written(*_):
        while len(written) < 3:
            time.sleep(0.01)

    hung_disk.HANGS_AFTER = 3600
    hung_disk.create_file, command._complete_recording = counted, until_written
sys.exit(cli.main(["run", "--out", sys.argv[1], "--", sys.executable, "-c", "raise SystemExit(7)"]))
"""


@pytest.mark.parametrize("disk", ["hangs", "answers"])
def test_the_status_of_a_command_is_returned_whatever_its_disk_does(disk: str, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    ended = ran([sys.executable, "-c", RUN, str(recording), disk])
    assert ended.returncode == 7
    said = f"the disk under {recording} hangs: the recording and its report are not complete"
    assert (said in " ".join(ended.stderr.split())) == (disk == "hangs")
    assert disk == "hangs" or (recording / "report.html").exists()
    assert not (recording / ".probe").exists()
