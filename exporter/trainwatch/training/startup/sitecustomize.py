"""Starts Trainwatch's hooks, then the user's own sitecustomize: `trainwatch run` puts this folder first.

It may run in any Python, even Python 2, so it is written for all of them.
"""

import os
import sys


def _start():  # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    # Only this module comes from this folder; child processes get it from PYTHONPATH again.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    if sys.version_info < (3, 11):  # noqa: UP036
        words = os.path.join(os.environ.get("TRAINWATCH_LEDGER_DIR", ""), "startup")
        if os.path.isdir(words):  # `trainwatch run` reads why it saw no steps
            with open(os.path.join(words, "old"), "w") as file:
                file.write("%d.%d" % sys.version_info[:2])  # noqa: UP031
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.insert(0, package)
    try:
        import trainwatch_startup
    finally:
        sys.path.remove(package)
    trainwatch_startup.start()


try:
    _start()
except Exception as error:  # noqa: BLE001 - the script must start
    sys.stderr.write("trainwatch: this process is not hooked: " + str(error) + "\n")
del sys.modules["sitecustomize"]
__import__("sitecustomize")  # the next one on the path: the user's
