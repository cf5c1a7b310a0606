"""The audit of dependencies finds vulnerable versions, and says so when it could check nothing."""

from pathlib import Path

import pytest

from tests.support.audit import asked, judged


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


def test_what_could_not_be_asked_is_never_called_safe() -> None:
    fine = {"name": "numpy", "version": "2.4.6", "vulns": []}
    unknown = {"name": "pyarrow", "skip_reason": "Dependency not found on PyPI"}
    nothing = "audit: nothing was checked, because the Python Package Index could not be asked: "
    assert judged([], "refused") == ([f"{nothing}refused"], False)
    assert judged([unknown]) == ([f"{nothing}it has no vulnerability data about any package"], False)
    assert judged([fine, unknown]) == (
        ["audit: no known vulnerability in 1 package", "audit: could not ask about 1 package: pyarrow"],
        False,
    )


def test_pip_audit_reads_the_locks_and_an_index_that_refuses_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pip_audit")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # where nobody listens
    packages, failure = asked()
    assert (packages, "ProxyError" in failure) == ([], True), failure


def test_no_pyarrow_whose_files_can_run_code_may_be_installed() -> None:
    """CVE-2023-47248: reading a crafted file ran code until 14.0.1."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '"pyarrow>=14.0.1"' in text
