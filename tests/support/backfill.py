"""A real Prometheus that has, minutes ago, scraped simulated nodes and evaluated the rules.

What each node's exporter served every 15 simulated seconds is written as blocks of the server's storage, then
the rules are evaluated over them; so hours of runs are there within seconds.
"""

import multiprocessing
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from stepscope.demo.scenarios import all_scenarios
from stepscope.exporter.sampling.profiles import Profile
from stepscope.prometheus.rules.groups import Entry, Group

from tests.support.demo import START, simulated
from tests.support.processes import ran
from tests.support.prometheus import Prometheus, serving
from tests.support.world import PLAYED, ROOT, RULED, WORLDS, copy, world

RULES = sorted((ROOT / "rules").glob("*.yml"))
SCRAPE_SECONDS = 15
# How long a node is watched after its run has ended: until every rule has looked at the whole run.
RETENTION_SECONDS = 180
# promtool reads all scrapes again for each block, of which two hours are the default; Prometheus merges them.
LONGEST_BLOCK = "--max-block-duration=162h"
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_LINE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*?)\})? (?P<value>\S+)(?: # .*)?")


def instance_of(scenario: str) -> str:
    return f"node-{scenario}"


def run_of(scenario: str) -> str:
    return f"simulated-{scenario}"


def seconds_of(scenario: str) -> float:
    """How long a run lasts: four minutes more than its rules need, the longest interval of a rule."""
    return 60 * (all_scenarios()[scenario].minutes + 4)


def scrapes(scenario: str, profile: Profile = "default") -> Path:
    """What a Prometheus scrapes of a run of the scenario, from its start to its end, as OpenMetrics."""
    return _played(scenario, profile) / "scrapes.om"


def recording(scenario: str) -> Path:
    """The recording of the same run."""
    return _played(scenario, "default") / "recording"


def _played(scenario: str, profile: Profile) -> Path:
    return world(f"played-{scenario}-{profile}", PLAYED, lambda folder: _play(scenario, folder, profile))


def every_scenario(folder: Path) -> "Backfill":
    """A storage in the empty folder, with a run of each scenario and what the rules make of it."""
    return Backfill(copy(every_scenario_world(), folder))


def every_scenario_world() -> Path:
    return world("every-scenario", RULED, _evaluate_every_scenario)


def _evaluate_every_scenario(folder: Path) -> None:
    """Leaves the blocks of the storage, which no server writes in again, and nothing else."""
    with TemporaryDirectory(dir=WORLDS) as work:
        backfill = Backfill(Path(work))
        backfill.add(list(all_scenarios()))
        backfill.evaluate(RULES, max(map(seconds_of, all_scenarios())) + RETENTION_SECONDS)
        (folder / "data").mkdir()
        for meta in backfill.storage.glob("*/meta.json"):
            meta.parent.rename(folder / "data" / meta.parent.name)


def _play(scenario: str, folder: Path, profile: Profile) -> None:
    seconds = round(seconds_of(scenario))
    played = simulated(
        scenario, 0, seconds, run=run_of(scenario), profile=profile, recording=folder / "recording"
    )
    with (folder / "scrapes.om").open("w") as text, played as node:
        for elapsed in range(0, seconds + RETENTION_SECONDS, SCRAPE_SECONDS):
            node.go(SCRAPE_SECONDS if elapsed else 0.5)
            scrape = node.exporter.scrape("openmetrics")
            text.writelines(_scraped(scrape, scenario, START + elapsed, is_first=not elapsed))
            if elapsed == seconds:
                node.end_recording()


def _scraped(exposition: bytes, scenario: str, time: float, is_first: bool) -> Iterator[str]:
    target = f'job="stepscope",instance="{instance_of(scenario)}"'
    samples = 0
    for line in exposition.decode().splitlines():
        if match := _LINE.fullmatch(line):
            labels = f"{target},{match['labels']}" if match["labels"] else target
            yield f"{match['name']}{{{labels}}} {match['value']} {time}\n"
            samples += 1
    # What Prometheus adds to each scrape by itself.
    of_scrape = {
        "up": 1,
        "scrape_samples_scraped": samples,
        "scrape_series_added": samples if is_first else 0,
        "scrape_duration_seconds": 0.01,
    }
    for name, value in of_scrape.items():
        yield f"{name}{{{target}}} {value} {time}\n"


class Backfill:
    """The storage of a server: first scrapes, then what rules make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "data"
        self.storage.mkdir(exist_ok=True)

    def add(self, scenarios: Sequence[str]) -> None:
        """What is scraped of a run of each."""
        # Spawned: a process that threads run in is not forked.
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            self.store(pool.map(scrapes, scenarios))

    def store(self, files: Iterable[Path]) -> None:
        """Writes scrapes as blocks."""
        whole = self.folder / "scrapes.om"
        with whole.open("wb") as text:
            for path in files:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, text)
            text.write(b"# EOF\n")
        _promtool("create-blocks-from", LONGEST_BLOCK, "openmetrics", whole, self.storage)
        whole.unlink()

    def evaluate(self, rules: Iterable[Path], seconds: float) -> None:
        """Evaluates rule files over so many seconds, as often as they say; also what alerts fire."""
        for number, groups in enumerate(_in_order(rules)):
            # When within its interval a group is evaluated depends on the path of its file: a relative one is
            # always the same.
            file, output = "rules.yml", self.folder / f"blocks-{number}"
            (self.folder / file).write_text(yaml.safe_dump({"groups": groups}, sort_keys=False))
            with self.serving() as server:
                _promtool(
                    *("create-blocks-from", LONGEST_BLOCK, "rules"),
                    *(f"--url={server.url}", f"--output-dir={output}"),
                    *(f"--start={START:.0f}", f"--end={START + seconds:.0f}", file),
                    folder=self.folder,
                )
            for block in output.iterdir():
                shutil.move(block, self.storage)

    @contextmanager
    def serving(self) -> Iterator[Prometheus]:
        """The server over this storage."""
        (self.folder / "prometheus.yml").write_text("{}\n")
        with serving(
            self.folder / "prometheus.yml", self.storage, "--storage.tsdb.retention.time=100y"
        ) as server:
            yield server


def _in_order(files: Iterable[Path]) -> list[list[Group]]:
    """The groups, once for each pass: promtool's rules read what earlier passes recorded.

    Alerts become recording rules of `ALERTS`, for promtool evaluates no others. `for` is left out, so these
    fire some minutes early.
    """
    groups = [group for file in files for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]]
    known = {rule["record"]: 0 for group in groups for rule in group["rules"] if "record" in rule}
    passes: dict[int, list[Group]] = {}
    for _ in known:  # until nothing changes, which is much earlier
        before = dict(known)
        for group in groups:
            for rule in group["rules"]:
                if rule.get("record") in known:
                    known[rule["record"]] = max(known[rule["record"]], _pass_of(rule, known))
        if known == before:
            break
    for group in groups:
        for rule in group["rules"]:
            same = {"name": group["name"], "interval": group["interval"], "rules": []}
            of_pass = passes.setdefault(_pass_of(rule, known), [])
            if not of_pass or of_pass[-1]["name"] != group["name"]:
                of_pass.append(same)
            of_pass[-1]["rules"].append(_recording(rule))
    return [passes[number] for number in sorted(passes)]


def _pass_of(rule: Entry, known: Mapping[str, int]) -> int:
    """One behind the last of the recorded series that it reads, but for its own of the evaluation before."""
    read = set(_NAME.findall(rule["expr"])) - {rule.get("record")}
    return max((known[name] + 1 for name in read if name in known), default=0)


def _recording(rule: Entry) -> Entry:
    if "record" in rule:
        return {name: rule[name] for name in ("record", "expr", "labels") if name in rule}
    # A label that is only passed on is already there.
    own = {name: text for name, text in rule["labels"].items() if text != f"{{{{ $labels.{name} }}}}"}
    labels = {**own, "alertname": rule["alert"], "alertstate": "firing"}
    return {"record": "ALERTS", "expr": f"clamp({rule['expr']}, 1, 1)", "labels": labels}


def _promtool(*words: object, folder: Path | None = None) -> None:
    command = ["promtool", "tsdb", *map(str, words)]
    done = ran(command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
