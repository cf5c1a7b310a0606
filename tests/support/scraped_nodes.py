"""Simulated nodes as a Prometheus stores their scrapes."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.exporter.sampling.profiles import Profile

from tests.support.demo import simulated
from tests.support.scrapes import SCRAPE_SECONDS, Series

LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


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
