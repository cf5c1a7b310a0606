"""Reads the pressure stall information of a node or of a cgroup (Documentation/accounting/psi.rst)."""

import errno
from pathlib import Path

RESOURCES = ("cpu", "io", "memory")
MICROSECONDS = 1e6  # in a second


def read_waiting_seconds(path: Path) -> float | None:
    """Returns the seconds so far in which some task waited; None if the kernel does not count them.

    Raises OSError if the file cannot be read, ValueError if it is not understood.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None  # built without CONFIG_PSI, or older than 4.20
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None  # switched off: psi=0, or CONFIG_PSI_DEFAULT_DISABLED
        raise
    # some avg10=0.99 avg60=1.21 avg300=0.55 total=10315779
    line = text.partition(b"\n")[0].decode("ascii", errors="replace")
    kind, _, rest = line.partition(" ")
    _, _, total = rest.partition("total=")
    if kind != "some" or not total.isdecimal():
        raise ValueError(f"{path}: {line!r} is not a line like 'some avg10=0.00 ... total=0'")
    return int(total) / MICROSECONDS
