"""A run in VictoriaMetrics has the findings that it has in Prometheus."""

import pytest
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus
from stepscope.runs.open import open_source

from tests.support.scraped_nodes import stored
from trials.engines.servers import PrometheusHere, VictoriaMetricsHere, installed, local_victoriametrics


def read(url: str) -> Analysis:
    return evaluate(open_source(f"prometheus+{url}"))


def test_the_findings_are_the_same() -> None:
    theirs, ours = installed("victoria-metrics", VictoriaMetricsHere), installed("prometheus", PrometheusHere)
    if not theirs or not ours:
        pytest.skip("needs Debian's packages prometheus and victoria-metrics")
    series = stored("few-dataloaders")
    with local_prometheus(str(ours[-1].program)) as store:
        store.write(series)
        expected = read(store.url)
    assert "Dataloader" in {rule.rule for rule in expected.rules if rule.status == "found"}
    with local_victoriametrics(theirs[-1].program) as store:
        store.write(series)
        found = read(store.url)
    assert found.samples_taken == expected.samples_taken
    assert [(rule.rule, rule.status, rule.finding) for rule in found.rules] == [
        (rule.rule, rule.status, rule.finding) for rule in expected.rules
    ]
