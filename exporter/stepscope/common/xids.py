"""The meaning of NVIDIA's XID numbers for training: whether the program caused the error, and the remedy.

Source: NVIDIA's XID catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, for
meanings and actions. Errors of the program: the numbers after which NVIDIA's device plugin for Kubernetes
still considers a GPU healthy (13, 31, 43, 45, 68, 109: errors of applications).
"""

from typing import NamedTuple


class Xid(NamedTuple):
    """An XID number's meaning and remedy; `of_the_program`: the program caused it, and the GPU is healthy."""

    meaning: str
    remedy: str
    of_the_program: bool = False


_DEBUG = "Run the program under compute-sanitizer: it accessed invalid memory, or a kernel failed."
_RESET = "Reset the GPU or restart the machine; if the error returns, have the GPU replaced."
_REPLACE = "Take the machine out of use, run NVIDIA's diagnostics (dcgmi diag -r 3), have the GPU replaced."
_LINK = "Run NVIDIA's diagnostics (dcgmi diag -r 3) on all GPUs of the machine; check NVLink's connectors."

XIDS = {
    13: Xid("an exception in a kernel", _DEBUG, True),
    31: Xid("a page fault in the GPU's memory", _DEBUG, True),
    43: Xid("the GPU stopped processing for the program", _DEBUG, True),
    45: Xid("the program's work was removed when it ended", "Find the error that ended the program.", True),
    46: Xid("the GPU timed out", _RESET),
    48: Xid("a double-bit ECC error in the GPU's memory", _REPLACE),
    62: Xid("the GPU's micro-controller halted", _RESET),
    63: Xid("a bad row of the GPU's memory will be remapped", "Reset the GPU when the run is over."),
    64: Xid("a bad row of the GPU's memory could not be remapped", _REPLACE),
    68: Xid("an exception in the video decoder", _DEBUG, True),
    74: Xid("an NVLink error", _LINK),
    79: Xid("the GPU has fallen off the bus", "Restart the machine; if the error returns, reseat the GPU."),
    92: Xid("many single-bit ECC errors in the GPU's memory", _REPLACE),
    94: Xid("a memory error that ended one program only", "Reset the GPU, then start the program again."),
    95: Xid("a memory error that may have affected every program", _RESET),
    109: Xid("a context switch timed out", _DEBUG, True),
    119: Xid("the GPU's system processor (GSP) does not respond", _RESET),
    120: Xid("an error of the GPU's system processor (GSP)", _RESET),
    140: Xid("an uncorrectable memory error (ECC)", _RESET),
}
_UNKNOWN = Xid("a GPU error", "Look its number up in NVIDIA's XID catalogue.")


def xid(number: int) -> Xid:
    """Returns what is known about the number; one that is not in the table counts as an error of the GPU."""
    return XIDS.get(number, _UNKNOWN)
