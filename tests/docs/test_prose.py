"""The linter of the English: what it reads, and what it says. `make lint` applies it to every file."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.prose import LONGEST_SENTENCE, complaints, faults, problems
from tests.support.prose_shapes import SHAPES


def test_no_shape_passes_its_wrong_sentence_or_rejects_its_right_one_and_every_pattern_finds_files() -> None:
    assert list(faults()) == []
    broken = replace(SHAPES[0], wrong=SHAPES[0].right, right=SHAPES[0].wrong)
    assert len(list(faults([broken], ["*.nothing"]))) == 3


def test_a_sentence_has_at_most_25_words_unless_it_is_in_a_table() -> None:
    longest = "word " * LONGEST_SENTENCE
    assert list(problems(longest)) == []
    assert list(problems(longest + "more")) == ["26 words: at most 25, one idea per sentence"]
    assert list(problems(longest + "more", flowing=False)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "# Title\n\nFirst.\n\nIt mends\nthe transform.\n"),
        ("page.md", "| a | b |\n|---|---|\n| c | mend it |\n"),
        ("config.yml", "key: value\nother: value # mend this\n"),
        ("config.yml", "# It fixes one\n# and mends another.\nkey: value\n"),
        ("template.tmpl", "{{/* It mends the title. */}}\n"),
        ("rules.yml", "groups:\n- rules:\n  - annotations: {summary: Mend it at once}\n"),
        ("form.yml", "body:\n- attributes: {label: What to mend}\n"),
        ("dashboard.json", '{"panels": [{"description": "Mend the rank"}]}'),
        ("page.html", "<p>{% if so %}Mend <b>it</b>{% endif %}</p>\n"),
        ("page.js", "const text = 'mend the rank'; // a rank\n"),
        ("page.js", "/* It mends\n * the rank. */\n"),
        ("module.py", '"""Mends a file."""\n'),
        ("module.py", 'print(f"{name} mends it")\n'),
        ("module.py", "x = 1  # mend this\n"),
    ],
)
def test_sentences_of_every_kind_of_file_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (complaint,) = complaints(tmp_path / name)
    assert complaint.startswith(f"{tmp_path / name}:")
    assert ": fix: " in complaint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Call `mend()`.\n\n```\nmend\n```\n\n    mend\n\n> The report says: mend it.\n"),
        ("page.md", "![a picture of how to mend](picture.png) and [a link](mend.md)\n"),
        ("config.yml", "mend: yes\n#mend=1\n"),
        ("module.py", "mend = {'mend': mend}\n"),
    ],
)
def test_code_and_what_the_program_says_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert complaints(tmp_path / name) == []


def test_docstrings_of_functions_start_with_a_verb(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'class Run:\n    """A run."""\n\n    def name(self):\n        """The name of the run."""\n'
    )
    (complaint,) = complaints(module)
    assert complaint == f'{module}:4: start with a verb, as in "Returns the ...": The name of the run.'
    module.write_text(module.read_text().replace("The name", "Returns the name"))
    assert complaints(module) == []


def test_a_complaint_names_file_line_word_and_the_better_word(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("One.\n\nWrite it anew. Then read it.\n")
    assert complaints(page) == [f'{page}:3: "anew": again: Write it anew.']
