"""Starts Stepscope's hooks, then the user's own sitecustomize: `stepscope run` puts this folder first.

It may run in any Python, even Python 2, so it is written for all of them.
"""

import os
import sys


def _start():  # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    # Only this module comes from this folder; child processes get it from PYTHONPATH again.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    if sys.version_info < (3, 11):  # noqa: UP036
        words = os.path.join(os.environ.get("STEPSCOPE_LEDGER_DIR", ""), "startup")
        try:  # `stepscope run` reads why it saw no steps; elsewhere the folder may be another user's
            if os.lstat(words).st_uid == os.geteuid() and not os.path.islink(words):
                file = os.open(os.path.join(words, "old"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(file, ("%d.%d" % sys.version_info[:2]).encode("ascii"))  # noqa: UP031
                os.close(file)
        except OSError:  # there is none, or it has the word
            pass
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.insert(0, package)
    try:
        import stepscope_startup
    finally:
        sys.path.remove(package)
    stepscope_startup.start()


try:
    _start()
except Exception as error:  # noqa: BLE001 - the script must start
    sys.stderr.write("stepscope: this process is not hooked: " + str(error) + "\n")
del sys.modules["sitecustomize"]
__import__("sitecustomize")  # the next one on the path: the user's
