"""The flags that limit age and size of the recordings in `stepscope-runs/`."""

import re
from argparse import ArgumentParser, ArgumentTypeError

from stepscope.common.durations import positive_duration

UNITS: dict[str, int] = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB"))}


def add_recording_limits(parser: ArgumentParser) -> None:
    """Adds `--recording.max-age` and `--recording.max-size`."""
    parser.add_argument(
        "--recording.max-age",
        dest="recording_max_age",
        type=positive_duration,
        metavar="DURATION",
        help="before the run, remove finished recordings in stepscope-runs/ that ended longer ago, as 30d"
        " (default: keep all)",
    )
    parser.add_argument(
        "--recording.max-size",
        dest="recording_max_size",
        type=parse_size,
        metavar="SIZE",
        help="before the run, remove the oldest finished recordings in stepscope-runs/ until all of them"
        " have at most this size, as 50GB (default: keep all)",
    )


def parse_size(text: str) -> int:
    """Returns bytes; units are powers of 1024, as in Prometheus. Raises ArgumentTypeError."""
    match = re.fullmatch(rf"([0-9]{{1,15}})({'|'.join(UNITS)})", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size such as 500MB or 50GB")
    return int(match[1]) * UNITS[match[2]]
