"""Measures the cost of all rules in a Prometheus that scrapes 1,000 nodes with 8 GPUs each, every 15 s.

A real Prometheus with two cores evaluates rules/*.yml, each group at its own interval. It reads the series of
the real exporter for that many nodes (benchmarks/cluster.py). They are in its head, in memory, like series
that it scrapes itself. The samples are written before, some minutes into the future.

The results are the time of each evaluation, the samples that its queries read (Prometheus's query log), and
the CPU time of the whole process. That includes queries, alerts, storing and garbage collection, but no
scraping.

`python -m benchmarks.rules_at_scale --nodes 100` measures a smaller cluster. It costs more than a tenth of
1,000 nodes, so only 1,000 nodes are compared with the budget.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any

import requests
import yaml
from stepscope.prometheus.crosscheck.offline.prometheus import HEADERS

from benchmarks import Row
from benchmarks.cluster import SCRAPE_SECONDS, SERIES_PER_REQUEST, Cluster

NODES = 1000
BUDGET = "<= 8"  # % of two cores, and of each group's interval
CORES = 2
RULES = Path(__file__).parents[1] / "rules"

BEFORE = 1020  # seconds of past samples: longer than any rule looks back at scraped series
AHEAD = 580  # seconds of future samples: Prometheus accepts up to ten minutes
WARMING = 90  # seconds
MEASURED = 240  # seconds: the longest interval of a group, so that each group is evaluated
LATE = 60  # seconds more, on a busy machine


@dataclass
class Group:
    """The measurements of one rule group."""

    name: str
    interval: float  # seconds, from the rule file
    evaluations: dict[str, float] = field(default_factory=dict)  # seconds by time of the evaluation
    samples: list[int] = field(default_factory=list)  # read by each query

    @property
    def seconds(self) -> float:
        """Returns the mean seconds of an evaluation; NaN without one."""
        return mean(self.evaluations.values()) if self.evaluations else nan

    @property
    def share(self) -> float:
        """Returns the share of the group's interval."""
        return self.seconds / self.interval


@dataclass
class Measured:
    """The measurements of all groups."""

    version: str  # of Prometheus
    nodes: int
    gpus: int
    series: int  # scraped
    groups: list[Group]
    firing: int  # alerts, at the end
    failed: list[str]  # rules, and why
    cpu_share: float  # of two cores

    @property
    def share(self) -> float:
        """Returns the share of the time of all groups in sequence."""
        return sum(group.share for group in self.groups)


def rows() -> list[Row]:
    return table(measure(NODES))


def table(measured: Measured) -> list[Row]:
    """Returns the rows. Only 1,000 nodes have a budget."""
    budget = BUDGET if measured.nodes == NODES else ""
    what = (
        f"all rules for {measured.nodes:,} nodes, {measured.gpus:,} GPUs, {measured.series:,} series: "
        f"CPU of Prometheus {measured.version}, of {CORES} cores"
    )
    found: list[Row] = [
        (what, 100 * measured.cpu_share, "%", budget),
        ("  all groups in sequence, on one core, share of the time", 100 * measured.share, "%", ""),
        ("  alerts that fire in this time", measured.firing, "", ""),
        *((f"  not evaluated: {reason}", 1, "", "<= 0") for reason in measured.failed),
    ]
    for group in sorted(measured.groups, key=lambda group: -group.share):
        read = f"{sum(group.samples) / 1e6:,.3g} M samples"
        name = group.name.removeprefix("stepscope-")
        what = f"  {name}, every {group.interval:g} s: {read}, {group.seconds:,.2g} s; share of its interval"
        found.append((what, 100 * group.share, "%", budget))
    return found


def measure(
    nodes: int,
    warming: float = WARMING,
    measured: float = MEASURED,
    every: float | None = None,
    troubled: Sequence[str] | None = None,
) -> Measured:
    """Fills a Prometheus and lets it evaluate the rules for some minutes.

    `every`: seconds between evaluations of each group, instead of the rule files' intervals.
    """
    if shutil.which("prometheus") is None:
        raise RuntimeError("needs prometheus")
    say(f"simulating {nodes:,} nodes")
    start = int(time.time()) - BEFORE
    scrapes = (BEFORE + AHEAD) // SCRAPE_SECONDS
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as name:
        directory = Path(name)
        files, groups = _rules(directory, every)
        read = _read(files)
        cluster = Cluster(nodes, scrapes, start, read, **({} if troubled is None else {"troubled": troubled}))
        with _prometheus(directory) as (process, url):
            _fill(url, cluster.requests(_looked_back_at(files), start + BEFORE), nodes)
            if time.time() + warming + measured > start + BEFORE + AHEAD:
                raise RuntimeError("writing the samples took too long: they end before the measurement")
            _configure(directory, files)
            process.send_signal(signal.SIGHUP)
            _evaluate(url, groups, warming)
            for group in groups.values():
                group.evaluations.clear()
            log = directory / "queries.log"
            logged = log.stat().st_size
            begin, spent = time.monotonic(), cpu_seconds_of(process.pid)
            _evaluate(url, groups, measured)
            passed, spent = time.monotonic() - begin, cpu_seconds_of(process.pid) - spent
            failed = _failed(url)
            version = get(url, "status/buildinfo")["version"].partition("+")[0]
            firing = sum(alert["state"] == "firing" for alert in get(url, "alerts")["alerts"])
            _read_log(log, logged, groups)
    share = spent / passed / CORES
    return Measured(
        version, nodes, cluster.gpus, cluster.series, list(groups.values()), firing, failed, share
    )


def _rules(directory: Path, every: float | None) -> tuple[list[Path], dict[str, Group]]:
    """Copies all rule files. Returns the copies, and their groups without measurements."""
    files, groups = [], {}
    for path in sorted(RULES.glob("*.yml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in content["groups"]:
            groups[group["name"]] = Group(group["name"], _seconds(group["interval"]))
            if every is not None:
                group["interval"] = f"{round(1000 * every)}ms"
        files.append(directory / path.name)
        files[-1].write_text(json.dumps(content), encoding="utf-8")  # JSON is also YAML
    return files, groups


def _read(files: Sequence[Path]) -> set[str]:
    """Returns the names of all series that rules read."""
    return set(re.findall(r"[a-zA-Z_:][\w:]*", "\n".join(path.read_text() for path in files)))


def _looked_back_at(files: Sequence[Path]) -> set[str]:
    """Returns the recorded series that a rule reads at an earlier time."""
    expressions = [
        rule
        for path in files
        for group in json.loads(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    recorded = {rule["record"] for rule in expressions if "record" in rule}
    text = "\n".join(rule["expr"] for rule in expressions)
    return {name for name in recorded if re.search(rf"{re.escape(name)}(\{{[^}}]*\}})? offset", text)}


def _fill(url: str, requests_to_send: Iterator[bytes], nodes: int) -> None:
    """Sends all samples, and prints the progress."""
    get(url, "status/buildinfo")  # waits until it is ready
    noted = time.monotonic()
    with requests.Session() as session:
        for count, body in enumerate(requests_to_send):
            answer = session.post(f"{url}/api/v1/write", data=body, headers=HEADERS, timeout=60)
            if answer.status_code // 100 != 2:
                raise RuntimeError(f"Prometheus refuses the samples: {answer.text}")
            if time.monotonic() > noted + 10:
                noted = time.monotonic()
                say(f"writing the series of {nodes:,} nodes: {SERIES_PER_REQUEST * count:,}")


@contextmanager
def _prometheus(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Starts a Prometheus without rules."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    _configure(directory, [])
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", "--log.level=error"]
    command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"]
    # A head that spans a day takes the hours of history that rules look back at.
    command += ["--storage.tsdb.min-block-duration=1d", "--storage.tsdb.max-block-duration=1d"]
    command += ["--web.enable-remote-write-receiver"]
    environment = {**os.environ, "GOMAXPROCS": str(CORES)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process, f"http://{address}"
        finally:
            process.send_signal(signal.SIGKILL)  # its data is no longer needed


def _configure(directory: Path, files: Sequence[Path]) -> None:
    configuration = {
        "global": {"query_log_file": str(directory / "queries.log")},
        "rule_files": [str(path) for path in files],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration))


def _evaluate(url: str, groups: dict[str, Group], seconds: float) -> None:
    """Collects the evaluations that begin in the next seconds, or until each group has one."""
    begin, deadline = time.time(), time.monotonic() + seconds
    noted = time.monotonic()
    while (now := time.monotonic()) < deadline or (
        now < deadline + LATE and not all(group.evaluations for group in groups.values())
    ):
        if now >= noted:
            say(f"evaluating for {max(0.0, deadline - now):,.0f} s more")
            noted += 30
        time.sleep(min(2.0, max(0.1, deadline - now)))
        for found in get(url, "rules?exclude_alerts=true")["groups"]:  # there may be many
            since = datetime.fromisoformat(found["lastEvaluation"]).timestamp()
            if found["evaluationTime"] > 0 and since >= begin:
                groups[found["name"]].evaluations[found["lastEvaluation"]] = found["evaluationTime"]


def _failed(url: str) -> list[str]:
    """Lists the rules whose last evaluation failed, most often because it took more than two minutes."""
    return [
        f"{rule['name']} of {group['name']}: {rule['lastError']}"
        for group in get(url, "rules")["groups"]
        for rule in group["rules"]
        if rule.get("lastError")
    ]


def get(url: str, path: str) -> Any:
    """Returns the data of an answer. Waits for a server that is starting."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return requests.get(f"{url}/api/v1/{path}", timeout=60).json()["data"]
        except (requests.ConnectionError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _read_log(path: Path, since: int, groups: dict[str, Group]) -> None:
    """Adds the samples that one evaluation of each group reads, query by query."""
    with open(path, encoding="utf-8") as file:
        file.seek(since)
        samples: dict[tuple[str, str], int] = {}
        for line in file:
            query = json.loads(line)
            if "ruleGroup" in query:
                key = query["ruleGroup"]["name"], query["params"]["query"]
                samples[key] = query["stats"]["samples"]["totalQueryableSamples"]
    for (name, _), count in samples.items():
        groups[name].samples.append(count)


def cpu_seconds_of(pid: int) -> float:
    """Returns the CPU seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _seconds(text: str) -> float:
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", text))


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.rules_at_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"how many (default: {NODES:,})")
    from benchmarks.__main__ import print_table

    print_table(table(measure(parser.parse_args().nodes)))


if __name__ == "__main__":
    main()
