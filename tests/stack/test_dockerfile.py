"""The Dockerfile, as far as it can be tried without Docker: its files, its packages, its check of health."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

from tests.support.compose import FILE, PINNED_IMAGE, REPOSITORY
from tests.support.exporter_process import ExporterProcess
from tests.support.ports import held_port
from tests.support.processes import ran
from tests.support.waiting import SECONDS

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text())
    joined = re.sub(r"\\\n\s*", "", text)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def copied() -> list[str]:
    """What is copied from the build context."""
    return [name for rest in of("COPY") if not rest.startswith("--from=") for name in shlex.split(rest)[:-1]]


def test_what_is_copied_exists_and_is_all_that_dockerignore_lets_in() -> None:
    allowed = re.findall(r"(?m)^!(.+)$", (REPOSITORY / ".dockerignore").read_text())
    assert sorted(copied()) == sorted(allowed)
    for name in copied():
        assert (REPOSITORY / name).exists(), name


def test_stages_are_known_before_they_are_used_and_compose_builds_one_of_them() -> None:
    known: list[str] = []
    for word, rest in instructions():
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            assert image in known or PINNED_IMAGE.fullmatch(image), image
            known.append(name)
        if source := re.match(r"--from=(\S+)", rest):
            assert source[1] in known
    build = yaml.safe_load(FILE.read_text())["services"]["exporter"]["build"]
    assert build["target"] == known[-1] == "exporter"


def test_it_does_not_run_as_root_and_owns_where_it_keeps_its_state() -> None:
    (user,) = of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    account = next(rest for rest in of("RUN") if rest.startswith("useradd"))
    assert f"--uid {user.partition(':')[0]} " in account
    (command,) = of("CMD")
    (state,) = [word for word in json.loads(command) if word.startswith("--state-dir=")]
    folder = Path(state.partition("=")[2]).parent  # in which the exporter makes one for itself alone
    assert f"--owner stepscope --group stepscope {folder}" in account


def listed_packages() -> list[str]:
    """What the small image installs beside Stepscope itself."""
    (choice,) = [rest.partition(" >")[0] for rest in of("RUN") if "psutil" in rest]
    chosen = ran(shlex.split(choice), cwd=REPOSITORY, check=True).stdout
    assert len(re.findall(r"(?m)^\S", chosen)) == len(
        re.findall(r"==[^=]+--hash=", chosen)
    )  # each with a hash
    return re.findall(r"(?m)^(\S+?)==", chosen)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what the small image has: Stepscope, built from the copied files, and packages.

    Packages come from the environment of the tests, so that no network is needed.
    """
    folder = tmp_path_factory.mktemp("image")
    context, built = folder / "context", folder / "built"
    context.mkdir()
    for name in copied():
        source = REPOSITORY / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, context / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", built, context], check=True, timeout=SECONDS)
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = built.glob("stepscope-*.whl")
    shutil.unpack_archive(wheel, packages, "zip")
    for name in listed_packages():
        installed = distribution(name)
        for file in installed.files or ():
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(installed.locate_file(file)), packages / file)
    return folder / "venv" / "bin" / "python"


@pytest.mark.parametrize("words", [["exporter"], ["demo"], ["actions"]])
def test_the_small_image_has_all_that_its_commands_need(image: Path, words: list[str]) -> None:
    told = ran([image, "-m", "stepscope", *words, "--help"], cwd="/")
    assert told.returncode == 0, told.stderr
    assert f"usage: stepscope {words[0]}" in told.stdout


def test_a_command_that_it_has_not_is_refused_in_one_line(image: Path, tmp_path: Path) -> None:
    told = ran([image, "-m", "stepscope", "report", "x", "--out", tmp_path / "y"], cwd="/")
    assert told.returncode == 2
    assert "numpy" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_the_check_of_health_tells_a_ready_exporter_from_none(image: Path, tmp_path: Path) -> None:
    (check,) = of("HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    with ExporterProcess(f"--ledger-dir={tmp_path}", environment=os.environ) as exporter:
        port = exporter.url.rpartition(":")[2]
        assert health(image, words, port) == 0
    with held_port() as silent:
        assert health(image, words, silent) == 1


def health(python: Path, words: list[str], port: str | int) -> int:
    assert words[0] == "python"
    command = [str(python), *(word.replace("9870", str(port)) for word in words[1:])]
    return subprocess.run(command, capture_output=True, timeout=SECONDS).returncode


def test_the_image_starts_the_exporter_of_itself(image: Path, tmp_path: Path) -> None:
    assert json.loads(of("ENTRYPOINT")[0]) == ["stepscope"]
    command, *flags = json.loads(of("CMD")[0])
    assert command == "exporter"
    small = ExporterProcess(
        *(flag.replace("/var/lib/stepscope", str(tmp_path)) for flag in flags), f"--ledger-dir={tmp_path}"
    )
    small.command[0] = str(image)
    with small as exporter:
        exporter.wait_for(lambda: "stepscope_cpu_utilization_ratio" in exporter.scrape())
