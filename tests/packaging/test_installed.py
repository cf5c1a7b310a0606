"""What `make package` builds, in an environment without the checkout."""

import json
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

ROOT = Path(__file__).parents[2]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def package(source: Path) -> tuple[Path, Path]:
    """Builds what `make package` builds, into dist/ of the source; returns source distribution and wheel."""
    out = source / "dist"
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=SECONDS)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that go into the source distribution, as a clone has them."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("checkout")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    return unpacked(next(folder.glob("*.tar.gz")), folder)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("stepscope-*/")
    return source


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command of an environment with the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("packaging")
    _, wheel = package(checkout)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", wheel], check=True, timeout=SECONDS)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # Bare paths: .pth files in them, such as that of the editable checkout, are not read.
    dependencies = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))

    def stepscope(*words: object, code: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(python.parent / "stepscope"), *map(str, words)]
        if code:
            command = [str(python), "-c", code]
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={"PATH": "/usr/bin:/bin"},
        )

    return stepscope


def test_the_same_files_become_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    command = "$(BIN)/python -m hatchling build -d dist"
    assert f"\t@{command}\n" in (ROOT / "Makefile").read_text()
    built = package(checkout)
    again = package(unpacked(built[0], tmp_path))  # files with other times
    assert [file.name for file in again] == [file.name for file in built]
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in built]


def test_the_command_is_that_of_the_wheel(installed: Command) -> None:
    assert installed("--version").stdout.startswith("stepscope ")
    where = installed(code="import stepscope; print(stepscope.__file__)").stdout
    assert str(ROOT) not in where
    assert "/venv/lib/" in where


def test_completions_and_man_page_are_where_shells_look(installed: Command) -> None:
    prefix = Path(installed(code="import sys; print(sys.prefix)").stdout.strip())
    for file in (
        "bash-completion/completions/stepscope",
        "zsh/site-functions/_stepscope",
        "man/man1/stepscope.1",
    ):
        assert "crosscheck" in (prefix / "share" / file).read_text()


@pytest.mark.parametrize(
    ("command", "committed"),
    [("rules", "rules"), ("dashboards", "grafana/dashboards"), ("alertmanager", "alertmanager")],
)
def test_the_wheel_exports_what_is_committed(
    installed: Command, tmp_path: Path, command: str, committed: str
) -> None:
    exported = installed(command, "export", "--out", tmp_path)
    assert (exported.returncode, exported.stderr) == (0, "")
    files = [Path(line).relative_to(tmp_path) for line in exported.stdout.splitlines()]
    assert files
    for file in files:
        assert (tmp_path / file).read_text() == (ROOT / committed / file).read_text(), file
    assert installed(command, "check", tmp_path).returncode == 0
    with (tmp_path / files[0]).open("a") as edited:
        edited.write("\n# edited\n")
    assert installed(command, "check", tmp_path).returncode == 1


def test_the_wheel_records_and_reports(installed: Command, tmp_path: Path) -> None:
    ran = installed("run", "--out", tmp_path / "run", "--", "sleep", "1.5")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_example_of_make_run_is_observed(installed: Command, checkout: Path, tmp_path: Path) -> None:
    example = [checkout / "examples" / "train_images.py", "--data", tmp_path / "data", "--steps", 4]
    python = installed(code="import sys; print(sys.executable)").stdout.strip()
    ran = installed("run", "--out", tmp_path / "run", "--", python, *example, "--workers", 1)
    assert ran.returncode == 0, ran.stderr
    (last,) = json.loads((tmp_path / "run" / "report.json").read_text())["run"]["ending"]["last_steps"]
    assert last["phase"] == "eval"
