"""Prometheus and Alertmanager for tests: the programs of this machine, or containers of pinned images.

Both get the same flags and the same folder, so that a test of the one is a test of the other.
"""

import gc
import os
import shutil
import subprocess
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import requests
import yaml

from tests.support.ports import held_port
from tests.support.waiting import SECONDS

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
NEWER = COMPOSE.parent / ".venv" / "newer-servers" / "usr" / "bin"  # of tests/install-servers
DEBIAN = "/usr/bin"
Name = Literal["prometheus", "alertmanager"]
Failure = Callable[[], str | None]  # what a server said last, where it has ended


def prepare_servers() -> None:
    """Puts the newer servers, if they are there, before all others on the PATH.

    Go collects garbage when its heap has grown to five times what was left, not to twice: a fifth less CPU
    time of Prometheus and promtool (measured with a week of rules: 30 s and 24 s).
    """
    os.environ.setdefault("GOGC", "400")
    if NEWER.is_dir():
        os.environ["PATH"] = f"{NEWER}{os.pathsep}{os.environ['PATH']}"


class Servers(ABC):
    """A way to run servers on addresses of this machine."""

    @abstractmethod
    def missing(self) -> str | None:
        """What it would need and does not find; None where it can run."""

    @abstractmethod
    def running(self, name: Name, folder: Path, flags: Sequence[str]) -> AbstractContextManager[Failure]:
        """A server that reads and writes in `folder`, and is gone behind the context."""

    def prometheus(self, config: Path, storage: Path, *flags: str) -> AbstractContextManager[str]:
        """Gives its URL when it is ready. Files that `config` names lie in its folder or below."""
        files = [f"--config.file={config}", f"--storage.tsdb.path={storage}"]
        return self._serving("prometheus", config.parent, [*files, "--log.level=warn", *flags])

    def alertmanager(self, config: Path, *flags: str) -> AbstractContextManager[str]:
        """Gives its URL when it is ready. Files that `config` names lie in its folder or below."""
        files = [f"--config.file={config}", f"--storage.path={config.parent}/data"]
        return self._serving("alertmanager", config.parent, [*files, "--cluster.listen-address=", *flags])

    @contextmanager
    def _serving(self, name: Name, folder: Path, flags: Sequence[str]) -> Iterator[str]:
        with held_port() as port:
            url = f"http://127.0.0.1:{port}"
            listening = [f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url={url}"]
            with self.running(name, folder, [*flags, *listening]) as failure:
                deadline = time.monotonic() + SECONDS
                while not is_ready(f"{url}/-/ready"):
                    ended = failure()
                    assert ended is None, f"{name} ended: {ended}"
                    assert time.monotonic() < deadline, f"{name} does not become ready"
                    time.sleep(0.05)
                yield url


class Programs(Servers):
    """What is on the PATH, or the `path`, under the names that Debian's packages give."""

    names: ClassVar[dict[Name, str]] = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    def missing(self) -> str | None:
        absent = [name for name in self.names.values() if shutil.which(name, path=self._path) is None]
        return f"needs Debian's packages {' and '.join(absent)}" if absent else None

    @contextmanager
    def running(self, name: Name, folder: Path, flags: Sequence[str]) -> Iterator[Failure]:
        log = folder / "log"
        with (
            log.open("w") as output,
            subprocess.Popen([self._program(name), *flags], stderr=output, stdout=output) as process,
        ):
            try:
                yield lambda: None if process.poll() is None else log.read_text()
            finally:
                process.terminate()

    def _program(self, name: Name) -> str:
        return shutil.which(self.names[name], path=self._path) or self.names[name]


class Containers(Servers):
    """The images of docker-compose.yml, in a Docker engine that shares this machine's network and files."""

    @staticmethod
    def image(name: Name) -> str:
        its: str = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"][name]["image"]
        return its

    def missing(self) -> str | None:
        told = _docker_info()
        if told is None:
            return "needs a Docker engine"
        rootless = any("rootless" in option for option in told.get("SecurityOptions") or ())
        if told["OSType"] != "linux" or told["OperatingSystem"] == "Docker Desktop" or rootless:
            return "needs a Docker engine that shares this machine's network"
        return None

    @contextmanager
    def running(self, name: Name, folder: Path, flags: Sequence[str]) -> Iterator[Failure]:
        from testcontainers.core.container import DockerContainer

        container = (
            DockerContainer(self.image(name))
            .with_command(list(flags))
            .with_volume_mapping(str(folder), str(folder), "rw")
            .with_kwargs(network_mode="host", user=f"{os.getuid()}:{os.getgid()}")
        )
        with container as started:
            its = started.get_wrapped_container()

            def failure() -> str | None:
                its.reload()
                return None if its.status in ("created", "running") else its.logs().decode()

            yield failure


def _docker_info() -> dict[str, Any] | None:
    """What the Docker engine says of itself; None where there is none."""
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # the package leaves a socket open that nobody answers
        try:
            engine = docker.from_env(timeout=SECONDS)
        except DockerException:
            return None
        finally:
            gc.collect()
    try:
        told: dict[str, Any] = engine.info()
        return told
    finally:
        engine.close()


def is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=SECONDS).status_code == 200
    except requests.ConnectionError:
        return False
