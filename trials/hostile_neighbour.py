"""A second user does whatever the machine permits to the names that Stepscope shares, for minutes.

Exporter, victim and neighbour are three users in sandboxes that share a /dev/shm of their own. So the trial
needs root, and nothing remains. The victim trains repeatedly, on its own and under `stepscope run`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from math import isfinite
from pathlib import Path
from threading import Event, Thread

import psutil
from stepscope.exporter.ledgers.presence import UNSAID
from stepscope.training.launch import Launch

from tests.support.compose import REPOSITORY
from tests.support.sandbox import Sandbox, SandboxedExporter, missing_for_sandboxes
from trials import Attempt, NotPossibleError, trial
from trials.commands import SECONDS
from trials.exporters import recorded
from trials.neighbour import FORGED

EXPORTER, VICTIM, NEIGHBOUR = 64017, 64018, 65534
STEPS = 150
SCRAPE_TIMEOUT = 10.0  # seconds, as Prometheus's default
STATUS = 3  # of the victim's script
PATH = {"PATH": os.environ["PATH"]}

_OF_VICTIM = re.compile(rf'stepscope_run_info\{{run="([^"]+)",.*,user="{VICTIM}",')

# A training whose result depends on every batch, in order. Its forked loader workers time their fetches.
SCRIPT = f"""
import hashlib, os, sys, time, stepscope
STEPS, WORKERS = {STEPS}, 2
if path := os.environ.get("PID_FILE"):
    with open(path, "w") as file:
        file.write(str(os.getpid()))

@stepscope.fetch
def fetch(index):
    time.sleep(0.002)
    return hashlib.sha256(b"%d" % index).digest()

def worker(number, out):
    for index in range(number, STEPS, WORKERS):
        os.write(out, fetch(index))
    os._exit(0)

stepscope.start()
time.sleep(0.5)  # as a model takes to build; its workers come later
batches = []
for number in range(WORKERS):
    batches.append(os.pipe())
    if os.fork() == 0:
        worker(number, batches[-1][1])
parameters = b""
for step in range(STEPS):
    with stepscope.step():
        batch = os.read(batches[step % WORKERS][0], 32)
        with stepscope.component("forward"):
            time.sleep(0.01)
            parameters = hashlib.sha256(parameters + batch).digest()
    if step % 50 == 0:
        print("step", step, parameters.hex()[:8], flush=True)
for _ in range(WORKERS):
    os.wait()
print("parameters", parameters.hex())
sys.exit({STATUS})
"""


@trial(
    "Whatever another user does to shared directories, a training and its exporter lose no step, scrape, "
    "value or descriptor.",
    count=600,
    short=5,
    of="seconds",
)
def hostile_neighbour(attempt: Attempt) -> str:
    if reason := missing_for_sandboxes():
        raise NotPossibleError(reason)
    with _Machine(attempt.folder) as machine, ExitStack() as stack:
        exporter = machine.exporter()
        stack.enter_context(exporter)
        scraper = stack.enter_context(_Scraper(exporter))
        quiet = machine.train(0)
        assert (quiet.status, quiet.errors) == (STATUS, ""), quiet.errors
        scraper.wait_for_the_end_of(quiet)
        (process,) = psutil.Process(exporter.process.pid).children()
        before = process.num_fds()
        trained, observed = [quiet], 0
        with machine.neighbour(attempt.seed, attempt.count + SECONDS) as tally:
            deadline = time.monotonic() + attempt.count
            while (left := deadline - time.monotonic()) > 0 or not observed:
                attempt.progress(attempt.count - max(0.0, left))
                with machine.observed(len(trained)) as run:
                    trained.append(machine.train(len(trained), asked=True))
                    scraper.wait_for_the_end_of(trained[-1])
                    trained[-1].must_equal(quiet)
                    run().must_equal(quiet)
                observed += 1
                machine.check_neighbour()
        deadline = time.monotonic() + SECONDS
        while (after := process.num_fds()) > before and time.monotonic() < deadline:
            time.sleep(0.5)
        assert after <= before, f"{after} descriptors are open, {before} were"
        scraper.check()
        exporter.stop()
    _check_log(exporter.log)
    lost = scraper.seen_left_out
    return (
        f"{sum(tally.values()):,} acts of {len(tally)} kinds; {len(trained) - 1} trainings, {observed} in "
        f"`stepscope run`, of {STEPS} steps and fetches: all counted and recorded, same output and status; "
        f"{scraper.scrapes} scrapes, none lost, the slowest took {1000 * scraper.slowest:.0f} ms; "
        f"{before} descriptors before and after; {lost:.0f} ticks of a run left out"
    )


def _check_log(log: list[str]) -> None:
    bad = [
        line
        for line in log
        if "Traceback" in line
        or re.search(r" (ERROR|CRITICAL) ", line)
        or re.search(r"(?<!cannot be) failed: (?!no answer within)", line)  # a busy machine may be slow
    ]
    assert not bad, f"the exporter's log: {bad[0]}"


@dataclass(frozen=True)
class _Training:
    """A training of the victim that has ended."""

    label: str
    pid: int
    status: int
    output: str
    errors: str

    def must_equal(self, quiet: "_Training") -> None:
        """Fails if anything of it differs from the training without a neighbour."""
        assert self.status == quiet.status, f"status {self.status}, not {quiet.status}: {self.errors}"
        assert self.output == quiet.output, f"printed {self.output!r}, not {quiet.output!r}"
        assert "Traceback" not in self.errors, self.errors


class _Machine:
    """The directories of three users, and what runs there as one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "machine"
        self._recording = self._folder / "recording"
        self._home = self._folder / "home"
        self._mounted = {
            "/dev/shm": self._folder / "shm",
            "/var/lib/stepscope": self._folder / "state",
            "/mnt": self._recording,
            "/srv": self._home,
        }
        self._pids: list[int] = []

    def __enter__(self) -> "_Machine":
        for name, user, mode in (
            ("shm", 0, 0o1777),
            ("shm/stepscope", EXPORTER, 0o1777),  # as deploy/systemd/stepscope.tmpfiles.conf makes it
            ("state", EXPORTER, 0o700),
            ("recording", EXPORTER, 0o755),
            ("home", VICTIM, 0o755),
            ("home/runs", VICTIM, 0o755),
        ):
            path = self._folder / name
            path.mkdir(parents=True)
            path.chmod(mode)
            os.chown(path, user, user)
        (self._home / "train.py").write_text(SCRIPT)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Fails if a step or fetch of a training on its own is not recorded."""
        try:
            if kind is None:
                self._check_recording()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def exporter(self) -> SandboxedExporter:
        sandbox = Sandbox(EXPORTER, umask=0o022, mounted=self._mounted)
        quiet = ("disk", "gpu", "network", "pressure")
        return SandboxedExporter(
            sandbox,
            "--ledger-retention=20s",
            "--run-retention=1s",
            "--recording.dir=/mnt",
            "--recording.lines",
            "--node=node",
            *(f"--no-collector.{name}" for name in quiet),
            environment={"STATE_DIRECTORY": "/var/lib/stepscope", **PATH},
        )

    @contextmanager
    def neighbour(self, seed: int, seconds: float) -> Iterator[Mapping[str, int]]:
        """Lets the neighbour act. The mapping has what it did, once it has ended."""
        sandbox = Sandbox(NEIGHBOUR, mounted=self._mounted)
        words = [sys.executable, "-m", "trials.neighbour", str(seed), str(seconds)]
        process = self._neighbour = _start(sandbox, words, REPOSITORY, stdin=subprocess.PIPE)
        tally: dict[str, int] = {}
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
            yield tally
            output, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, f"the neighbour failed: {errors}"
            tally |= json.loads(output)
        finally:
            _end(process)

    def check_neighbour(self) -> None:
        """Fails if the neighbour acts no more."""
        assert self._neighbour.poll() is None, f"the neighbour ended: {self._neighbour.communicate()[1]}"

    def train(self, number: int, asked: bool = False) -> _Training:
        """Trains on its own. `asked`: the victim asks where it is meanwhile, by `stepscope stacks`."""
        name, launch, pid_file = f"victim-{number}", f"launch {number}", self._home / f"pid-{number}"
        pid_file.touch()
        os.chown(pid_file, VICTIM, VICTIM)
        environment = {
            "STEPSCOPE_RUN": name,
            "STEPSCOPE_LAUNCH": launch,
            "PID_FILE": f"/srv/{pid_file.name}",
        }
        if number % 2:
            environment["STEPSCOPE_STACKS"] = "1"
        label = Launch(name, launch).run
        process = self._as_victim([sys.executable, "/srv/train.py"], environment)
        try:
            if asked:
                self._ask(label)
            output, errors = process.communicate(timeout=SECONDS)
        finally:
            _end(process)
        assert process.returncode == STATUS, f"{name} ended with {process.returncode}: {output}{errors}"
        self._pids.append(int(pid_file.read_text()))
        return _Training(label, self._pids[-1], process.returncode, output, errors)

    def _ask(self, label: str) -> None:
        process = self._as_victim([sys.executable, "-m", "stepscope", "stacks", label])
        try:
            output, errors = process.communicate(timeout=SECONDS)
        finally:
            _end(process)
        assert FORGED not in output + errors, f"`stepscope stacks` printed what the neighbour wrote: {output}"
        assert "Traceback" not in errors, errors

    @contextmanager
    def observed(self, number: int) -> Iterator[Callable[[], _Training]]:
        """Trains under `stepscope run`. The function waits for its end."""
        out = self._home / "runs" / str(number)
        words = [sys.executable, "-m", "stepscope", "run", "--out", f"/srv/runs/{number}", "--listen"]
        process = self._as_victim([*words, "127.0.0.1:0", "--", sys.executable, "/srv/train.py"])

        def ended() -> _Training:
            output, errors = process.communicate(timeout=2 * SECONDS)
            assert (out / "report.html").exists(), f"`stepscope run` made no report: {errors}"
            (numbers,) = _numbers(out).values()
            assert numbers == list(range(STEPS)), f"`stepscope run` recorded {len(numbers)} steps"
            shutil.rmtree(out)
            return _Training("", 0, process.returncode, output, errors)

        try:
            yield ended
        finally:
            _end(process)

    def _as_victim(self, words: list[str], environment: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        return _start(Sandbox(VICTIM, mounted=self._mounted), words, self._home, environment)

    def _check_recording(self) -> None:
        numbers = _numbers(self._recording)
        for pid in self._pids:
            steps = numbers.get(pid, [])
            assert steps == list(range(STEPS)), f"{len(steps)} of {STEPS} steps of a training are recorded"
        totals = {
            pid: (steps, fetches, alive)
            for pid, steps, fetches, alive in recorded(
                self._recording, "ranks", "pid", "train_steps", "fetches", "alive"
            )
        }
        for pid in self._pids:
            assert totals.get(pid) == (STEPS, STEPS, False), f"the recorded totals are {totals.get(pid)}"


def _numbers(recording: Path) -> dict[int, list[int]]:
    """Returns the numbers of the recorded steps by process: 1 in the ledgers of the neighbour."""
    numbers: dict[int, list[int]] = {}
    for pid, number in recorded(recording, "steps", "pid", "number"):
        numbers.setdefault(pid, []).append(number)
    return numbers


def _start(
    sandbox: Sandbox,
    words: list[str],
    folder: Path,
    environment: Mapping[str, str] = {},
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    inside = str(folder) if folder == REPOSITORY else "/srv"
    return subprocess.Popen(
        [*sandbox.words(), "env", f"--chdir={inside}", *words],
        env={**PATH, "TMPDIR": "/dev/shm", "HOME": "/srv", **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Kills everything that the sandbox's process started, if it still runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class _Scraper:
    """Scrapes once per second, as Prometheus does, and checks what it gets."""

    def __init__(self, exporter: SandboxedExporter) -> None:
        self._exporter = exporter
        self._port = 0
        self._stopping = Event()
        self._thread = Thread(target=self._scrape_on)
        self._broken: Exception | None = None
        self._latest: dict[str, float] = {}
        self._steps: dict[str, float] = {}  # of each training that has not ended, by run
        self._gaps = 0
        self.scrapes = 0
        self.slowest = 0.0
        self.seen_left_out = 0.0

    def __enter__(self) -> "_Scraper":
        self._port = int(self._exporter.url.rpartition(":")[2])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._broken is not None:
            raise self._broken

    def wait_for_the_end_of(self, training: _Training) -> None:
        """Waits until its end is published. Fails if one of its figures is wrong."""
        run = f'run="{training.label}"'
        rank = f'{run},rank="0"'
        deadline = time.monotonic() + SECONDS
        ended = f"stepscope_run_end_time_seconds{{{run}}}"
        while ended not in (seen := self._latest):
            self.check()
            assert time.monotonic() < deadline, (
                f"after {SECONDS:.0f} s, {training.label} has not ended in the metrics"
            )
            time.sleep(0.1)
        for name, value in (
            (f'step_duration_seconds_count{{{rank},phase="train"}}', STEPS),
            (f"dataloader_fetch_seconds_count{{{rank}}}", STEPS),
            (f'run_ended_info{{{run},reason="{UNSAID}"}}', 1),
            (f'rank_process_state{{{rank},state="running"}}', None),
            (f"run_age_seconds{{{run}}}", None),
        ):
            assert seen.get(f"stepscope_{name}") == value, (
                f"{name} is {seen.get(f'stepscope_{name}')}, not {value}"
            )

    def _scrape_on(self) -> None:
        while not self._stopping.wait(1.0):
            begin = time.monotonic()
            try:
                self._latest = self._scrape()
            except Exception as error:  # noqa: BLE001 - the trial's thread raises it
                self._broken = self._broken or error
                return
            self.scrapes += 1
            self.slowest = max(self.slowest, time.monotonic() - begin)

    def _scrape(self) -> dict[str, float]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=SCRAPE_TIMEOUT)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, f"a scrape was answered with {response.status}"
        samples = {
            series: float(value)
            for series, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
        }
        left_out = samples.get('stepscope_collector_left_out_total{collector="training"}', 0.0)
        self.seen_left_out = max(self.seen_left_out, left_out)
        self._check_steps(samples)
        return samples

    def _check_steps(self, samples: Mapping[str, float]) -> None:
        """Fails if a figure of the victim cannot be, or the steps of a training fall, or vanish too early."""
        runs = {match[1] for match in map(_OF_VICTIM.match, samples) if match}
        for series, value in samples.items():
            odd = not isfinite(value) and any(f'run="{run}"' in series for run in runs)
            assert not odd, f"{series} is {value}"
        missing = self._steps.keys() - runs
        self._gaps += bool(missing)  # a busy machine may delay a collector too long
        assert self._gaps <= 2 + self.scrapes / 20, f"{self._gaps} of {self.scrapes} scrapes lack {missing}"
        for run in runs:
            counter = f'stepscope_step_duration_seconds_count{{run="{run}",rank="0",phase="train"}}'
            before, steps = self._steps.pop(run, 0.0), samples.get(counter, 0.0)
            assert before <= steps <= STEPS, f"{counter} is {steps:g} after {before:g}"
            if f'stepscope_run_end_time_seconds{{run="{run}"}}' not in samples:
                self._steps[run] = steps
