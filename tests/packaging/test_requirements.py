"""What an installation needs: pyproject.toml, and what repeats it."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = {
    "requirements.lock": [*PROJECT["dependencies"], *EXTRAS["passwords"]],
    "requirements-build.lock": [*PYPROJECT["build-system"]["requires"], "editables"],
    "requirements-dev.lock": [*PROJECT["dependencies"], *EXTRAS["passwords"], *EXTRAS["dev"]],
}
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]


def entries(lock: str) -> Iterator[tuple[Requirement, list[str]]]:
    """The requirements of a lock, each with its hashes."""
    text = re.sub(r"(?m)^ *#.*\n", "", (ROOT / lock).read_text()).replace("\\\n", " ")
    for line in text.splitlines():
        written, *hashes = line.split(" --hash=")
        yield Requirement(written), [one.strip() for one in hashes]


@pytest.mark.parametrize("lock", LOCKED)
def test_a_lock_pins_all_that_pyproject_asks_for_on_every_python_with_hashes(lock: str) -> None:
    for pinned, hashes in entries(lock):
        assert re.fullmatch(r"==[\w.]+", str(pinned.specifier)), pinned
        assert hashes, pinned
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), pinned
    for python in PYTHONS:
        here = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
        pins = [one for one, _ in entries(lock) if one.marker is None or one.marker.evaluate(here)]
        versions = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pins}
        assert len(versions) == len(pins)
        for asked in map(Requirement, LOCKED[lock]):
            if asked.name != PROJECT["name"] and (asked.marker is None or asked.marker.evaluate(here)):
                assert asked.specifier.contains(versions[canonicalize_name(asked.name)]), (python, asked)


def test_what_two_locks_pin_is_the_same_version_with_the_same_hashes() -> None:
    every = {str(pinned): hashes for pinned, hashes in entries("requirements-dev.lock")}
    for lock in LOCKED:
        assert {
            str(pinned): hashes for pinned, hashes in entries(lock) if pinned.name != "editables"
        }.items() <= every.items()


def test_the_bill_of_materials_has_what_the_lock_installs_and_its_licences() -> None:
    if not os.environ.get("CI") and not (ROOT / "stepscope.cdx.json").exists():
        pytest.skip("needs `make sbom`")
    bill = json.loads((ROOT / "stepscope.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == PROJECT["name"]
    listed = {canonicalize_name(one["name"]): one["version"] for one in bill["components"]}
    locked = {
        canonicalize_name(pinned.name): str(pinned.specifier).removeprefix("==")
        for pinned, _ in entries("requirements.lock")
        if pinned.marker is None or pinned.marker.evaluate()
    }
    assert listed == locked
    assert [one["name"] for one in bill["components"] if not one.get("licenses")] == []


def test_all_that_repeats_the_oldest_python_repeats_pyproject() -> None:
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    as_tuple = f"({oldest.replace('.', ', ')})"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest
    for name, said in (
        ("README.md", f"Python {oldest} or later"),
        ("CONTRIBUTING.md", f"Python {oldest} or later"),
        ("Makefile", f"({oldest} or later)"),
        ("Makefile", f"--python-version {oldest} "),
        ("docs/run.md", f"Python {oldest} or later"),
        ("exporter/stepscope/commands/run/hooks.py", f"Python {oldest} or later"),
        ("exporter/stepscope/commands/hooks.py", f"OLDEST = {as_tuple}"),
        ("exporter/stepscope/training/startup/sitecustomize.py", f"sys.version_info < {as_tuple}"),
    ):
        assert said in (ROOT / name).read_text(), name
