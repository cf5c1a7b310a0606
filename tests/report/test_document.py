"""report.json: as its schema says, and true to the analysis."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stepscope.common.status import Status
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.counted import Counted
from stepscope.measurements.energy import Energy, GpuEnergy
from stepscope.report.document import document, render_json

from tests.support import analysis as made
from tests.support.schemas import validator_of

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

DOCS = Path(__file__).parents[2] / "docs"
PRICE = 14.688


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    content = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
    return validator_of(content)


def complaints(schema: Draft202012Validator, content: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in schema.iter_errors(content)]


# Of the hostile names only phases do not fit: there are four of them, and no name can come to stand there.
@pytest.mark.parametrize("make", [make for make in made.EVERY_ANALYSIS if make is not made.hostile])
def test_every_document_is_as_the_schema_says(
    schema: Draft202012Validator, make: Callable[[], Analysis]
) -> None:
    assert complaints(schema, document(make())) == []
    assert complaints(schema, document(make(), PRICE)) == []
    assert json.loads(render_json(make(), PRICE)) == document(make(), PRICE)


def test_the_numbers_of_the_script_are_as_the_schema_says(schema: Draft202012Validator) -> None:
    numbers = made.slow_loader(
        gauges={"loss": nan}, counted=[Counted("tokens", 5.0, None)], flops_utilisation=0.4
    )
    assert complaints(schema, document(numbers)) == []


def test_parts_of_the_account_have_their_cost_and_the_findings_that_explain_them(
    schema: Draft202012Validator,
) -> None:
    parts = {Key("train", "data_wait"): 0.5, Key("train", "forward"): 0.1, Key("eval", "forward"): 0.4}
    leaves = tuple(Leaf(key, part, {0: 720 * part}) for key, part in parts.items())
    rules = [
        made.rule("DataStarved", Status.FOUND, seconds_lost=360.0),
        made.rule("NoisyNeighbour", Status.FOUND, seconds_lost=72.0),
    ]
    content = document(made.slow_loader(rules=rules, account=Account(720.0, 1, leaves)), price=10.0)
    assert complaints(schema, content) == []
    waits, forward, evaluation = content["account"]["leaves"]
    assert (waits["useful"], forward["useful"], evaluation["useful"]) == (False, True, True)
    assert waits["cost"] == pytest.approx(1.0)
    assert waits["kilowatt_hours"] == pytest.approx(2.1 / 3.6 / 2)
    assert waits["findings"] == ["Waiting for data"]
    assert forward["findings"] == []
    assert evaluation["findings"] == ["Evaluation steps"], "about all of its parts"
    assert content["account"]["of_which"] == [
        {"title": "Other processes on the run's cores", "rule": "NoisyNeighbour", "seconds": 72.0}
    ]


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    *way, last = path.split(".")

    def at(content: Any) -> Any:
        for key in way:
            content = content[int(key) if key.isdigit() else key]
        return content

    return lambda content: at(content).__setitem__(last, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 2),
        ("surplus", 1),
        ("run.surplus", 1),
        ("run.seconds", -1.0),
        ("verdict.sentences", []),
        ("verdict.findings.0.share_of_run", 1.5),
        ("usage.0.resource", "TPU"),
        ("usage.0.surplus", 1),
        ("steps.0.phase", "training"),
        ("steps.0.histogram.counts", [-1]),
        ("rules.0.status", "maybe"),
        ("rules.0.details", {}),
        ("rules.0.parameters", {"threshold": []}),
        ("cost.currency", "EUR"),
        ("cost.nodes", 0),
        ("measurement.interval", 0),
    ],
)
def test_the_schema_says_no_to_what_no_report_holds(
    schema: Draft202012Validator, path: str, value: object
) -> None:
    content = document(made.slow_loader(), PRICE)
    broken = deepcopy(content)
    change(path, value)(broken)
    assert complaints(schema, content) == []
    assert len(complaints(schema, broken)) == 1


def test_every_field_of_the_document_is_described_or_named_so_that_it_need_not_be(
    schema: Draft202012Validator,
) -> None:
    """The sections at the top, and all that is in the verdict, the predictions and the energy."""
    content: Any = schema.schema
    sections = content["properties"]
    described = {name for name, one in sections.items() if "description" in one}
    assert set(sections) - described == {"schema_version", "run", "verdict", "measurement"}
    assert set(document(made.slow_loader())) == set(sections)


def test_the_verdict_has_the_findings_with_their_time_and_money() -> None:
    content = document(made.slow_loader(nodes=["a", "b"]), price=10.0)
    first, second = content["verdict"]["findings"]
    assert (first["rule"], first["seconds_lost"]) == ("CPUBottleneck", 431.0)
    assert first["share_of_run"] == 431.0 / 720.0
    assert first["cost"] == 2 * 431.0 / 3600 * 10.0
    assert second["rule"] == "StepOutlier"
    assert content["cost"] == {
        "currency": "USD",
        "price_per_node_hour": 10.0,
        "nodes": 2,
        "seconds": 720.0,
        "amount": 4.0,
    }


def test_without_a_price_nothing_costs_anything() -> None:
    content = document(made.slow_loader())
    assert content["cost"] is None
    assert {finding["cost"] for finding in content["verdict"]["findings"]} == {None}


def test_parts_sum_to_what_they_say() -> None:
    content = document(made.slow_loader())
    for name in ("parts", "phases", "components"):
        whole = content[name]
        assert sum(part["seconds"] for part in whole["parts"]) == pytest.approx(whole["seconds"])
        assert sum(part["share"] for part in whole["parts"]) == pytest.approx(1)
    assert content["parts"]["seconds"] == pytest.approx(content["run"]["seconds"])


def test_energy_is_in_kilowatt_hours_and_by_step() -> None:
    energy = Energy(7.2e6, [GpuEnergy("node-a", "GPU 0", 7.2e6, 700.0, 20.0)], 1)
    content = document(made.slow_loader(energy=energy))["energy"]
    assert content["kilowatt_hours"] == 2.0
    assert content["joules_per_step"] == 7.2e6 / 1800
    assert content["gpus"][0]["seconds_missing"] == 20.0
    assert document(replace(made.no_steps(), energy=energy))["energy"]["joules_per_step"] is None
    assert document(made.slow_loader(energy=None))["energy"] is None


def test_hostile_names_stay_text_in_the_document() -> None:
    assert json.loads(render_json(made.hostile()))["run"]["name"] == made.HOSTILE


def test_a_number_that_is_not_known_is_null() -> None:
    (gpu,) = (row for row in document(made.one_sample())["usage"] if row["resource"] == "GPU")
    assert gpu["p50"] is None
    assert not re.search(r"\b(NaN|Infinity)\b", render_json(made.one_sample()))
