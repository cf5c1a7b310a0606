"""What NVIDIA's XID numbers mean to someone who trains: whose error it is, and what to do.

Source: NVIDIA's XID catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, for
meanings and actions. Whose error it is: the numbers after which NVIDIA's device plugin for Kubernetes still
takes a GPU for healthy (13, 31, 43, 45, 68, 109: errors of applications).
"""

from __future__ import annotations

from typing import NamedTuple


class Xid(NamedTuple):
    """An XID number's meaning, and what to do about it; `of_the_program`: the GPU is in good health."""

    meaning: str
    mend: str
    of_the_program: bool = False


_DEBUG = "Run the program under compute-sanitizer: it accessed memory that it may not, or a kernel failed."
_RESET = "Reset the GPU or restart the machine; where it comes again, have the GPU replaced."
_REPLACE = "Take the machine out of use, run NVIDIA's diagnostics (dcgmi diag -r 3), have the GPU replaced."
_LINK = "Run NVIDIA's diagnostics (dcgmi diag -r 3) on all GPUs of the machine; look at NVLink's connectors."

XIDS = {
    13: Xid("an exception in a kernel", _DEBUG, True),
    31: Xid("a page fault in the GPU's memory", _DEBUG, True),
    43: Xid("the GPU stopped processing for the program", _DEBUG, True),
    45: Xid("the program's work was removed as it ended", "Look for the error that ended the program.", True),
    46: Xid("the GPU timed out", _RESET),
    48: Xid("an error of two bits in the GPU's memory", _REPLACE),
    62: Xid("the GPU's micro-controller halted", _RESET),
    63: Xid("a bad row of the GPU's memory is to be replaced", "Reset the GPU when the run is over."),
    64: Xid("a bad row of the GPU's memory could not be replaced", _REPLACE),
    68: Xid("an exception in the video decoder", _DEBUG, True),
    74: Xid("an error of NVLink", _LINK),
    79: Xid("the GPU has fallen off the bus", "Restart the machine; where it comes again, reseat the GPU."),
    92: Xid("many errors of one bit in the GPU's memory", _REPLACE),
    94: Xid("a memory error that ended one program only", "Reset the GPU, then start the program again."),
    95: Xid("a memory error that may have touched every program", _RESET),
    109: Xid("a change of context timed out", _DEBUG, True),
    119: Xid("the GPU's system processor does not answer", _RESET),
    120: Xid("an error of the GPU's system processor", _RESET),
    140: Xid("a memory error that ECC could not correct", _RESET),
}
_UNKNOWN = Xid("an error of the GPU", "Look its number up in NVIDIA's XID catalogue.")


def xid(number: int) -> Xid:
    """What is known of the number. One that is not in the table is taken for an error of the GPU."""
    return XIDS.get(number, _UNKNOWN)


def is_of_the_program(number: int) -> bool:
    """Whether the program that ran on the GPU is to blame, and the GPU is in good health."""
    return xid(number).of_the_program
