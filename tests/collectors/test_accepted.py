"""The collector of accepted findings: for which runs it publishes which entries, and when none."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest
from trainwatch.accepted import Acceptance, write_accepted
from trainwatch.collectors.accepted import KEPT_SECONDS, AcceptedCollector
from trainwatch.errors import UserError
from trainwatch.sampling.sample import RunSample, Sample

BY_NAME = Acceptance("CPUBottleneck", "resnet", "new loader", "2026-12-31", "alice")
BY_RUN = Acceptance("IdleGPU", "bert-7f3a", "debugging", "2026-12-31T00:00:00Z")
BEFORE = BY_RUN.end - 2 * KEPT_SECONDS


@pytest.fixture
def collector(tmp_path: Path) -> AcceptedCollector:
    file = tmp_path / "accepted.yml"
    write_accepted(file, [BY_NAME, BY_RUN])
    parser = ArgumentParser()
    parser.add_argument("--run")
    AcceptedCollector.add_arguments(parser)
    return AcceptedCollector.from_arguments(parser.parse_args(["--accepted.file", str(file)]))


def published(collector: AcceptedCollector, at: float, **runs: str) -> set[tuple[str, ...]]:
    """Run and rule of each entry at a time, at which runs of these names train."""
    collector.collect(
        Sample(at, runs={run.replace("_", "-"): RunSample(name=name) for run, name in runs.items()})
    )
    (family,) = collector.families
    assert set(family.samples.values()) <= {1}
    return set(family.samples)


RESNET = ("resnet-1", "CPUBottleneck", "new loader", "2026-12-31", "alice")
BERT = ("bert-7f3a", "IdleGPU", "debugging", "2026-12-31T00:00:00Z", "")


def test_an_entry_is_about_all_runs_of_a_name_or_about_one_run(collector: AcceptedCollector) -> None:
    assert published(collector, BEFORE) == set()
    found = published(
        collector, BEFORE, resnet_1="resnet", resnet_2="resnet", bert_7f3a="bert", bert_8="bert"
    )
    assert found == {RESNET, ("resnet-2", *RESNET[1:]), BERT}


def test_an_entry_outlasts_its_run_as_long_as_alerts_do_but_not_its_own_end(
    collector: AcceptedCollector,
) -> None:
    published(collector, BEFORE, resnet_1="resnet")
    assert published(collector, BEFORE + KEPT_SECONDS - 1) == {RESNET}
    assert published(collector, BEFORE + KEPT_SECONDS) == set()
    assert published(collector, BY_RUN.end - 1, bert_7f3a="bert", resnet_1="resnet") == {RESNET, BERT}
    assert published(collector, BY_RUN.end, bert_7f3a="bert", resnet_1="resnet") == {RESNET}


def test_a_changed_file_is_read_again_and_a_wrong_one_accepts_nothing(
    collector: AcceptedCollector, tmp_path: Path
) -> None:
    write_accepted(tmp_path / "accepted.yml", [BY_RUN])
    assert published(collector, BEFORE, resnet_1="resnet", bert_7f3a="bert") == {BERT}
    (tmp_path / "accepted.yml").write_text("- rule: IdleGPU")
    with pytest.raises(UserError, match="run is missing"):  # the registry then clears the family
        published(collector, BEFORE, bert_7f3a="bert")
    (tmp_path / "accepted.yml").unlink()
    assert published(collector, BEFORE, bert_7f3a="bert") == set()


def test_a_run_that_a_flag_names_needs_no_process(tmp_path: Path) -> None:
    write_accepted(tmp_path / "accepted.yml", [BY_NAME])
    assert published(AcceptedCollector(tmp_path / "accepted.yml", "resnet"), BEFORE) == {
        ("resnet", *RESNET[1:])
    }
    assert published(AcceptedCollector(None, "resnet"), BEFORE) == set()
