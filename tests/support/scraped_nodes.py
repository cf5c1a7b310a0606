"""Simulated nodes as a Prometheus stores their scrapes."""

import re
from itertools import groupby
from pathlib import Path

from stepscope.exporter.sampling.profiles import Profile
from stepscope.prometheus.crosscheck.server import Series as StoredSeries

from tests.support.backfill import instance_of, scrapes
from tests.support.demo import START, simulated
from tests.support.scrapes import SCRAPE_SECONDS, Series
from trials.shared_cluster.judge import needed, rule_groups
from trials.shared_cluster.machine import Scrapes

LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def played(scenario: str) -> Series:
    """Returns what a Prometheus stored of the run that `make worlds` has played, from its first scrape on."""
    series: Series = {}
    target = f'job="stepscope",instance="{instance_of(scenario)}"'
    with scrapes(scenario).open() as lines:
        for line in lines:
            name, value, time = line.rsplit(" ", 2)
            name = name.replace(f"{target},", "").replace(target, "")
            number = round((float(time) - START) / SCRAPE_SECONDS)
            values = series.setdefault(name, [])
            values += [None] * (number - len(values))
            values.append(float(value))
    return series


def stored(scenario: str, start: float = START) -> list[StoredSeries]:
    """Returns what rules with alerts read of the same run, if it begins at `start`, as a server stores it."""
    instance = instance_of(scenario)
    read = needed(rule_groups(SCRAPE_SECONDS))
    found = Scrapes({"instance": instance})
    with scrapes(scenario).open() as file:
        for time, lines in groupby(file, key=lambda line: float(line.rpartition(" ")[2])):
            text = "\n".join(line.rpartition(" ")[0] for line in lines if not line.startswith("up{"))
            found.add(round(1000 * (start + time - START)), text, read)
    return list(found.series())


def scraped(scenario: str, length: float, profile: Profile = "default") -> Series:
    """What a Prometheus stores of a simulated node in so many seconds."""
    series: Series = {}
    with simulated(scenario, run=scenario, profile=profile) as node:
        for number in range(round(length / SCRAPE_SECONDS)):
            node.go(SCRAPE_SECONDS)
            for line in node.exporter.scrape("text").decode().splitlines():
                if match := LINE.fullmatch(line):
                    values = series.setdefault(f"{match[1]}{{{match[2] or ''}}}", [])
                    values += [None] * (number - len(values))
                    values.append(float(match[3]))
    return series


def of_target(series: Series, instance: str) -> Series:
    target = f'job="stepscope",instance="{instance}"'
    return {name.replace("{", f"{{{target},").replace(",}", "}"): values for name, values in series.items()}


def read_by(rules: Path, series: Series) -> Series:
    words = set(re.findall(r"stepscope_\w+", rules.read_text()))
    return {name: values for name, values in series.items() if name.partition("{")[0] in words}
