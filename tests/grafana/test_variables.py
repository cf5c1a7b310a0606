"""The variables at the top of a dashboard, against a real Prometheus."""

import re
from pathlib import Path

from stepscope.commands.dashboards import dashboards
from stepscope.grafana.variables import run

from tests.support.backfill import Backfill
from tests.support.demo import START
from tests.support.grafana import Reader, panels
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


@needs_prometheus
def test_a_run_may_have_quotes_and_backslashes_in_its_name(tmp_path: Path) -> None:
    name = """ada's "50\\50" $1 run"""
    written = name.replace("\\", "\\\\").replace('"', '\\"')
    lines: list[str] = []
    for metric, kind in (
        ("stepscope_run_start_time_seconds", "gauge"),
        ("stepscope_samples_total", "counter"),
    ):
        lines.append(f"# TYPE {metric.removesuffix('_total')} {kind}")
        labels = f'job="stepscope",instance="node",run="{written}"'
        lines += [f"{metric}{{{labels}}} {START} {START + time}" for time in range(0, 600, 15)]
    (tmp_path / "run.om").write_text("".join(f"{line}\n" for line in lines))
    backfill = Backfill(tmp_path)
    backfill.store([tmp_path / "run.om"])
    with backfill.serving() as server:
        for dashboard in dashboards().values():
            reader = Reader(server, dashboard, START - 60, START + 600)
            for panel in panels(dashboard):
                for target in panel.get("targets", ()):
                    reader.series(target)  # Prometheus understands it
            if dashboard["uid"] == "stepscope-run":
                assert reader.options("run") == [name]
                assert reader.options("instance") == ["node"]
