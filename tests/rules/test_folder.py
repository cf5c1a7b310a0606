"""Every file of the folder: registered, documented, pure."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import stepscope.rules
from stepscope.rules import all_rules
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.hardware import hardware_rules
from stepscope.rules.parts.parameters import specifications

FOLDER = Path(stepscope.rules.__file__).parent
PRODUCT = FOLDER.parent
DOCS = Path(__file__).parents[2] / "docs" / "heuristics.md"
EVERY = pytest.mark.parametrize("rule", all_rules().values(), ids=str)


def test_each_rule_says_in_its_own_file_that_it_is_one() -> None:
    marked = {
        file: [word for word in file.read_text().splitlines() if word.startswith("@rule")]
        for file in FOLDER.glob("*.py")
    }
    defined = {
        node.name: file
        for file in FOLDER.glob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and any("subject =" in ast.unparse(item) for item in node.body)
    }
    assert set(defined) == set(all_rules())
    assert {file for file, lines in marked.items() if lines == ["@rule"]} == set(defined.values())


def test_each_rule_on_hardware_has_a_file_and_a_section() -> None:
    found = []
    for file in FOLDER.glob("*.py"):
        marked = re.findall(r"(?m)^@hardware_rule\n.*\nclass (\w+)\(HardwareRule\):", file.read_text())
        assert len(marked) <= 1, file
        found += marked
    rules = hardware_rules()
    assert sorted(found) == [rule.__name__ for rule in rules]
    page = (DOCS.parent / "rules.md").read_text()
    for rule in rules:
        assert f"\n### {rule.__name__}\n" in page
        assert (sys.modules[rule.__module__].__doc__ or "").startswith(f"{rule.__name__}: ")


# Scenarios name the rules that they make fire: another test checks these. Debugger named its own reports.
MAY_NAME_RULES = ("demo/scenarios.py", "runs/debugger/reports.py")


def test_outside_of_the_folder_rules_are_named_by_their_class() -> None:
    """So that no list of names is left behind when a rule is added, renamed or removed."""
    by_string = {
        (str(file.relative_to(PRODUCT)), node.value)
        for file in PRODUCT.rglob("*.py")
        if not any(file.relative_to(PRODUCT).match(pattern) for pattern in MAY_NAME_RULES)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in all_rules()
    }
    assert by_string == set()


def test_templates_name_only_rules_that_exist() -> None:
    for template in PRODUCT.rglob("*.html"):
        text = template.read_text()
        assert set(re.findall(r"RULES\.(\w+)", text)) <= set(all_rules()), template
        assert not set(re.findall(r"[\"'](\w+)[\"']", text)) & set(all_rules()), template


@EVERY
def test_each_has_words_and_documented_parameters(rule: type[Rule[Any, Any]]) -> None:
    assert rule.subject[0].isupper()
    for words in (rule.question, rule.description, rule.recommendation):
        assert words[0].isupper()
        assert words[-1] in ".?"
    for specification in specifications(rule.parameters_type).values():
        assert len(specification.doc) > 10


@EVERY
def test_each_has_a_section_of_the_docs(rule: type[Rule[Any, Any]]) -> None:
    assert f"\n## {rule.__name__}\n" in DOCS.read_text()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_no_rule_reads_or_writes_anything(file: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    pure = {
        "__future__",
        "abc",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "operator",
        "itertools",
        "math",
        "numpy",
        "stepscope",
        "typing",
    }
    finding = {"importlib", "os", "pathlib", "pkgutil", "sys"} if file.stem == "registry" else set()
    assert imported <= pure | finding
    assert "open(" not in file.read_text()
