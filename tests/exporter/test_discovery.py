"""Finding collectors: `@collector` registers a class, and a broken module takes no other down."""

import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
import stepscope.exporter.collectors
from stepscope.exporter.collectors import add_flags, discover, enabled, summary
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample

from tests.support.processes import ran


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A second folder of collectors."""
    monkeypatch.setattr(
        stepscope.exporter.collectors, "__path__", [*stepscope.exporter.collectors.__path__, str(tmp_path)]
    )
    return tmp_path


def test_every_source_of_the_design_is_found_by_name() -> None:
    names = [collector.name for collector in discover()]
    assert {"cpu", "memory", "disk", "network", "gpu", "training"} <= set(names)
    assert all(summary(collector) for collector in discover())


def test_a_module_that_cannot_be_imported_is_a_collector_that_fails(folder: Path) -> None:
    (folder / "quantum.py").write_text(
        '"""Qubits."""\nimport no_such_module\n\n@collector\nclass Quantum: ...\n'
    )
    found = discover()
    (broken,) = [collector for collector in found if collector.name == "quantum"]
    parser = ArgumentParser()
    add_flags(parser, [broken])
    registry = Registry(enabled(vars(parser.parse_args([])), [broken]))
    registry.collect(Sample(time=0.0))
    success, *_ = registry.own_families
    assert success.samples == {("quantum",): 0}
    assert list(registry.families()) == []
    registry.close()
    assert {"cpu", "training"} <= {collector.name for collector in found}
    assert enabled(vars(parser.parse_args(["--no-collector.quantum"])), [broken]) == []


def test_a_new_file_with_a_marked_collector_is_enough(folder: Path) -> None:
    (folder / "weather.py").write_text(
        '"""What the weather is like.\n\nMore words."""\n'
        "from stepscope.exporter.sampling.collector import Collector, collector\n"
        "@collector\n"
        "class Weather(Collector):\n"
        "    name = 'weather'\n"
        "    def collect(self, sample): pass\n"
    )
    (weather,) = [collector for collector in discover() if collector.name == "weather"]
    assert summary(weather) == "What the weather is like"


def test_a_collector_runs_after_those_whose_part_of_the_sample_it_reads(folder: Path) -> None:
    (folder / "airing.py").write_text(
        "from stepscope.exporter.sampling.collector import Collector, collector\n"
        "@collector\n"
        "class Airing(Collector):\n"
        "    name, after = 'airing', ('training', 'gpu', 'no_such_collector')\n"
        "    def collect(self, sample): pass\n"
    )
    names = [collector.name for collector in discover()]
    others = [name for name in names if name != "airing"]
    assert names.index("airing") > max(names.index("training"), names.index("gpu"))
    assert others == [collector.name for collector in discover() if collector.name != "airing"]


def test_a_module_without_the_mark_is_no_collector_whether_it_can_be_imported_or_not(folder: Path) -> None:
    before = discover()
    (folder / "helper.py").write_text("from stepscope.exporter.collectors.cpu import CpuCollector\n")
    (folder / "broken_helper.py").write_text('"""Helps `@collector`s."""\nimport no_such_module\n')
    assert discover() == before


def test_without_pynvml_the_help_says_once_why_there_are_no_gpus() -> None:
    hidden = """
import sys

class NoPynvml:
    def find_spec(name, path, target=None):
        if name == "pynvml":
            raise ModuleNotFoundError("No module named 'pynvml'", name=name)

sys.meta_path.insert(0, NoPynvml)
from stepscope.commands.cli import main
main(["exporter", "--help"])
"""
    shown = ran([sys.executable, "-c", hidden], check=True).stdout
    table = shown.partition("what the collectors read:\n")[2].splitlines()
    read = dict(line.split(maxsplit=1) for line in table)
    assert read["gpu"] == "cannot be used: No module named 'pynvml'"
    assert list(read) == [collector.name for collector in discover()]
    assert shown.count("pynvml") == 1
