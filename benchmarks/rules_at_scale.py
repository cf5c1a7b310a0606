"""What all rules cost a Prometheus that scrapes 1,000 nodes with 8 GPUs each, every 15 s.

A real Prometheus with two cores evaluates rules/*.yml, each group at its own interval, over a block with the
series that the real exporter gives for that many nodes (benchmarks/cluster.py). What is measured is the time
of each evaluation, the samples that its queries read (Prometheus's query log), and the CPU time of the whole
process: queries, alerts, storing of results, garbage collection. In real life the newest samples lie in
memory and not in a block, where series are found faster.

`python -m benchmarks.rules_at_scale --nodes 100` measures a smaller cluster. What it costs is not a tenth of
what 1,000 nodes cost: only what was measured is said, and only 1,000 nodes are held against the budget.
"""

from __future__ import annotations

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
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any

import requests
import yaml

from benchmarks import Row
from benchmarks.cluster import SCRAPE_SECONDS, Cluster
from benchmarks.tsdb_block import Statistics, write_block

NODES = 1000
BUDGET = "<= 10"  # % of two cores, and of each group's interval
CORES = 2
RULES = Path(__file__).parents[1] / "rules"

SCRAPES = 112  # 28 minutes
BEFORE = 660  # seconds of them before the writing of the block begins: longer than any rule looks back
WARMING = 150  # seconds: the longest range of a series that the rules themselves record
MEASURED = 300  # seconds: the longest interval of a group


@dataclass
class Group:
    """What one rule group came to."""

    name: str
    interval: float  # seconds, as the rule file says
    evaluations: dict[str, float] = field(default_factory=dict)  # when it was -> seconds that it took
    samples: list[int] = field(default_factory=list)  # that each query of it read

    @property
    def seconds(self) -> float:
        """Of an evaluation; not a number where there was none."""
        return mean(self.evaluations.values()) if self.evaluations else nan

    @property
    def share(self) -> float:
        """Of its interval."""
        return self.seconds / self.interval


@dataclass
class Measured:
    """What all groups came to."""

    nodes: int
    gpus: int
    block: Statistics
    groups: list[Group]
    firing: int  # alerts, at the end
    failed: list[str]  # rules, and why
    cpu_share: float  # of two cores

    @property
    def share(self) -> float:
        """Of the time, all groups one after the other."""
        return sum(group.share for group in self.groups)


def rows() -> list[Row]:
    return table(measure(NODES))


def table(measured: Measured) -> list[Row]:
    """The budget is that of 1,000 nodes; what a smaller cluster costs only informs."""
    budget = BUDGET if measured.nodes == NODES else ""
    what = f"{measured.nodes:,} nodes, {measured.gpus:,} GPUs, {measured.block.series:,} series"
    found: list[Row] = [
        (f"all rules for {what}: CPU of Prometheus, of {CORES} cores", 100 * measured.cpu_share, "%", budget),
        ("  all groups one after the other, of the time", 100 * measured.share, "%", budget),
        ("  alerts that fire meanwhile", measured.firing, "", ""),
        *((f"  not evaluated: {reason}", 1, "", "<= 0") for reason in measured.failed),
    ]
    for group in sorted(measured.groups, key=lambda group: -group.share):
        read = f"{sum(group.samples) / 1e6:,.3g} M samples"
        name = group.name.removeprefix("trainwatch-")
        what = f"  {name}, each {group.interval:g} s: {read}, {group.seconds:,.2g} s; of its interval"
        found.append((what, 100 * group.share, "%", budget))
    return found


def measure(
    nodes: int,
    scrapes: int = SCRAPES,
    warming: float = WARMING,
    measured: float = MEASURED,
    every: float | None = None,
    troubled: Sequence[str] | None = None,
) -> Measured:
    """Builds a block and lets Prometheus evaluate the rules over it for some minutes.

    `every`: seconds between evaluations of each group, instead of what the rule files say.
    """
    if shutil.which("prometheus") is None:
        raise RuntimeError("needs prometheus")
    _say(f"simulating the nodes that {nodes:,} are like")
    cluster = Cluster(nodes, scrapes, **({} if troubled is None else {"troubled": troubled}))
    with tempfile.TemporaryDirectory(prefix="trainwatch-benchmark-") as name:
        directory = Path(name)
        files, groups = _rules(directory, every)
        now = int(time.time())
        start = now - min(BEFORE, SCRAPE_SECONDS * scrapes // 2)
        looked_back_at = _looked_back_at(files)
        block = write_block(
            directory / "data",
            cluster.strings(looked_back_at),
            _shown(cluster.series(start, looked_back_at, now), nodes),
        )
        _say(f"wrote {block.series:,} series, {block.bytes / 2**20:,.0f} MiB, in {time.time() - now:,.0f} s")
        if time.time() + warming + measured > start + SCRAPE_SECONDS * scrapes:
            raise RuntimeError("writing the block took so long that its samples end too early")
        with _prometheus(directory, files) as (process, url):
            _evaluate(url, groups, warming)
            for group in groups.values():
                group.evaluations.clear()
            log = directory / "queries.log"
            logged = log.stat().st_size
            begin, spent = time.monotonic(), _cpu_seconds(process.pid)
            _evaluate(url, groups, measured)
            passed, spent = time.monotonic() - begin, _cpu_seconds(process.pid) - spent
            failed = _failed(url)
            firing = sum(alert["state"] == "firing" for alert in _get(url, "alerts")["alerts"])
            _read_log(log, logged, groups)
    return Measured(nodes, cluster.gpus, block, list(groups.values()), firing, failed, spent / passed / CORES)


def _rules(directory: Path, every: float | None) -> tuple[list[Path], dict[str, Group]]:
    """Copies of all rule files, and their groups without anything measured."""
    files, groups = [], {}
    for path in sorted(RULES.glob("*.yml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in content["groups"]:
            groups[group["name"]] = Group(group["name"], _seconds(group["interval"]))
            if every is not None:
                group["interval"] = f"{round(1000 * every)}ms"
        files.append(directory / path.name)
        files[-1].write_text(json.dumps(content), encoding="utf-8")  # which is YAML too
    return files, groups


def _looked_back_at(files: Sequence[Path]) -> set[str]:
    """The recorded series that some rule reads at an earlier time."""
    expressions = [
        rule
        for path in files
        for group in json.loads(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    recorded = {rule["record"] for rule in expressions if "record" in rule}
    text = "\n".join(rule["expr"] for rule in expressions)
    return {name for name in recorded if re.search(rf"{re.escape(name)}(\{{[^}}]*\}})? offset", text)}


def _shown(series: Iterator[Any], nodes: int) -> Iterator[Any]:
    """The same, telling how many there were already."""
    for count, one in enumerate(series):
        if count % 250_000 == 0:
            _say(f"writing the series of {nodes:,} nodes: {count:,}")
        yield one


@contextmanager
def _prometheus(directory: Path, files: Sequence[Path]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    configuration = {
        "global": {"query_log_file": str(directory / "queries.log")},
        "rule_files": [str(path) for path in files],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", "--log.level=error"]
    command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"]
    environment = {**os.environ, "GOMAXPROCS": str(CORES)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process, f"http://{address}"
        finally:
            process.send_signal(signal.SIGKILL)  # nothing of it is needed any more


def _evaluate(url: str, groups: dict[str, Group], seconds: float) -> None:
    """Notes each evaluation in so many seconds."""
    deadline = time.monotonic() + seconds
    noted = time.monotonic()
    while (now := time.monotonic()) < deadline:
        if now >= noted:
            _say(f"evaluating for {deadline - now:,.0f} s more")
            noted += 30
        time.sleep(min(2.0, max(0.0, deadline - now)))
        for found in _get(url, "rules?type=record")["groups"]:  # without the alerts, which may be many
            if found["evaluationTime"] > 0:
                groups[found["name"]].evaluations[found["lastEvaluation"]] = found["evaluationTime"]


def _failed(url: str) -> list[str]:
    """The rules that could not be evaluated the last time: mostly, they did not end in two minutes."""
    return [
        f"{rule['name']} of {group['name']}: {rule['lastError']}"
        for group in _get(url, "rules")["groups"]
        for rule in group["rules"]
        if rule.get("lastError")
    ]


def _get(url: str, path: str) -> Any:
    """The data of an answer; waits for a server that just starts."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return requests.get(f"{url}/api/v1/{path}", timeout=60).json()["data"]
        except (requests.ConnectionError, ValueError):  # noqa: PERF203
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _read_log(path: Path, since: int, groups: dict[str, Group]) -> None:
    """The samples that one evaluation of each group reads, query by query."""
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


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _seconds(text: str) -> float:
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", text))


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.rules_at_scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"how many (default: {NODES:,})")
    from benchmarks.__main__ import print_table

    print_table(table(measure(parser.parse_args().nodes)))


if __name__ == "__main__":
    main()
