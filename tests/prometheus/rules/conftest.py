"""Rule files as the package renders them now."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from stepscope.prometheus.rules.files import META, render
from stepscope.prometheus.rules.options import Options

from tests.support.promtool import RuleTest


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


@pytest.fixture(scope="session")
def meta(rendered: Callable[..., Path]) -> Path:
    """The alerts on Stepscope itself, with all defaults."""
    return rendered() / META


@pytest.fixture
def test(rules: Path, tmp_path: Path) -> Iterator[RuleTest]:
    """A test of `rules`. promtool runs it at its end."""
    yield from ran(RuleTest(rules), tmp_path)


def ran(test: RuleTest, folder: Path) -> Iterator[RuleTest]:
    """Yields the test, and then runs it."""
    yield test
    test.run(folder)
