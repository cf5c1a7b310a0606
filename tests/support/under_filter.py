"""Starts a command with a umask and under a filter of system calls, as systemd would.

usage: under_filter.py '{"umask": 18, "calls": [...], "families": [...], "executable_memory": true}' COMMAND

The calls are the only ones that are allowed: others return EPERM. Without "calls" there is no filter. It runs
in a process that may do little else, so it needs only the standard library and libseccomp.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

ALLOW, EPERM = 0x7FFF0000, 0x00050001
EQUAL, MASKED_EQUAL = 4, 7
PROT_WRITE, PROT_EXEC = 2, 4
PR_SET_PDEATHSIG = 1
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}


class Comparison(ctypes.Structure):
    """libseccomp's struct scmp_arg_cmp."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def install(calls: list[str], families: list[str], executable_memory: bool) -> None:
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    library.seccomp_rule_add_array.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
        ctypes.POINTER(Comparison),
    ]
    context = library.seccomp_init(ctypes.c_uint32(EPERM))

    def allow(call: str, *comparisons: tuple[int, int, int, int]) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # not of this kernel or machine
            return
        array = (Comparison * len(comparisons))(*(Comparison(*each) for each in comparisons))
        assert library.seccomp_rule_add_array(context, ALLOW, number, len(comparisons), array) == 0, call

    for call in calls:
        if call == "socket":
            for family in families:
                allow(call, (0, EQUAL, FAMILIES[family], 0))
        elif call == "mmap" and not executable_memory:
            allow(call, (2, MASKED_EQUAL, PROT_WRITE, 0))
            allow(call, (2, MASKED_EQUAL, PROT_EXEC, 0))
        elif call in ("mprotect", "pkey_mprotect") and not executable_memory:
            allow(call, (2, MASKED_EQUAL, PROT_EXEC, 0))
        else:
            allow(call)
    assert library.seccomp_load(context) == 0


def main(text: str, *command: str) -> None:
    facts: dict[str, Any] = json.loads(text)
    os.umask(facts["umask"])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with bwrap, its parent
    if "calls" in facts:
        install(facts["calls"], facts["families"], facts["executable_memory"])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
