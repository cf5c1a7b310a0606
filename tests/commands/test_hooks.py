"""Hooks in real environments: installed with the package, by the command, and removed without a trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stepscope_startup
from stepscope.commands.hooks import FILE, LINE, look
from stepscope.commands.run.hooks import STARTUP
from stepscope.common.errors import UserError

from tests.support.waiting import SECONDS

LOADED = "import sys; print('stepscope_startup' in sys.modules)"
ROOT = Path(stepscope_startup.__file__).parent.parent


def environment(**more: str) -> dict[str, str]:
    ours = ("STEPSCOPE", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def output(*words: object, status: int = 0, **more: str) -> str:
    """Returns what a command prints, on both streams."""
    ended = subprocess.run(
        list(map(str, words)),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == status, ended.stdout
    return ended.stdout


def hooks(action: str, python: Path, status: int = 0) -> str:
    command = ("-m", "stepscope", "hooks", action, "--python", python)
    return output(sys.executable, *command, status=status)


def loaded(python: Path, *flags: str) -> bool:
    return output(python, "-W", "error", *flags, "-c", LOADED, STEPSCOPE_INSTRUMENT="1") == "True\n"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a new environment without Stepscope."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


def content(python: Path) -> set[Path]:
    return set((python.parents[1] / "lib").rglob("*"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    output(sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "wheel")
    (built,) = folder.glob("*.whl")
    return built


def pip(python: Path, *words: object) -> None:
    output(sys.executable, "-m", "pip", "--python", python, *words, PIP_DISABLE_PIP_VERSION_CHECK="1")


def test_the_package_installs_the_hooks_and_takes_them_away_again(python: Path, wheel: Path) -> None:
    before = content(python)
    pip(python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert all(loaded(python, *flags) for flags in ([], ["-E"], ["-I"]))
    assert not loaded(python, "-S"), "without site, nothing of any package can load"
    assert output(python, "-c", LOADED) == "False\n", "without STEPSCOPE_INSTRUMENT"
    assert look(str(python)).files == (look(str(python)).folder / FILE,)
    hooks("remove", python)
    assert not loaded(python)
    hooks("install", python)
    assert loaded(python, "-I")
    pip(python, "uninstall", "--quiet", "--yes", "stepscope")
    assert content(python) <= before


def test_the_command_writes_the_line_of_the_package() -> None:
    assert (ROOT / "exporter" / FILE).read_text() == LINE


def test_hooks_are_installed_in_an_environment_without_stepscope_and_removed(python: Path) -> None:
    before = content(python)
    assert "the hooks are not installed" in hooks("status", python, status=1)
    assert "which is not set here" in hooks("install", python)
    assert hooks("status", python) == hooks("install", python), "twice changes nothing"
    assert loaded(python, "-I")
    (file,) = look(str(python)).files
    assert file.stat().st_mode & 0o777 == 0o644
    assert hooks("remove", python) == f"removed {file}\n"
    assert "nothing to remove" in hooks("remove", python)
    assert content(python) == before


def test_a_python_without_stepscope_finds_it_under_run_but_none_of_the_packages_next_to_it(
    python: Path,
) -> None:
    code = """
import importlib.util, stepscope
print(stepscope.__file__)
print(*map(importlib.util.find_spec, ("numpy", "jinja2")))"""
    printed = output(python, "-c", code, STEPSCOPE_INSTRUMENT="1", PYTHONPATH=str(STARTUP))
    assert printed == f"{ROOT}/exporter/stepscope/__init__.py\nNone None\n"


def test_hooks_of_a_stepscope_that_is_gone_do_nothing_and_status_says_so(python: Path) -> None:
    hooks("install", python)
    (file,) = look(str(python)).files
    file.write_text(file.read_text().replace(str(ROOT), "/gone"))
    assert not loaded(python)
    said = hooks("status", python, status=1)
    assert f"they do not load: run `stepscope hooks install --python {python}` again" in said


def test_a_python_that_is_none_or_too_old_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not answer as Python 3 does"):
        look("/usr/bin/true")
    old = tmp_path / "python"
    for other in ("5", "[1, 2]", '[[], "/", [], false, false]', "[[3, 11], 5, [], false, false]"):
        old.write_text(f"#!/bin/sh\necho '{other}'\n")
        old.chmod(0o755)
        with pytest.raises(UserError, match="does not answer as Python 3 does"):
            look(str(old))
    old.write_text("#!/bin/sh\necho '[[3, 8], \"/\", [], false, false]'\n")
    old.chmod(0o755)
    with pytest.raises(UserError, match=r"Python 3\.8\) is too old: the hooks need Python 3\.11 or later"):
        look(str(old))


def test_a_folder_that_cannot_be_written_is_one_line(python: Path) -> None:
    folder = look(str(python)).folder
    folder.rmdir()
    folder.write_text("not a folder")
    assert f"cannot write {folder / FILE}: Not a directory; ask" in hooks("install", python, status=2)
