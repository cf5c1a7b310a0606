"""The audit of dependencies finds vulnerable versions, and says so when it could check nothing."""

from __future__ import annotations

from pathlib import Path

from tests.support.audit import judged


def test_a_vulnerable_version_is_named_with_the_version_that_fixes_it() -> None:
    vulnerable = {
        "name": "pyarrow",
        "version": "14.0.0",
        "vulns": [{"id": "PYSEC-2023-238", "fix_versions": ["14.0.1"]}],
    }
    fine = {"name": "numpy", "version": "2.4.6", "vulns": []}
    assert judged([vulnerable, fine]) == (
        ["audit: pyarrow 14.0.0 has PYSEC-2023-238; fixed in 14.0.1"],
        True,
    )
    assert judged([fine]) == (["audit: no known vulnerability in 1 package"], False)


def test_an_audit_without_data_says_that_nothing_was_checked() -> None:
    unknown = {"name": "pyarrow", "skip_reason": "Dependency not found on PyPI"}
    for packages in ([], [unknown]):
        assert judged(packages) == (
            ["audit: skipped, the Python Package Index does not say which versions are vulnerable"],
            False,
        )


def test_no_pyarrow_whose_files_can_run_code_may_be_installed() -> None:
    """CVE-2023-47248: reading a crafted file ran code until 14.0.1."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '"pyarrow>=14.0.1"' in text
