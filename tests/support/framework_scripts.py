"""Scripts of frameworks, unmodified, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ran

SCRIPTS = Path(__file__).parents[1] / "training" / "framework_scripts"


def run_python(ledgers: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end, which must be a good one; hooks would write into `ledgers`."""
    ended = ran(
        [sys.executable, *words], env={**os.environ, "STEPSCOPE_LEDGER_DIR": str(ledgers), **variables}
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def run_script(ledgers: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of SCRIPTS by its name, as `run_python`."""
    return run_python(ledgers, str(SCRIPTS / f"{script}.py"), *words, **variables)
