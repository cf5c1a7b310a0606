"""docs/metrics.md: rendered from the exporter's metric families; `make golden` renews it."""

import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stepscope.exporter.collectors import add_flags, discover, enabled, summary
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.profiles import FULL_ONLY, LEAN
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.web.pages import WebMetrics

USUAL = {"total": "counter", "info": "info"}  # the type of a metric by the end of its name
DOCS = Path(__file__).parents[2] / "docs"
HEADING = """\
# Which metrics does the exporter have?

Names begin with `stepscope_`, except `process_*`. Sizes are in bytes, times in seconds, shares 0 to 1. Names
in `_total` are counters, in `_info` infos, others gauges, unless another type is given. *lean* and *full* are
the smallest [profile](exporter.md#how-many-series-has-a-node-and-how-do-i-get-fewer) with the metric, if it
is not the default. [gpu.md](gpu.md) has the source of GPU metrics. See also
[exporter.md](exporter.md#which-metrics-are-there).
"""


def collectors(ledgers: Path) -> list[Collector]:
    parser = ArgumentParser()
    found = discover()
    add_flags(parser, found)
    parser.set_defaults(path_procfs=Path("/proc"), path_sysfs=Path("/sys"), path_cgroups=Path(), command=None)
    return enabled(vars(parser.parse_args(["--ledger-dir", str(ledgers)])), found)


def page(collectors: Iterable[Collector], exporter: Exporter) -> Iterator[str]:
    yield HEADING
    rest = {family.name: family for family in exporter.families()}
    for each in collectors:
        if each.families:
            yield from section(f"{summary(type(each))} (`{each.name}`)", each.families)
        for family in each.families:
            del rest[family.name]
    counted = [rest.pop(family.name) for family in SampleCounters(None, list).families]
    yield from section("The samples of a run, counted", counted)
    yield from section("The exporter itself", [*rest.values(), *of_server()])


def of_server() -> Iterable[Family]:
    config = SimpleNamespace(last_reload_successful=True)
    serving: Any = SimpleNamespace(refusals=SimpleNamespace(counts={}), config=config)
    request: Any = SimpleNamespace(headers={})
    return WebMetrics(serving).read(request)


def section(title: str, families: Iterable[Family]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    for family in families:
        name = family.name.removeprefix("stepscope_")
        if family.labels:
            name += f"{{{','.join(family.labels)}}}"
        usual = USUAL.get(family.name.rpartition("_")[2], "gauge")
        profile = "full" if family.name in FULL_ONLY else "lean" if family.name in LEAN else ""
        notes = ", ".join(filter(None, [family.kind if family.kind != usual else "", profile]))
        yield f"- `{name}`{f' ({notes})' if notes else ''}: {family.help}\n"


def test_the_golden_page_of_metrics(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    every = collectors(tmp_path)
    exporter = Exporter(every, node="node")
    try:
        golden(DOCS / "metrics.md", "".join(page(every, exporter)))
    finally:
        exporter.close()


def test_the_table_of_sources_has_every_metric_of_gpus() -> None:
    of_gpus = (DOCS / "metrics.md").read_text().partition("(`gpu`)")[2].partition("\n## ")[0]
    sources = (DOCS / "gpu.md").read_text().partition("| metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(gpu_\w+)", sources)) == set(re.findall(r"`(gpu_\w+)", of_gpus))
