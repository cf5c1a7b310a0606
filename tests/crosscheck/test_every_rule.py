"""No rule of Prometheus goes unchecked."""

from __future__ import annotations

from trainwatch.crosscheck.recompute import CHECKED
from trainwatch.evaluation.settings import Settings
from trainwatch.rules.promql import Scraping


def test_each_heuristic_that_has_rules_is_computed_anew_and_no_other() -> None:
    heuristics = Settings.parse(()).rules()
    assert {one.name for one in heuristics if one.prometheus_rules(Scraping()) is not None} == set(CHECKED)
