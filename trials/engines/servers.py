"""The engines that are installed here, and how each of them evaluates rules over stored series."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import requests
import yaml
from stepscope.common.durations import parse_duration
from stepscope.prometheus.crosscheck.offline.check import evaluate_in_turn
from stepscope.prometheus.crosscheck.offline.prometheus import LocalPrometheus, free_address, local_prometheus
from stepscope.prometheus.crosscheck.rule_files import FileGroup
from stepscope.prometheus.crosscheck.server import Grid, Series, Server
from stepscope.prometheus.rules.files import META, RULES, render
from stepscope.prometheus.rules.groups import Group
from stepscope.prometheus.rules.options import PROMETHEUS, Options
from stepscope.rules.parts.promql import Scraping

from trials.shared_cluster.judge import FiringAlert, fired, firing, rule_groups
from trials.shared_cluster.plan import START

NEWER = Path(__file__).parents[2] / ".venv" / "newer-servers" / "usr" / "bin"
SECONDS = 60  # until a server is ready on a busy machine
E = TypeVar("E")
_READ = re.compile(r"[a-zA-Z_]\w*:[\w:]+")


class Engine(Protocol):
    """An engine of this machine."""

    @property
    def title(self) -> str: ...

    @property
    def engine(self) -> str:
        """Returns the name for which rules are rendered."""

    def decided(self, series: Sequence[Series], interval: float, seconds: float) -> list[FiringAlert]:
        """Returns the alerts that fire if these series are scraped every `interval` seconds."""


def engines_here() -> list[Engine]:
    """Returns the engines of the distribution, and the newer ones."""
    return [*installed("prometheus", PrometheusHere), *installed("victoria-metrics", VictoriaMetricsHere)]


def installed(program: str, kind: Callable[[Path], E]) -> list[E]:
    """Returns an engine's versions: that on the PATH, and the newer one."""
    found = (shutil.which(program), shutil.which(program, path=str(NEWER)))
    return [kind(Path(path)) for path in dict.fromkeys(found) if path]


@dataclass(frozen=True)
class PrometheusHere:
    """A real Prometheus, asked for each expression at each evaluation."""

    program: Path
    engine: str = PROMETHEUS

    @property
    def title(self) -> str:
        told = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"version (\d+\.\d+)", told.stdout + told.stderr)
        return f"Prometheus {version[1] if version else ''}".strip()

    def decided(self, series: Sequence[Series], interval: float, seconds: float) -> list[FiringAlert]:
        with local_prometheus(str(self.program)) as store:
            store.write(series)
            return firing(store, rule_groups(interval, self.engine), seconds)


@dataclass(frozen=True)
class VictoriaMetricsHere:
    """A real VictoriaMetrics, with a real vmalert that replays the rules over what is stored."""

    program: Path
    engine: str = "victoriametrics"

    @property
    def title(self) -> str:
        return f"VictoriaMetrics {_debian_version(self.program)}".strip()

    def decided(self, series: Sequence[Series], interval: float, seconds: float) -> list[FiringAlert]:
        files = rule_groups(interval, self.engine)
        start, end = START, START + seconds
        with local_victoriametrics(self.program) as store, Server(store.url) as server:
            store.write(series)
            self._remember(server, store, files, seconds)
            for groups in passes(_rendered(interval)):
                self._replay(store, groups, start, end)
                store.write(ended(server, groups, seconds))
            return fired(server, files, 1000 * start, round(1000 * end))

    def _remember(
        self, server: Server, store: LocalVictoriaMetrics, groups: Iterable[FileGroup], seconds: float
    ) -> None:
        """Evaluates the records that read their own past: vmalert replays all moments of a rule at once."""
        for group in groups:
            grid = Grid(1000 * START, group.interval, 1 + round(1000 * seconds) // group.interval)
            for rule in group.rules:
                if not rule.is_alert and rule.name in rule.expression:
                    evaluate_in_turn(server, store, rule, grid)

    def _replay(self, store: LocalVictoriaMetrics, groups: Sequence[Group], start: float, end: float) -> None:
        with tempfile.TemporaryDirectory() as directory:
            rules = Path(directory) / "rules.yml"
            rules.write_text(yaml.safe_dump({"groups": list(groups)}, sort_keys=False))
            flags = [
                f"-rule={rules}",
                f"-datasource.url={store.url}",
                f"-remoteWrite.url={store.url}",
                "-remoteWrite.flushInterval=50ms",
                "-datasource.queryStep=0s",  # the group's interval: older versions replay every five minutes
                "-disableAlertgroupLabel",
                f"-replay.timeFrom={_written(start)}",
                f"-replay.timeTo={_written(end)}",
                "-replay.rulesDelay=0s",
                "-replay.disableProgressBar",
                f"-httpListenAddr={free_address()}",
                "-loggerLevel=ERROR",
            ]
            command = [str(self.program.with_name("vmalert")), *flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        store.flush()


def ended(server: Server, groups: Iterable[Group], seconds: float) -> Iterator[Series]:
    """Yields the ends of recorded series: vmalert marks them when it runs, but not in a replay."""
    last = round(1000 * (START + seconds))
    for group in groups:
        interval = round(1000 * parse_duration(group["interval"]))
        for name in {rule["record"] for rule in group["rules"] if "record" in rule}:
            for labels, (times, _) in server.points(name, 1000 * START, last).items():
                known = set(times.tolist())
                ends = sorted({time + interval for time in known} - known)
                yield {"__name__": name, **dict(labels)}, [(time, None) for time in ends if time <= last]


def _rendered(interval: float) -> list[Group]:
    """Returns the groups with alerts as a replay needs them."""
    texts = render(Options(scraping=Scraping(interval), engine="victoriametrics"))
    groups = [group for place in (RULES, META) for group in yaml.safe_load(texts[place])["groups"]]
    for group in groups:
        group["rules"] = [_for_replay(rule) for rule in group["rules"]]
    return groups


def _for_replay(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Removes annotations, as a replay answers no queries of templates.

    Over a range of time, `a or b` is two series with the names of both, which are one at each moment.
    """
    kept = {field: value for field, value in rule.items() if field != "annotations"}
    return {**kept, "expr": f"max without ({', '.join(rule.get('labels', {}))}) ({rule['expr']})"}


def passes(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yields the groups in parts: the rules of each part read only what earlier parts record.

    Leaves out records that read their own past: these have been evaluated.
    """
    left = [[rule for rule in group["rules"] if _name(rule) not in _reads(rule)] for group in groups]
    while any(left):
        part = []
        for number, rules in enumerate(left):
            coming = set(map(_name, rules))
            ready = [rule for rule in rules if not _reads(rule) & coming]
            left[number] = [rule for rule in rules if rule not in ready]
            if ready:
                part.append({**groups[number], "rules": ready})
        assert part, "rules read each other"
        yield part


def _name(rule: Mapping[str, Any]) -> str:
    return str(rule.get("record") or rule["alert"])


def _reads(rule: Mapping[str, Any]) -> set[str]:
    return set(_READ.findall(rule["expr"]))


@dataclass(frozen=True)
class LocalVictoriaMetrics(LocalPrometheus):
    """A temporary VictoriaMetrics on this machine."""

    url: str

    def write(self, series: Iterable[Series]) -> None:
        super().write(series)
        self.flush()

    def flush(self) -> None:
        """Makes everything that was written visible to queries."""
        requests.get(f"{self.url}/internal/force_flush", timeout=SECONDS).raise_for_status()


@contextmanager
def local_victoriametrics(program: Path) -> Iterator[LocalVictoriaMetrics]:
    """Yields a server that runs inside the `with`."""
    address = free_address()
    with tempfile.TemporaryDirectory(prefix="stepscope-victoriametrics-") as directory:
        flags = [
            f"-storageDataPath={directory}/data",
            f"-httpListenAddr={address}",
            "-retentionPeriod=100y",
            "-search.disableCache",  # of answers: what is written here is old
            "-loggerLevel=ERROR",
        ]
        log = Path(directory) / "log"
        with (
            log.open("w") as output,
            subprocess.Popen([program, *flags], stdout=output, stderr=output) as process,
        ):
            try:
                _wait_until_ready(f"http://{address}/health", process, log)
                yield LocalVictoriaMetrics(f"http://{address}")
            finally:
                process.terminate()
                process.wait(SECONDS)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"{url} does not answer"
        try:
            if requests.get(url, timeout=SECONDS).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.05)


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _debian_version(program: Path) -> str:
    """Returns the version of the package: Debian's builds of VictoriaMetrics do not say it."""
    changelog = program.parents[1] / "share" / "doc" / "victoria-metrics" / "changelog.Debian.gz"
    if changelog.exists():
        text = gzip.decompress(changelog.read_bytes()).decode()
    else:
        query = ["dpkg-query", "--show", "--showformat=(${Version})", "victoria-metrics"]
        text = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    version = re.search(r"\((\d+\.\d+)", text)
    return version[1] if version else ""
