"""OverallSystemUsage: percentiles of what a node did."""

import numpy as np
import pytest
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.report.html import MOST_CORES, render_html

from tests.support.source import MemorySource, node_samples

NAN = float("nan")


def busy_node(rows: int = 4000) -> tuple[Analysis, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    series = {
        "cpu": random.random((rows, 4)),
        "gpu": np.round(random.random((rows, 2)), 2),
        "io_wait": random.random((rows, 4)) * 0.2,
        "gpu_memory": random.random((rows, 2)),
        "memory": random.random(rows),
        "network": random.lognormal(12, 3, rows),
        "disk": np.where(random.random(rows) < 0.4, 0.0, random.lognormal(15, 2, rows)),
    }
    return evaluate(MemorySource(node_samples(**series))), series  # type: ignore[arg-type]


def test_each_resource_has_the_percentiles_of_its_mean_over_devices() -> None:
    analysis, series = busy_node()
    expected = {
        "CPU": series["cpu"].mean(axis=1) * 100,
        "CPU memory": series["memory"] * 100,
        "GPU": series["gpu"].mean(axis=1) * 100,
        "GPU memory": series["gpu_memory"].mean(axis=1) * 100,
        "I/O wait": series["io_wait"].mean(axis=1) * 100,
        "Network": series["network"],
        "Disk": series["disk"],
        "Network received": series["network"],
        "Network sent": np.zeros(4000),
        "Disk read": series["disk"],
        "Disk written": np.zeros(4000),
        "Disk operations": np.zeros(4000),
    }
    assert [row.resource for row in analysis.usage] == list(expected)
    for row in analysis.usage:
        values = expected[row.resource]
        for name, percent in (("max", 100), ("p99", 99), ("p95", 95), ("p50", 50), ("min", 0)):
            exact = float(np.percentile(values, percent))
            allowed = 0.011 if row.unit == "%" else 0.006 * exact
            assert abs(getattr(row, name) - exact) <= allowed, (row.resource, name)


def test_a_missing_device_does_not_weigh_on_the_mean() -> None:
    samples = node_samples([[0.5, NAN], [0.5, NAN], [NAN, NAN]], [[NAN], [NAN], [NAN]])
    rows = {row.resource: row for row in evaluate(MemorySource(samples)).usage}
    assert rows["CPU"].min == rows["CPU"].max == 50
    assert "GPU" not in rows


def test_it_never_fires_and_has_the_metrics_that_debuggers_notebook_knows() -> None:
    analysis, _ = busy_node()
    found = next(found for found in analysis.rules if found.rule == "OverallSystemUsage")
    assert (found.status, found.triggered, found.datapoints) == ("healthy", 0, 4000)
    assert set(found.details) == {"CPU", "CPU memory", "GPU", "GPU memory", "I/O", "Network"}
    assert set(found.details["CPU"]["node-a"]) == {"max", "p99", "p95", "p50", "min"}


def test_each_core_has_a_histogram_of_its_own_readings() -> None:
    samples = node_samples([[0.0, 1.0, NAN, 0.04], [0.5, 1.0, NAN, NAN], [0.55, 0.99, NAN, 0.05]] * 10)
    found = {each.core: each.shares for each in evaluate(MemorySource(samples)).core_histograms}
    assert list(found) == ["0", "1", "3"]  # the third was never read
    assert found["0"] == pytest.approx([1 / 3, 0, 0, 0, 0, 2 / 3, 0, 0, 0, 0])
    assert found["1"] == [*[0.0] * 9, 1.0]
    assert found["3"] == [1.0, *[0.0] * 9]


def test_the_page_has_a_folded_table_of_cores_up_to_its_limit() -> None:
    busy = node_samples(np.full((20, MOST_CORES + 1), 0.95))
    page = render_html(evaluate(MemorySource(busy)))
    assert page.count('class="share-10">100</td>') == MOST_CORES
    assert f"The first {MOST_CORES} cores are shown" in page
    assert len(page) < 3_000_000
    few = render_html(evaluate(MemorySource(node_samples(np.full((20, 2), 0.95)))))
    assert few.count('class="share-10">100</td>') == 2
    assert "cores are shown" not in few
