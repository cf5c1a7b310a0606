"""The Python stacks that were taken of ranks during a hang: stacks.json in the directory of a recording."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from stepscope.common.shared_files import read_file
from stepscope.common.whole_file import write_whole
from stepscope.runs.malformed import MALFORMED, moment, whole
from stepscope.runs.model import RankStack

FILE = "stacks.json"
MOST_BYTES = 16 << 20


def write_stacks(directory: Path, stacks: Sequence[RankStack]) -> None:
    """Replaces the stacks of the recording. Raises OSError."""
    write_whole(directory / FILE, json.dumps([asdict(stack) for stack in stacks], indent=1))


def read_stacks(directory: Path) -> tuple[RankStack, ...]:
    """Returns the stacks of the recording; none if there are none, or if the file is damaged."""
    try:
        found = json.loads(read_file(directory / FILE, MOST_BYTES))
        return tuple(
            RankStack(str(each["node"]), whole(each["rank"]), moment(each["time"]), str(each["text"]))
            for each in found
        )
    except (OSError, *MALFORMED):
        return ()
