"""Checks the locked versions for known vulnerabilities: `python -m tests.support.audit`, part of `make test`.

pip-audit asks the Python Package Index. Where that does not answer, one line says that nothing was checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainwatch.words import count

LOCK = Path(__file__).parents[2] / "requirements.lock"
PIP_AUDIT = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off"]
SECONDS = 120.0


def main() -> int:
    """Prints what was found. Returns 1 if a locked version has a known vulnerability."""
    try:
        ended = subprocess.run(
            [*PIP_AUDIT, "--timeout=10", "--format=json", f"--requirement={LOCK}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        packages = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError, subprocess.TimeoutExpired):
        packages = []
    lines, vulnerable = judged(packages)
    print("\n".join(lines))
    return 1 if vulnerable else 0


def judged(packages: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Returns lines about pip-audit's packages, and whether one of them is vulnerable."""
    checked = [package for package in packages if "skip_reason" not in package]
    if not checked:
        return ["audit: skipped, the Python Package Index does not say which versions are vulnerable"], False
    found = [
        f"audit: {package['name']} {package['version']} has {known['id']}; "
        f"fixed in {', '.join(known['fix_versions']) or 'no version yet'}"
        for package in checked
        for known in package["vulns"]
    ]
    return found or [f"audit: no known vulnerability in {count(len(checked), 'package')}"], bool(found)


if __name__ == "__main__":
    sys.exit(main())
