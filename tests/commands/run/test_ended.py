"""Why a command ended, and that whoever scrapes its exporter reads it."""

import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from signal import Signals

import pytest
from stepscope.commands.run.ending import OutOfMemory, reason

from tests.support.observing import Observed
from tests.support.waiting import SECONDS, wait_until


@pytest.mark.parametrize(
    ("status", "ended_by", "out_of_memory", "expected"),
    [
        (0, None, False, "finished"),
        (0, Signals.SIGTERM, True, "finished"),
        (7, None, False, "exit status 7"),
        (137, Signals.SIGKILL, False, "signal SIGKILL"),
        (137, Signals.SIGKILL, True, "out of memory"),
        (1, None, True, "out of memory"),  # a launcher, one of whose ranks was killed
        (1, Signals.SIGINT, False, "signal SIGINT"),
        (143, Signals.SIGTERM, True, "signal SIGTERM"),
    ],
)
def test_the_reason_follows_from_status_signal_and_memory(
    status: int, ended_by: Signals | None, out_of_memory: bool, expected: str
) -> None:
    assert reason(status, ended_by, out_of_memory) == expected


def test_a_kill_for_want_of_memory_is_seen_in_the_cgroup(tmp_path: Path) -> None:
    group, procfs = tmp_path / "cgroup" / "job", tmp_path / "proc"
    group.mkdir(parents=True)
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("memory\n")
    (group / "cgroup.events").write_text("populated 1\n")
    (group / "memory.events").write_text("oom 1\noom_kill 1\n")
    (procfs / str(os.getpid())).mkdir(parents=True)
    (procfs / str(os.getpid()) / "cgroup").write_text("0::/job\n")
    (procfs / "self").mkdir()
    (procfs / "self" / "mountinfo").write_text("")
    memory = OutOfMemory(procfs, tmp_path / "cgroup")
    assert not memory.happened()
    (group / "memory.events").write_text("oom 2\noom_kill 2\n")
    assert memory.happened()


def test_without_a_cgroup_the_kills_of_the_whole_node_explain_a_sigkill_only(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 4\n")
    memory = OutOfMemory(tmp_path, tmp_path)
    assert not memory.happened(Signals.SIGKILL)
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 5\n")
    assert memory.happened(Signals.SIGKILL)
    assert not memory.happened(Signals.SIGTERM)
    assert not memory.happened(None)


def test_where_there_is_no_cgroup_nothing_is_said_of_memory(tmp_path: Path) -> None:
    assert not OutOfMemory(tmp_path, tmp_path).happened()


def scrape(address: str) -> str:
    try:
        headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
        request = urllib.request.Request(f"http://{address}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, OSError):
        return ""


STEP = "with stepscope.step('train'): pass"


@pytest.mark.parametrize(
    ("steps", "end", "expected"),
    [("pass", "", "finished"), (STEP, "os.kill(os.getpid(), 9)", "signal SIGKILL")],
)
def test_a_server_that_scrapes_the_run_reads_how_it_ended(
    end: str, expected: str, steps: str, tmp_path: Path
) -> None:
    script = f"import os, pathlib, time, stepscope\n{steps}\n"
    script += "while not pathlib.Path('go').exists(): time.sleep(0.02)\n" + end
    found: list[str] = []

    def ended() -> bool:
        found.extend(
            re.findall(r'stepscope_run_ended_info\{run="resnet-[^"]*",reason="(.*)"\} 1', scrape(address))
        )
        return bool(found)

    with Observed(tmp_path / "run", script, "--name=resnet") as observed:
        address = observed.address
        wait_until(lambda: "stepscope_samples_total" in scrape(address), "a scrape")
        assert not ended()
        (tmp_path / "go").touch()
        wait_until(lambda: ended() and observed.process.poll() is not None, "the end")
    assert set(found) == {expected}


def test_a_run_that_its_user_stops_is_stopped_whatever_it_returns(tmp_path: Path) -> None:
    script = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(3))\n"
    script += "print('ready', flush=True)\ntime.sleep(99)"
    with Observed(tmp_path / "run", script) as observed:
        observed.until_printed("ready")
        address = observed.address
        wait_until(lambda: "stepscope_samples_total" in scrape(address), "a scrape")
        observed.process.send_signal(signal.SIGTERM)
        wait_until(lambda: scrape(address) == "" or observed.process.poll() is not None, "the end")
        assert observed.status() == 3
    assert "waiting until Prometheus has read how the run ended" in observed.said
