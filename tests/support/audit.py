"""Checks the locked versions for known vulnerabilities: `python -m tests.support.audit`, part of `make test`.

pip-audit asks the Python Package Index. What it could not ask about is said, and never called safe.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stepscope.common.words import count

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "requirements-dev.lock", ROOT / "requirements-build.lock"]  # the first has requirements.lock
PIP_AUDIT = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner=off"]
SECONDS = 120.0


def main() -> int:
    """Prints what was found. Returns 1 if a locked version has a known vulnerability."""
    lines, vulnerable = judged(*asked())
    print("\n".join(lines))
    return 1 if vulnerable else 0


def asked() -> tuple[list[dict[str, Any]], str]:
    """Returns what pip-audit says of each package, and why it says nothing if it does."""
    requirements = [f"--requirement={lock}" for lock in LOCKS]
    try:
        ended = subprocess.run(
            [*PIP_AUDIT, "--timeout=10", "--format=json", *requirements],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return json.loads(ended.stdout)["dependencies"], ""
    except (ValueError, KeyError):
        return [], (ended.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
    except subprocess.TimeoutExpired:
        return [], f"no answer in {SECONDS:.0f} s"


def judged(packages: list[dict[str, Any]], failure: str = "") -> tuple[list[str], bool]:
    """Returns lines about pip-audit's packages, and whether one of them is vulnerable."""
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    checked = [package for package in packages if "skip_reason" not in package]
    if not checked:
        why = failure or "it has no vulnerability data about any package"
        return [
            f"audit: nothing was checked, because the Python Package Index could not be asked: {why}"
        ], False
    found = [
        f"audit: {package['name']} {package['version']} has {known['id']}; "
        f"fixed in {', '.join(known['fix_versions']) or 'no version yet'}"
        for package in checked
        for known in package["vulns"]
    ]
    lines = found or [f"audit: no known vulnerability in {count(len(checked), 'package')}"]
    if unknown:
        lines.append(f"audit: could not ask about {count(len(unknown), 'package')}: {', '.join(unknown)}")
    return lines, bool(found)


if __name__ == "__main__":
    sys.exit(main())
