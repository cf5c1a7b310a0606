"""A torch of a few empty modules, for processes that must be hooked, but not slowed down by the real one."""

from pathlib import Path

# The user's own sitecustomize runs after ours. This one puts a function of the test in place of the hooks.
USERS_OWN = """
import sys, stepscope_startup
stepscope_startup.HOOKS["torch"] = "shown:hook"
for finder in sys.meta_path:
    if hasattr(finder, "_functions") and "torch" in finder._functions:
        finder._functions["torch"] = stepscope_startup._Call("shown:hook")
"""

SHOWN = """
import os
hooked = []
def hook(): hooked.append(os.getpid())
def show(what): print(what, os.getpid() in hooked, flush=True)
"""


def environment_of(folder: Path) -> str:
    """Makes a folder for PYTHONPATH: a small torch, a hook, and `show`, which prints if that was called."""
    (folder / "sitecustomize.py").write_text(USERS_OWN)
    (folder / "shown.py").write_text(SHOWN)
    package = folder / "torch" / "utils" / "data" / "_utils"
    package.mkdir(parents=True)
    for inside in (package, *list(package.parents)[:3]):
        (inside / "__init__.py").touch()
    (package / "worker.py").write_text("from shown import show\ndef _worker_loop(): show('worker')")
    return str(folder)
