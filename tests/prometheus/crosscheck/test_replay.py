"""A recording that is played back shows at each moment what the exporter showed then."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
from stepscope.commands.demo import simulated_directory
from stepscope.common.errors import UserError
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.scenarios import all_scenarios
from stepscope.demo.simulation import Simulation
from stepscope.exporter.sampling.exposition import Exposition
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.runs.recording.live import LiveRecording

from tests.support.demo import START
from tests.support.scenarios import WrittenScenarios

SCRAPED_AFTER = (0.0, 0.5, 12.0, 30.0, 44.5, 60.0, 61.0)  # seconds; the run ends at 60
LINE = re.compile(r"(\w+\{.*\}|\w+) (\S+)")

Scrape = dict[str, float]


@pytest.fixture(scope="module")
def served_and_recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Scrape], Path]:
    """What an exporter said at some moments, and its recording."""
    recording = tmp_path_factory.mktemp("replay") / "recording"
    with simulated_directory() as directory:
        clock = SimulatedClock(START)
        simulation = Simulation(all_scenarios()["cpu-bottleneck"](), 1, "recording", START, 60.0, directory)
        exporter = make_exporter(simulation, clock, directory, LiveRecording(recording), profile="full")
        found = []
        for tick in range(1 + round(SCRAPED_AFTER[-1] / INTERVAL)):
            exporter.tick()
            if tick * INTERVAL in SCRAPED_AFTER:
                found.append(read(exporter.scrape("text")))
            clock.advance(INTERVAL)
        exporter.close()
    return found, recording


def read(text: bytes) -> Scrape:
    lines = map(LINE.fullmatch, text.decode().splitlines())
    return {line[1]: float(line[2]) for line in lines if line}


def test_each_series_of_the_replay_is_as_the_exporter_said(
    served_and_recorded: tuple[list[Scrape], Path],
) -> None:
    served, directory = served_and_recorded
    moments = [START + seconds for seconds in SCRAPED_AFTER]
    for said, moment, found in zip(served, moments, scrapes(RecordedRun(directory), moments), strict=True):
        assert len(found) > 100
        known = {series for series in said if series.partition("{")[0] in names(found)}
        differing = {
            series: (moment - START, said.get(series), found.get(series))
            for series in known | found.keys()
            if not same(said.get(series), found.get(series))
            # The recording has the sum of the reasons, and no other errors than those that rules look at.
            and 'reason="' not in series
            and 'severity="corrected"' not in series
            and 'pid="' not in series  # it has the number of processes only
            and not (series.startswith("stepscope_run_gauge") and moment % 1)  # once a second
            # Nor has it what no rule reads: the time of phases, fetches and waits, and by part.
            and not series.startswith(
                ("stepscope_dataloader_wait", "stepscope_dataloader_fetch", "stepscope_account")
            )
        }
        assert differing == {}


def test_a_replay_has_the_label_of_the_launch_and_the_name_of_the_run(
    served_and_recorded: tuple[list[Scrape], Path],
) -> None:
    run = RecordedRun(served_and_recorded[1])
    run.facts = replace(run.facts, run="recording-0123abcd")
    (found,) = scrapes(run, [START + 30])
    assert run.name == "recording-0123abcd"
    assert 'stepscope_samples_total{run="recording-0123abcd"}' in found
    assert any('{run="recording-0123abcd",name="recording",' in series for series in found)
    assert not any('run="recording"' in series for series in found)


def scrapes(run: RecordedRun, moments: Sequence[float]) -> list[Scrape]:
    """What the run's only node had published at these moments."""
    exposition = Exposition()
    with run.replay() as (node,):
        return [read(exposition.write(node.families(moment), "text")) for moment in moments]


def names(scrape: Scrape) -> set[str]:
    return {series.partition("{")[0] for series in scrape}


def same(one: float | None, other: float | None) -> bool:
    """Ratios are recorded with 7 digits."""
    return one is not None and other is not None and isclose(one, other, rel_tol=2e-7, abs_tol=1e-9)


def test_the_replay_counts_what_the_evaluation_of_the_recording_counts(scenarios: WrittenScenarios) -> None:
    """But for the snapshot at the run's end, when no process lives: the exporter does not count it."""
    written = scenarios.written("cpu-bottleneck")
    verdict = next(one for one in written.recording.rules if one.rule == "CPUBottleneck")
    run = RecordedRun(written.recording_directory)
    (counted,) = scrapes(run, [run.end])
    labels = f'run="{run.name}"'
    cell = f'{labels},cause="cpu",cause_above="0.9",gpu_below="0.1"'
    assert counted[f"stepscope_samples_total{{{labels}}}"] == verdict.datapoints - 1
    starved = counted[f"stepscope_gpu_starved_samples_total{{{cell}}}"]
    assert 0 <= verdict.violations - starved <= 1 < starved


def test_a_folder_that_is_no_recording_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a recording"):
        RecordedRun(tmp_path)
