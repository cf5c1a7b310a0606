"""Measures what a cluster costs a real Prometheus, or VictoriaMetrics with vmalert.

One process serves the metrics of all nodes: a few simulated nodes go through the real exporter, in real time.
Every node of the cluster has the series of one of them, with its own name, run and ranks. Eight nodes share a
run. The server scrapes them, evaluates the rules of the profile, and stores both.

The results are series, samples, CPU time, memory, time of the rules, and disk. `benchmarks.rules_at_scale`
measures the rules alone, on more cores per node and without waiting for their windows.

Each server and profile takes WARMING and MEASURED seconds, one after another.
"""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
import yaml
from stepscope.exporter.sampling.profiles import PROFILES, Profile
from stepscope.prometheus.rules.files import EXISTING_CLUSTERS, render
from stepscope.prometheus.rules.options import Options

from benchmarks.cluster import HEALTHY, NODES_PER_RUN, RANKS, SCRAPE_SECONDS, TROUBLED
from benchmarks.page import BENCHMARKS, markdown, write_table
from benchmarks.rules_at_scale import cpu_seconds_of, get, say
from tests.support.demo import Node, simulated

PAGE = BENCHMARKS
HEAD = ("", "measured", "")
WARMING = 1080  # seconds: the rules' window of 15 minutes, and the longest interval of a group
MEASURED = 480  # seconds: two evaluations of each group
DAY = 86_400
_RUN, _RANK = b'run="simulated"', re.compile(rb'\brank="(\d)"')


class NodeTexts:
    """The metrics of all nodes, as text; `advance` simulates the time between two scrapes."""

    def __init__(self, simulations: Sequence[Node]) -> None:
        self._simulations = simulations
        self._texts: list[list[bytes]] = []  # by scenario and number of the node in its run

    def advance(self) -> None:
        texts = []
        for node in self._simulations:
            node.go(SCRAPE_SECONDS)
            text = node.exporter.scrape("text")
            texts.append([_of_node(text, number) for number in range(NODES_PER_RUN)])
        self._texts = texts

    def metrics(self, node: int) -> bytes:
        """Returns the current scrape of a node. Four of five runs are healthy."""
        run = node // NODES_PER_RUN
        scenario = 0 if run % 5 else 1 + run // 5 % (len(self._texts) - 1)
        text = self._texts[scenario][node % NODES_PER_RUN]
        return text.replace(_RUN, b'run="run-%04d"' % run)


def _of_node(text: bytes, number: int) -> bytes:
    return _RANK.sub(lambda match: b'rank="%d"' % (RANKS * number + int(match[1])), text)


@contextmanager
def served(profile: Profile) -> Iterator[str]:
    """Serves the metrics of all nodes at /NODE/metrics, and advances them in real time."""
    with ExitStack() as stack:
        simulations = [stack.enter_context(simulated(name, profile=profile)) for name in (HEALTHY, *TROUBLED)]
        cluster = NodeTexts(simulations)
        cluster.advance()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = cluster.metrics(int(self.path.split("/")[1]))
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        stack.callback(server.shutdown)
        done = threading.Event()

        def advance() -> None:
            due = time.monotonic() + SCRAPE_SECONDS
            while not done.wait(max(0.0, due - time.monotonic())):
                cluster.advance()
                due += SCRAPE_SECONDS

        threading.Thread(target=server.serve_forever, daemon=True).start()
        advancing = threading.Thread(target=advance, daemon=True)
        advancing.start()
        stack.callback(advancing.join)  # before its simulations end
        stack.callback(done.set)
        yield f"127.0.0.1:{server.server_port}"


@dataclass
class Store:
    """A running server: its address, its processes, and how it answers what the others are not asked."""

    name: str
    url: str
    pids: Sequence[int]
    samples: Callable[[], float]  # stored since its start
    rule_seconds: Callable[[], float]  # spent in evaluations since its start
    bytes_per_sample: Callable[[], float]


@contextmanager
def prometheus(directory: Path, scrape: Path, rules: Sequence[Path]) -> Iterator[Store]:
    configuration = json.loads(scrape.read_text()) | {"rule_files": [str(path) for path in rules]}
    (directory / "prometheus.json").write_text(json.dumps(configuration))
    address = _free_address()
    command = ["prometheus", f"--config.file={directory}/prometheus.json", "--log.level=error"]
    command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"]
    with _running([*command, "--web.enable-admin-api"]) as pid:
        url = f"http://{address}"
        version = get(url, "status/buildinfo")["version"].partition("+")[0]

        def bytes_per_sample() -> float:
            answer = requests.post(f"{url}/api/v1/admin/tsdb/snapshot", timeout=600).json()
            blocks = list((directory / "data" / "snapshots" / answer["data"]["name"]).glob("*/meta.json"))
            stored = sum(json.loads(path.read_text())["stats"]["numSamples"] for path in blocks)
            chunks = sum(file.stat().st_size for path in blocks for file in path.parent.glob("chunks/*"))
            return float(chunks / stored)

        yield Store(
            f"Prometheus {version}",
            url,
            [pid],
            lambda: _total(url, "prometheus_tsdb_head_samples_appended_total"),
            lambda: _total(url, "prometheus_rule_group_duration_seconds_sum"),
            bytes_per_sample,
        )


@contextmanager
def victoriametrics(directory: Path, scrape: Path, rules: Sequence[Path]) -> Iterator[Store]:
    address, alerts = _free_address(), _free_address()
    url = f"http://{address}"
    store = ["victoria-metrics", f"-storageDataPath={directory}/data", f"-httpListenAddr={address}"]
    store += [f"-promscrape.config={scrape}", "-loggerLevel=ERROR"]
    vmalert = ["vmalert", *(f"-rule={path}" for path in rules), f"-httpListenAddr={alerts}"]
    of_store = ("datasource", "remoteWrite", "remoteRead", "notifier")  # as a notifier, it refuses alerts
    vmalert += [f"-{role}.url={url}" for role in of_store]
    with _running(store) as first:
        told = subprocess.run(["victoria-metrics", "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\d+\.\d+\.\d+", told.stdout + told.stderr) or [""]
        with _running([*vmalert, "-loggerLevel=ERROR"]) as second:

            def bytes_per_sample() -> float:
                requests.get(f"{url}/internal/force_flush", timeout=600)
                return _total(url, "vm_data_size_bytes", "storage/") / _total(url, "vm_rows", "storage/")

            yield Store(
                f"VictoriaMetrics {version[0]}".rstrip() + " with vmalert",
                url,
                [first, second],
                lambda: _total(url, "vm_rows_inserted_total"),
                lambda: _total(f"http://{alerts}", "vmalert_iteration_duration_seconds_sum"),
                bytes_per_sample,
            )


SERVERS = {"prometheus": prometheus, "victoriametrics": victoriametrics}


def measure(server: str, profile: Profile, nodes: int, warming: float, measured: float) -> list[list[str]]:
    """Returns the rows of the table. Raises RuntimeError if the server is missing or scrapes too little."""
    needed = {"prometheus": ("prometheus",), "victoriametrics": ("victoria-metrics", "vmalert")}[server]
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise RuntimeError(f"needs {' and '.join(missing)}")
    with (
        tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as name,
        served(profile) as address,
    ):
        directory = Path(name)
        rules = _rules(directory, server, profile)
        scrape = _scrape_config(directory, address, nodes)
        with SERVERS[server](directory, scrape, rules) as store:
            _wait(warming, f"{store.name}, {profile}, {nodes:,} nodes: warming")
            begin = time.monotonic(), _cpu(store), store.samples(), store.rule_seconds()
            _wait(measured, "measuring")
            passed = time.monotonic() - begin[0]
            cpu, samples = (_cpu(store) - begin[1]) / passed, (store.samples() - begin[2]) / passed
            evaluating = (store.rule_seconds() - begin[3]) / passed
            answering = _value(store.url, "count(up == 1)")
            if answering < nodes:
                raise RuntimeError(f"only {answering:g} of {nodes} nodes were scraped at the end")
            scraped = _value(store.url, "sum(scrape_samples_scraped)")
            recorded = _value(store.url, 'count({__name__=~".+:.+"})')
            alerts = _value(store.url, "count(ALERTS)")
            memory = sum(_resident(pid) for pid in store.pids)
            disk = store.bytes_per_sample()
    what = f"{store.name}, {profile}, {nodes:,} nodes"
    return [
        [what, f"{scraped:,.0f} series scraped, {recorded:,.0f} recorded, {alerts:,.0f} of alerts", ""],
        ["series per node", f"{scraped / nodes:,.0f} scraped, {recorded / nodes:,.0f} recorded", ""],
        ["samples stored per second", f"{samples:,.0f}", ""],
        ["CPU", f"{100 * cpu:,.3g} % of a core", ""],
        ["memory", f"{memory / 2**20:,.0f} MiB", ""],
        ["rules, all groups in sequence", f"{100 * evaluating:,.3g} % of the time", ""],
        [
            "disk",
            f"{disk:.2f} bytes per sample",
            f"{disk * samples * DAY / 1e9:,.3g} GB per day (extrapolated)",
        ],
    ]


def _rules(directory: Path, server: str, profile: Profile) -> list[Path]:
    engine = "prometheus" if server == "prometheus" else "victoriametrics"
    options = Options(profile="lean" if profile == "lean" else "default", engine=engine)
    paths = []
    for name, text in render(options).items():
        if name != EXISTING_CLUSTERS:
            paths.append(directory / name)
            paths[-1].write_text(json.dumps(yaml.safe_load(text)))  # JSON is also YAML
    return paths


def _scrape_config(directory: Path, address: str, nodes: int) -> Path:
    targets = [
        {
            "targets": [address],
            "labels": {"instance": f"node-{node:05}", "__metrics_path__": f"/{node}/metrics"},
        }
        for node in range(nodes)
    ]
    scrape = {"job_name": "stepscope", "scrape_interval": f"{SCRAPE_SECONDS}s", "static_configs": targets}
    path = directory / "scrape.json"
    path.write_text(json.dumps({"scrape_configs": [scrape]}))
    return path


@contextmanager
def _running(command: Sequence[str]) -> Iterator[int]:
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()  # its data is no longer needed


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _text(url: str, path: str) -> str:
    """Returns an answer. Waits for a server that is starting."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return requests.get(f"{url}/{path}", timeout=60).text
        except requests.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _total(url: str, metric: str, containing: str = "") -> float:
    """Returns the sum of the series of a metric of the server itself."""
    lines = _text(url, "metrics").splitlines()
    found = [line for line in lines if re.match(rf"{metric}[{{ ]", line) and containing in line]
    return math.fsum(float(line.rsplit(" ", 1)[1]) for line in found)


def _value(url: str, expression: str) -> float:
    answer: Any = requests.get(f"{url}/api/v1/query", params={"query": expression}, timeout=600).json()
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _cpu(store: Store) -> float:
    return sum(cpu_seconds_of(pid) for pid in store.pids)


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _wait(seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        say(f"{what} for {left:,.0f} s more")
        time.sleep(min(60.0, left))


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=["default", "lean"])
    parser.add_argument("--warming", type=float, default=WARMING, metavar="SECONDS")
    parser.add_argument("--measured", type=float, default=MEASURED, metavar="SECONDS")
    parser.add_argument("--markdown", action="store_true", help=f"also write the table into {PAGE.name}")
    arguments = parser.parse_args()
    table: list[list[str]] = []
    for server in arguments.servers:
        for profile in arguments.profiles:
            table += measure(server, profile, arguments.nodes, arguments.warming, arguments.measured)
            print("\n".join("  ".join(row) for row in table[-7:]), flush=True)
    if arguments.markdown:
        write_table(PAGE, "make bench-scale", markdown(HEAD, table), name="scale")


if __name__ == "__main__":
    main()
