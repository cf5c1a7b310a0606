"""The exporter as a whole, in a process of its own: what it serves, survives and refuses."""

import fcntl
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import requests
from stepscope.exporter.sampling.state_file import StateFile

from tests.support.exporter_process import OPENMETRICS, ExporterProcess, Scrape, exporter
from tests.support.processes import ran
from tests.support.training_process import RESNET, TrainingProcess
from tests.support.waiting import SECONDS, wait_until

HOST = Path(__file__).parent / "collectors" / "fixtures" / "host" / "proc"
QUICK = "--sample-interval=50ms"


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "ledgers"


def samples(scrape: Scrape, run: str = RESNET) -> float:
    return scrape.samples.get(("stepscope_samples_total", frozenset({("run", run)})), 0.0)


def test_it_serves_every_page_and_ends_with_status_0_when_it_is_told_to(
    ledgers: Path, tmp_path: Path
) -> None:
    with ExporterProcess("--ledger-dir", ledgers, "--report-dir", tmp_path, "--node=gpu-1", QUICK) as node:
        page = node.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "gpu-1" in page.text
        assert 'href="metrics"' in page.text
        assert node.get("/-/healthy").text == "Healthy\n"
        node.wait_for(lambda: node.get("/-/ready").status_code == 200)
        assert node.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert node.get("/nonsense").status_code == 404
        refused = requests.post(f"{node.url}/metrics", timeout=SECONDS)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert "its first figures come within seconds" in node.get("/report").text.lower()
        assert node.get("/report/content").status_code == 404
        (tmp_path / "report.html").write_text("<p>found it</p>\n<script>draw()</script>\n</html>")
        assert node.get("/report").text == "<p>found it</p>\n<script>draw()</script>\n</html>"
        assert node.get("/report/content").text == "<p>found it</p>\n"
        assert node.stop() == 0
    assert "Traceback" not in "\n".join(node.log)


def test_it_says_what_it_is_and_what_it_uses_and_ends_with_ctrl_c(ledgers: Path) -> None:
    with ExporterProcess("--ledger-dir", ledgers, "--no-collector.memory", QUICK) as node:
        node.wait_for(lambda: node.scrape().value("stepscope_sampler_ticks_total") >= 2)
        scrape = node.scrape()
        (build,) = scrape.all("stepscope_exporter_build_info")
        assert dict(build)["python_version"].startswith("3.")
        assert scrape.value("process_resident_memory_bytes") > 1e6
        assert scrape.value("process_cpu_seconds_total") > 0
        assert 0 < scrape.value("process_open_fds") < scrape.value("process_max_fds")
        assert abs(scrape.value("process_start_time_seconds") - time.time()) < 120
        assert scrape.value("stepscope_collector_success", collector="training") == 1
        names = {dict(labels)["collector"] for labels in scrape.all("stepscope_collector_success")}
        assert ("disk" in names, "memory" in names) == (True, False)
        assert "stepscope_memory_used_bytes" not in scrape, "its collector is left out"
        maps = Path(f"/proc/{node.process.pid}/maps").read_text()
        assert ("numpy" in maps, "arrow" in maps) == (False, False), "it records nothing"
        assert node.stop(signal.SIGINT) == 0


def test_a_reading_that_hangs_costs_only_its_own_metrics(ledgers: Path, tmp_path: Path) -> None:
    procfs = Path(shutil.copytree(HOST, tmp_path / "proc"))
    with ExporterProcess("--ledger-dir", ledgers, f"--path.procfs={procfs}", QUICK) as node:
        node.wait_for(lambda: "stepscope_memory_used_bytes" in node.scrape())
        (procfs / "meminfo").unlink()
        os.mkfifo(procfs / "meminfo")  # opening it waits for a writer that never comes
        node.wait_for(lambda: node.scrape().value("stepscope_collector_success", collector="memory") == 0)
        before = node.scrape()
        assert "stepscope_memory_used_bytes" not in before
        node.wait_for(
            lambda: (
                node.scrape().value("stepscope_sampler_ticks_total")
                > before.value("stepscope_sampler_ticks_total") + 3
            )
        )
        assert node.scrape().value("stepscope_collector_success", collector="disk") == 1
        assert node.stop() == 0


def test_samples_are_counted_while_a_training_process_lives(ledgers: Path) -> None:
    with ExporterProcess("--ledger-dir", ledgers, "--run-retention=1s", QUICK) as node:
        with TrainingProcess(ledgers) as trainer:
            trainer.do("stepscope.start()")
            node.wait_for(lambda: samples(node.scrape()) >= 3)
        node.wait_for(lambda: "stepscope_run_end_time_seconds" in node.scrape())
        node.wait_for(lambda: "stepscope_samples_total" not in node.scrape())


def test_kill_9_of_the_exporter_loses_no_counted_sample(ledgers: Path) -> None:
    flags = ("--ledger-dir", ledgers, QUICK)
    with TrainingProcess(ledgers) as trainer:
        trainer.do("stepscope.start()")
        with ExporterProcess(*flags) as node:
            for _ in range(3):
                node.wait_for(lambda: samples(node.scrape()) >= 3)
            before = node.scrape()
            node.stop(signal.SIGKILL)
        trainer.kill()  # so that nothing is counted after the restart
        (kept,) = state().glob("*.samples")
        counted = int.from_bytes(StateFile(kept).read().partition(b"\n")[2][:8], "little")
        assert counted >= samples(before)
        with ExporterProcess(*flags) as node:
            node.wait_for(lambda: node.get("/-/ready").status_code == 200)
            after = node.scrape()
    assert samples(after) == counted
    buckets = {("run", RESNET), ("le", "+Inf")}
    assert after.samples["stepscope_cpu_utilization_samples_bucket", frozenset(buckets)] <= counted


def test_a_report_on_a_disk_that_hangs_costs_nobody_the_metrics(ledgers: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")  # opening it waits for a writer that never comes
    with ExporterProcess("--ledger-dir", ledgers, "--report-dir", tmp_path, QUICK) as node:
        with ThreadPoolExecutor() as clients:
            pages = [clients.submit(node.get, "/report") for _ in range(3)]
            for _ in range(3):
                assert "stepscope_sampler_ticks_total" in node.scrape()
            assert not any(page.done() for page in pages)
            assert {page.result().status_code for page in pages} == {503}
        assert node.stop() == 0


def test_a_log_that_nobody_reads_holds_up_neither_samples_nor_scrapes(ledgers: Path, tmp_path: Path) -> None:
    procfs = Path(shutil.copytree(HOST, tmp_path / "proc"))
    words = ["--web.listen-address=127.0.0.1:0", f"--ledger-dir={ledgers}", f"--path.procfs={procfs}", QUICK]
    command = [sys.executable, "-m", "stepscope", "exporter", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        first = (re.findall(r"http://\S+?(?=/\n)", line.decode()) for line in process.stderr)
        (url,) = next(filter(None, first))  # no later line is read

        def wait_until_memory_is(read: bool) -> None:
            seen = None
            while seen != read:
                text = requests.get(f"{url}/metrics", headers=OPENMETRICS, timeout=SECONDS).text
                success = Scrape(text).all("stepscope_collector_success")
                seen = success.get(frozenset({("collector", "memory")}))

        for _ in range(40):  # 40 times two lines: 8 KiB
            wait_until_memory_is(read=True)
            (procfs / "meminfo").rename(procfs / "gone")
            wait_until_memory_is(read=False)
            (procfs / "gone").rename(procfs / "meminfo")
        process.terminate()
        assert process.wait(SECONDS) == 0


def test_without_a_free_descriptor_it_serves_what_it_can_and_recovers(ledgers: Path) -> None:
    with (
        ExporterProcess("--ledger-dir", ledgers, f"--run={RESNET}", QUICK) as node,
        requests.Session() as client,
    ):

        def scrape() -> Scrape:
            return Scrape(client.get(f"{node.url}/metrics", headers=OPENMETRICS, timeout=SECONDS).text)

        node.wait_for(lambda: samples(scrape()) >= 1)
        before = scrape()
        _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        node.wait_for(lambda: scrape().value("stepscope_collector_success", collector="cpu") == 0)
        without = scrape()
        assert "stepscope_cpu_utilization_ratio" not in without
        assert without.value("process_open_fds") == without.value("process_max_fds") == 3
        assert "process_resident_memory_bytes" not in without
        node.wait_for(lambda: samples(scrape()) >= samples(before) + 3)  # its file is open already
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        node.wait_for(lambda: "stepscope_cpu_utilization_ratio" in scrape())
        assert scrape().value("process_open_fds") <= before.value("process_open_fds") + 1
        assert node.stop() == 0
    assert "Traceback" not in "\n".join(node.log)


IMPATIENT = (
    "from stepscope.commands import cli; from stepscope.common import watchdog; "
    "watchdog.PATIENCE_SECONDS = 0.5; raise SystemExit(cli.main())"
)


def test_without_a_descriptor_for_any_client_it_ends_with_one_line_so_that_it_is_started_again(
    ledgers: Path, tmp_path: Path
) -> None:
    node = ExporterProcess("--ledger-dir", ledgers, f"--recording.dir={tmp_path / 'recording'}", QUICK)
    node.command[1:4] = ["-c", IMPATIENT, "exporter"]
    with node:
        _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        with socket.create_connection(("127.0.0.1", int(node.url.rpartition(":")[2]))):
            assert node.process.wait(SECONDS) == 1
    assert "Traceback" not in "\n".join(node.log)
    (line,) = [line for line in node.log if " CRITICAL " in line]
    assert "accepting connections has failed" in line
    assert "Too many open files" in line


def test_clients_that_are_silent_end_nothing_however_long(ledgers: Path) -> None:
    node = ExporterProcess("--ledger-dir", ledgers, "--web.max-connections=4", QUICK)
    node.command[1:4] = ["-c", IMPATIENT, "exporter"]
    with node, ExitStack() as crowd:
        for _ in range(40):
            port = int(node.url.rpartition(":")[2])
            crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
        begin = node.scrape().value("stepscope_sampler_ticks_total")
        node.wait_for(lambda: node.scrape().value("stepscope_sampler_ticks_total") > begin + 100)
        assert node.stop() == 0


def state() -> Path:
    return Path(os.environ["STATE_DIRECTORY"])


def test_two_exporters_do_not_count_into_the_same_files(ledgers: Path) -> None:
    flags = ("--ledger-dir", ledgers, f"--run={RESNET}", QUICK)
    with ExporterProcess(*flags) as first, ExporterProcess(*flags) as second:
        second.wait_for(lambda: samples(second.scrape()) >= 1)
        second.wait_for(lambda: any("--state-dir" in line for line in second.log))
        assert not any("--state-dir" in line for line in first.log)


def test_it_ends_at_once_if_its_parent_was_gone_before_it_looked(ledgers: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words = [sys.executable, "-m", "stepscope", "exporter", f"--exit-with-parent={gone.pid}"]
    words += ["--web.listen-address=127.0.0.1:0", f"--ledger-dir={ledgers}"]
    ended = ran(words, check=True)
    assert "the process that started this exporter is gone" in ended.stderr


def command_of(pid: int) -> bytes:
    """Returns what the process runs; nothing if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_it_ends_with_its_parent_where_it_is_told_to(ledgers: Path) -> None:
    words = [sys.executable, "-m", "stepscope", "exporter", "--exit-with-parent"]
    words += ["--web.listen-address=127.0.0.1:0", f"--ledger-dir={ledgers}"]
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, text=True)\n"
        "while 'listening' not in child.stderr.readline(): pass\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not command_of(child), "its end")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nonsense"], "--nonsense"),
        (["--sample-interval=fast"], "'fast' is not a duration"),
        (["--sample-interval=0s"], "'0s' must be more than 0"),
        (["--web.listen-address=9870"], "--web.listen-address 9870"),
        (["--web.config.file=/nowhere/web.yml"], "/nowhere/web.yml: no such file"),
        (["--path.nvml-library=/nowhere/nvml.so"], "/nowhere/nvml.so"),
    ],
)
def test_a_wrong_flag_gets_one_line_and_status_2(words: list[str], named: str) -> None:
    result = exporter("--web.listen-address=127.0.0.1:0", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert named in result.stderr


def test_a_taken_port_gets_one_line_and_status_2_and_nothing_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = exporter(
            f"--web.listen-address={address}", f"--ledger-dir={tmp_path}/l", f"--recording.dir={tmp_path}/r"
        )
    assert result.returncode == 2
    assert result.stderr == (
        f"stepscope: cannot listen on {address}: address already in use;"
        " choose another with --web.listen-address\n"
    )
    assert list(tmp_path.iterdir()) == []
