"""A live Grafana: the whole stack where there is a Docker engine, else a program `grafana` of this machine.

Only where STEPSCOPE_LIVE_GRAFANA is set, because images are downloaded: some hundreds of megabytes.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.compose import FILE, REPOSITORY, compose_command

SECONDS = 600  # images may have to be downloaded
DASHBOARDS = {path.stem for path in (REPOSITORY / "grafana" / "dashboards").glob("*.json")}
HOMEPATHS = ("/usr/share/grafana", "/usr/local/share/grafana")

pytestmark = [
    pytest.mark.grafana,
    pytest.mark.timeout(2 * SECONDS),
    pytest.mark.skipif(
        "STEPSCOPE_LIVE_GRAFANA" not in os.environ, reason="STEPSCOPE_LIVE_GRAFANA is not set"
    ),
]


def has_engine() -> bool:
    if shutil.which("docker") is None or compose_command() is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0


def get(url: str) -> Any:
    answer = requests.get(url, timeout=30)
    answer.raise_for_status()
    return answer.json()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(requests.RequestException):
            if condition():
                return
        time.sleep(1)
    pytest.fail("it never happened")


def free_ports(*names: str) -> dict[str, str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: str(one.getsockname()[1]) for name, one in zip(names, sockets, strict=True)}
    for one in sockets:
        one.close()
    return ports


def check_dashboards(url: str) -> None:
    """Who is not signed in sees every dashboard, and may change none."""
    wait_for(lambda: {one["uid"] for one in get(f"{url}/api/search?type=dash-db")} == DASHBOARDS)
    for uid in DASHBOARDS:
        found = get(f"{url}/api/dashboards/uid/{uid}")
        assert found["meta"]["folderTitle"] == "Stepscope"
        assert not found["meta"]["canSave"]
        assert found["dashboard"]["panels"]
    assert (
        requests.post(f"{url}/login", json={"user": "admin", "password": "admin"}, timeout=30).status_code
        != 200
    )


@contextmanager
def stack(environment: Mapping[str, str]) -> Iterator[None]:
    command = compose_command()
    assert command is not None
    words = [*command, f"--file={FILE}", "--project-name=stepscope-test", f"--env-file={os.devnull}"]

    def run(*more: str) -> None:
        subprocess.run([*words, *more], env={**os.environ, **environment}, check=True, timeout=SECONDS)

    services = ["exporter", "prometheus", "alertmanager", "grafana", "cpu-bottleneck", "healthy"]
    try:
        run("--profile=demo", "up", "--detach", "--wait", "--build", *services)
        yield
    finally:
        run("--profile=demo", "down", "--volumes")


@pytest.mark.skipif(not has_engine(), reason="needs a Docker engine")
def test_the_stack_comes_up_and_grafana_shows_the_run_that_is_cpu_bound() -> None:
    ports = free_ports("GRAFANA_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "STEPSCOPE_PORT")
    with stack(ports):
        url = f"http://127.0.0.1:{ports['GRAFANA_PORT']}"
        check_dashboards(url)
        query = {
            "from": "now-5m",
            "to": "now",
            "queries": [
                {
                    "refId": "A",
                    "datasource": {"uid": "stepscope-prometheus"},
                    "expr": "run_instance:stepscope_cpu_starved:ratio > 0.5",
                    "instant": True,
                }
            ],
        }

        def cpu_bound() -> bool:
            answer = requests.post(f"{url}/api/ds/query", json=query, timeout=30).json()
            return "simulated-cpu-bottleneck" in str(answer) and "simulated-healthy" not in str(answer)

        wait_for(cpu_bound)


@pytest.mark.skipif(
    shutil.which("grafana") is None or has_engine(), reason="needs a program `grafana`, and no Docker engine"
)
def test_a_grafana_of_this_machine_takes_the_provisioning(tmp_path: Path) -> None:
    provisioning = Path(shutil.copytree(REPOSITORY / "grafana" / "provisioning", tmp_path / "provisioning"))
    (provider,) = (provisioning / "dashboards").glob("*.yml")
    dashboards = str(REPOSITORY / "grafana" / "dashboards")
    provider.write_text(provider.read_text().replace("/etc/grafana/dashboards", dashboards))
    port = free_ports("GRAFANA_PORT")["GRAFANA_PORT"]
    environment = {
        **os.environ,
        "PROMETHEUS_URL": "http://127.0.0.1:9090",
        "ALERTMANAGER_URL": "http://127.0.0.1:9093",
        "GF_PATHS_PROVISIONING": str(provisioning),
        "GF_PATHS_DATA": str(tmp_path / "data"),
        "GF_PATHS_LOGS": str(tmp_path / "logs"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": port,
    }
    homepath = next(path for path in HOMEPATHS if Path(path).is_dir())
    command = ["grafana", "server", f"--homepath={homepath}"]
    command += [f"--config={REPOSITORY / 'grafana' / 'grafana.ini'}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            check_dashboards(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
