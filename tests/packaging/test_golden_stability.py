"""docs/stability.md: what was released is still there."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainwatch.collectors import discover
from trainwatch.exporter import command
from trainwatch.exporter.exporter import Exporter

DOCS = Path(__file__).parents[2] / "docs"


def metrics() -> list[str]:
    parser = ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args([])
    exporter = Exporter([collector.from_arguments(arguments) for collector in discover()])
    return sorted(
        f"{each.name} {each.kind} {' '.join(sorted(each.labels))}".strip() for each in exporter.families()
    )


def json_fields() -> list[str]:
    schema = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
    return sorted(set(_fields(schema, "report.json")))


def _fields(schema: Any, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        yield f"{place}{' required' if name in schema.get('required', ()) else ''}"
        yield from _fields(field, place)
    if isinstance(schema.get("items"), dict):
        yield from _fields(schema["items"], f"{path}[]")


@pytest.mark.parametrize(("name", "now"), [("metrics", metrics), ("json", json_fields)])
def test_every_released_line_is_still_true(name: str, now: Any, request: pytest.FixtureRequest) -> None:
    file = DOCS / f"released-{name}.txt"
    released = file.read_text().splitlines()
    if request.config.getoption("--renew-golden"):  # only adds: a line goes by hand, for all to see
        file.write_text("\n".join(sorted({*released, *now()})) + "\n")
    assert len(released) > 50
    assert set(released) - set(now()) == set(), "a promise of docs/stability.md is broken"
