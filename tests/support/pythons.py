"""Finds the supported versions of Python on this machine."""

import os
import sys
from functools import cache
from pathlib import Path

from tests.support.processes import ran

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


@cache
def pythons() -> dict[str, str]:
    """Returns paths by version: this Python, and those on PATH or of pyenv that start."""
    here = "{}.{}".format(*sys.version_info)
    found = {here: sys.executable}
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [
        *map(Path, os.environ["PATH"].split(os.pathsep)),
        *sorted(of_pyenv.glob("*/bin"), reverse=True),
    ]
    for version in VERSIONS:
        for folder in folders:
            if version not in found and _starts(folder / f"python{version}", version):
                found[version] = str(folder / f"python{version}")
    return {version: found[version] for version in VERSIONS if version in found}


def _starts(path: Path, version: str) -> bool:
    if not path.is_file():
        return False
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = ran([path, "-c", ask])
    return (done.returncode, done.stdout.strip()) == (0, version)
