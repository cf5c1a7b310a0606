"""Starts a function in a fresh Python, which imports from where this one does.

A fork would copy the locks of other threads, and multiprocessing would run the user's script again.
"""

import sys

PROGRAM = """
import sys
from importlib import import_module
count = 3 + int(sys.argv[2])
arguments, sys.path[:] = sys.argv[3:count], sys.argv[count:]
import_module(sys.argv[1]).child(*arguments)
"""


def fresh_python(module: str, *arguments: str) -> list[str]:
    """Returns the command that calls the function `child` of a module with these texts."""
    return [sys.executable, "-I", "-c", PROGRAM, module, str(len(arguments)), *arguments, *sys.path]
