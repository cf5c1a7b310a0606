"""The variables at the top of a dashboard, against a real Prometheus."""

import re
from pathlib import Path

from stepscope.grafana.variables import run

from tests.support.backfill import Backfill
from tests.support.demo import START
from tests.support.prometheus import needs_prometheus

MINUTE = 60


@needs_prometheus
def test_the_run_that_began_last_is_the_first_to_choose_whether_or_not_it_goes_on(tmp_path: Path) -> None:
    """Four runs: name, minutes at which they began and ended."""
    runs = {"b-second": (10, 70), "a-first": (0, 20), "d-newest": (40, 55), "c-third": (30, 70)}
    name = "stepscope_run_start_time_seconds"
    lines = [f"# TYPE {name} gauge"]
    for which, (began, ended) in runs.items():
        labels = f'job="stepscope",instance="node",run="{which}"'
        times = range(began * MINUTE, ended * MINUTE, 15)
        lines += [f"{name}{{{labels}}} {START + began * MINUTE} {START + time}" for time in times]
    (tmp_path / "runs.om").write_text("".join(f"{line}\n" for line in lines))
    backfill = Backfill(tmp_path)
    backfill.store([tmp_path / "runs.om"])
    query = re.sub(r"^query_result\((.*)\)$", r"\1", run()["definition"])
    for variable, value in {"$cluster": ".*", "$job": ".*", "$__range": "2h"}.items():
        query = query.replace(variable, value)
    with backfill.serving() as server:
        found = server.get("query", query=query, time=str(START + 69 * MINUTE))["result"]
    assert [row["metric"]["run"] for row in found] == ["d-newest", "c-third", "b-second", "a-first"]
