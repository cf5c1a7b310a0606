"""Advice that needs evidence: a rule or component that exists, and one most specific advice per rule."""

from stepscope.measurements.own_times import HOST
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.usage import ADVICE, BUSY_CORES, advice_group
from stepscope.rules import all_rules
from stepscope.runs.model import COMPONENTS

RULES = advice_group(Options())["rules"]


def test_advice_names_evidence_that_rules_and_ranks_have() -> None:
    known = {*all_rules(), *BUSY_CORES, *COMPONENTS, HOST}
    for rule in RULES:
        assert rule["record"] == ADVICE
        assert rule["labels"]["rule"] in all_rules()
        assert rule["labels"]["of"] in known
        assert rule["labels"]["recommendation"].endswith(".")


def test_every_priority_is_above_0_and_different() -> None:
    priorities = [rule["expr"] for rule in RULES]
    assert len(set(priorities)) == len(priorities)
    assert "vector(0)" not in priorities  # that of a rule's own recommendation


def test_data_that_comes_late_gets_the_advice_of_the_rule_that_knows_why() -> None:
    of_rules = {rule["labels"]["of"]: rule["labels"] for rule in RULES if rule["labels"]["of"] in all_rules()}
    assert {labels["rule"] for labels in of_rules.values()} == {"DataStarved"}
    for of, labels in of_rules.items():
        assert labels["recommendation"] == all_rules()[of].recommendation
