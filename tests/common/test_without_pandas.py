"""No command imports pandas, although it is installed; a user's own code may."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.observing import RUN
from tests.support.waiting import SECONDS

CONVERTING = """
import sys
from types import ModuleType
from stepscope.common.without_pandas import without_pandas

def converts(name):
    exec("import pyarrow; assert pyarrow.array([1.5]).to_numpy()[0] == 1.5", ModuleType(name).__dict__)
    return "pandas" in sys.modules

without_pandas()
print(converts("stepscope.runs"))
import pandas
print(pandas.DataFrame({"rank": [3]})["rank"].sum(), converts("stepscope.runs"))
"""


def test_pyarrow_converts_without_pandas_and_the_rules_of_users_import_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CONVERTING], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout, done.stderr) == ("False\n3 True\n", "")


def test_a_run_its_exporter_and_its_report_import_no_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RUN, "--listen", "127.0.0.1:0", "--out", str(tmp_path / "run"), "--", "sleep", "1"],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert find_spec("pandas") is not None
    assert imported.count("pyarrow.lib") == 2, "the exporter records, and the report reads"
    assert "stepscope.report.write" in imported
    assert [name for name in imported if name.startswith("pandas.")] == []
