"""The log on stderr, whatever is logged."""

import sys

from tests.support.processes import ran
from tests.support.training_script import EXPORTER

LOGS = """
import logging
from stepscope.web.log import log_to_stderr
log_to_stderr("info")
logger = logging.getLogger("test")
"""


def logged(code: str) -> list[str]:
    """Returns the messages of a process, each without its time."""
    done = ran([sys.executable, "-c", LOGS + code], env={"PYTHONPATH": str(EXPORTER)}, check=True)
    return [line.split(" ", 2)[2] for line in done.stderr.split("\n")[:-1]]


def test_the_name_of_a_file_controls_no_terminal() -> None:
    code = r"logger.warning('%s is refused', '/a\x1b[2J\r\n\x9b1mé\udcff.ledger')"
    assert logged(code) == [r"WARNING /a\x1b[2J\r\n\x9b1mé\udcff.ledger is refused"]


def test_a_message_that_cannot_be_written_costs_no_other_one() -> None:
    code = "logger.info('%d', 'many'); logger.info('works')"
    broken, works = logged(code)
    assert "test cannot be written: TypeError: %d format" in broken
    assert works == "INFO works"
