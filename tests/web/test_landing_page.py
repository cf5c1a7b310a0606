"""The page at / says what an exporter has: runs, collectors, and where the documentation is."""

import asyncio
from types import SimpleNamespace
from typing import Any

from stepscope.exporter.collectors.training import Families
from stepscope.exporter.sampling.families import Family
from stepscope.web.messages import Request
from stepscope.web.pages import MOST_RUNS, Pages
from stepscope.web.serving import Serving


def page(runs: dict[str, str], collectors: dict[str, float]) -> str:
    """Returns the page of an exporter with these runs, by user, and collectors."""
    info = Families()["run_info"]
    rows = [{"run": run, "user": user} for run, user in runs.items()]
    info.publish({tuple(row.get(name, "") for name in info.labels): 1.0 for row in rows})
    success = Family("stepscope_collector_success", "gauge", "Whether it worked.", ("collector",))
    success.publish({(name,): value for name, value in collectors.items()})
    exporter: Any = SimpleNamespace(node="gpu-1", simulated="", families=lambda: [info, success])
    answer = asyncio.run(Pages(exporter, Serving(["127.0.0.1:0"])).answer(Request("GET", "/", {})))
    return bytes(answer.body).decode()


def test_runs_and_collectors_are_named_and_a_name_is_text() -> None:
    found = page({"resnet": "alice", "<script>x": ""}, {"gpu": 0.0, "cpu": 1.0})
    assert "<p>Runs: &lt;script&gt;x and resnet of alice.</p>" in found
    assert "<p>Collectors: cpu and gpu (failing).</p>" in found


def test_many_runs_are_counted() -> None:
    found = page({f"run-{number:03}": "bob" for number in range(MOST_RUNS + 5)}, {})
    assert f"run-{MOST_RUNS - 1:03} of bob and 5 more." in found
    assert f"run-{MOST_RUNS:03}" not in found
