"""`stepscope demo` from the outside: what it serves, what it refuses, and how it ends."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from stepscope.demo.scenarios import all_scenarios
from stepscope.runs.open import open_source
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.training.ledger_files import SHARED_MEMORY

from tests.support.commands import stepscope
from tests.support.demo import DemoProcess, simulated
from tests.support.prometheus import needs_prometheus, scraping
from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS, wait_until

FOLDERS = (SHARED_MEMORY, tempfile.gettempdir())  # where a simulation may live


@pytest.mark.parametrize("words", [["nonsense"], []])
def test_a_wrong_scenario_gets_one_line_with_all_of_them_and_status_2(words: list[str]) -> None:
    result = stepscope("demo", *words)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert all(name in result.stderr for name in all_scenarios())


def test_the_list_has_each_scenario_and_the_rules_that_fire() -> None:
    result = stepscope("demo", "--list")
    assert result.returncode == 0
    for name, scenario in all_scenarios().items():
        assert name in result.stdout
        assert all(rule in result.stdout for rule in scenario.fires)


@pytest.mark.parametrize("flag", ["--speed=0", "--speed=fast", "--duration=0s", "--seed=x"])
def test_a_wrong_flag_gets_one_line_that_names_it_and_status_2(flag: str) -> None:
    result = stepscope("demo", "healthy", flag)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert flag.partition("=")[0] in result.stderr


def test_a_directory_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    result = stepscope("demo", "healthy", "--write-recording", tmp_path)
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_writing_a_run_shows_progress_on_a_terminal_and_what_to_type_next(tmp_path: Path) -> None:
    words = ["demo", "healthy", "--duration=60s", f"--write-recording={tmp_path / 'my run'}"]
    terminal = Terminal([sys.executable, "-m", "stepscope", *words], tmp_path)
    assert terminal.status() == 0
    assert "samples written: 1 of 121" in terminal.shown
    assert f"stepscope report '{tmp_path / 'my run'}'" in terminal.shown.rpartition("next: ")[2]


def test_a_run_that_began_two_minutes_ago_has_all_its_samples_and_goes_on_until_ctrl_c() -> None:
    with DemoProcess("cpu-bottleneck", "--begun-ago=2m") as node:
        first = node.scrape()
        assert first.value("stepscope_samples_total", run="simulated-cpu-bottleneck") >= 240
        start = first.value("stepscope_run_start_time_seconds", run="simulated-cpu-bottleneck")
        assert start <= time.time() - 120
        assert first.value("stepscope_sampler_ticks_missed_total") == 0
        assert all(first.all("stepscope_collector_success").values())
        last = first.value("stepscope_run_last_step_time_seconds", run="simulated-cpu-bottleneck")
        assert start < last <= time.time()
        ticks = first.value("stepscope_sampler_ticks_total")
        node.wait_for(lambda: node.scrape().value("stepscope_sampler_ticks_total") > ticks + 1)
        assert "Simulated: nothing here was measured (cpu-bottleneck)." in node.get("/").text
        pattern = f"stepscope-demo-{node.process.pid}-*"
        (simulated,) = (path for folder in FOLDERS for path in Path(folder).glob(pattern))
        assert node.stop(signal.SIGINT) == 0
    assert not simulated.exists()


def test_what_is_served_can_be_recorded_at_the_same_time(tmp_path: Path) -> None:
    with DemoProcess("healthy", "--speed=20", f"--write-recording={tmp_path / 'run'}") as node:
        node.wait_for(lambda: node.scrape().value("stepscope_sampler_ticks_total") > 60)
        assert node.stop() == 0
    source = RecordingDirectory(tmp_path / "run")
    assert sum(len(chunk) for chunk in source.read()) > 60
    assert source.facts.samples_missed == 0
    assert source.facts.end is not None


def test_ctrl_c_while_it_writes_leaves_what_is_written_readable(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    words = ["demo", "healthy", "--duration=24h", f"--write-recording={recording}"]
    command = [sys.executable, "-m", "stepscope", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(recording.glob("*/samples-000004*")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in errors
    source = open_source(recording)
    assert sum(len(chunk) for chunk in source.read()) > 100
    assert source.facts.unknowns == ()
    assert source.facts.end is not None
    assert not list(Path(SHARED_MEMORY).glob(f"stepscope-demo-{process.pid}-*"))


@needs_prometheus
def test_prometheus_counts_exactly_the_samples_that_were_simulated(tmp_path: Path) -> None:
    seconds = 60
    starved = count_starved("cpu-bottleneck", seed=3, seconds=seconds)
    flags = ["--seed=3", "--speed=20", f"--duration={seconds}s"]
    with (
        DemoProcess("cpu-bottleneck", *flags) as node,
        scraping(node.url.removeprefix("http://"), tmp_path) as prometheus,
    ):
        (samples,) = prometheus.wait_for(f"max_over_time(stepscope_samples_total[1h]) == {2 * seconds}")
        assert samples["metric"]["run"] == "simulated-cpu-bottleneck"
        selector = 'stepscope_gpu_starved_samples_total{cause="cpu", cause_above="0.9", gpu_below="0.1"}'
        (counted,) = prometheus.query(f"max_over_time({selector}[1h])")
        assert float(counted["value"][1]) == starved
        (info,) = prometheus.query("stepscope_exporter_build_info")
        assert info["metric"]["simulated"] == "cpu-bottleneck"


def count_starved(scenario: str, seed: int, seconds: int) -> int:
    """Samples with a core above 90 % and a GPU below 10 %, told by the simulated hardware itself."""
    starved, before = 0, None
    with simulated(scenario, seed) as node:
        for _ in range(2 * seconds):
            node.go(0.5)
            stat = (node.directory / "proc" / "stat").read_text().splitlines()
            busy = [int(line.split()[1]) for line in stat[1:33]]
            if before is not None:
                pinned = any(now - then > 45 for now, then in zip(busy, before, strict=True))
                starved += pinned and any(gpu.percent < 10 for gpu in node.simulation.nvml.gpus)
            before = busy
    assert 0 < starved < 2 * seconds
    return starved
