"""Rule files as the package renders them now."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from stepscope.prometheus.rules.files import render
from stepscope.prometheus.rules.options import Options


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives the directory of the rule files rendered with some `Rule.parameter=value`: do not change them."""

    @cache
    def rules(*words: str) -> Path:
        directory = tmp_path_factory.mktemp("rules")
        for name, text in render(Options(words)).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        return directory

    return rules


@pytest.fixture(scope="session")
def rules(rendered: Callable[..., Path]) -> Path:
    """stepscope.yml with all defaults."""
    return rendered() / "stepscope.yml"
