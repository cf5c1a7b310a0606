"""The exporter that `stepscope run` keeps alive next to the command."""

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from math import inf

from stepscope.commands.run.listener import Listener
from stepscope.commands.run.terminal import say
from stepscope.commands.run.training_command import asked_to_stop, end_if_asked
from stepscope.common.errors import UserError

FIRST_PAUSE = 0.5  # seconds before a restart; doubled each time, up to LONGEST_PAUSE
LONGEST_PAUSE = 30.0
GOOD_AFTER = 60.0  # seconds; an exporter that lived longer is not in a crash loop
READY_WITHIN = 20.0  # seconds; a busy machine imports slowly
STOPPED_WITHIN = 20.0
SCRAPED_WITHIN = 60.0  # seconds: most Prometheus servers scrape at least once per minute
STOPPED_SCRAPED_WITHIN = 10.0  # schedulers kill what has not ended 30 s after their signal


class ExporterProcess:
    """A child in its own session, so Ctrl-C does not reach it. It is restarted when it dies.

    It serves on `listener`, which stays open between two exporters. It ends when this process is killed.
    """

    def __init__(self, flags: Sequence[str], listener: Listener) -> None:
        stepscope = (sys.executable, "-m", "stepscope")
        self._socket = listener.socket.fileno()
        inherited = f"--web.listen-fd={self._socket}"
        parent = f"--exit-with-parent={os.getpid()}"
        self._command = [*stepscope, "exporter", parent, inherited, *flags]
        self._address = listener.reachable
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause = FIRST_PAUSE
        self._start_at: float | None = None
        self._reported = False

    @property
    def pid(self) -> int | None:
        """Returns the pid of the current exporter."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts the exporter and waits until it serves. Raises UserError if it ends instead."""
        self._spawn()
        assert self._process is not None
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            end_if_asked()
            status = self._process.poll()
            if status is not None:
                raise UserError(f"the exporter ended at its start with status {status}; its message is above")
            if self._is_ready():
                return
            time.sleep(0.05)
        say(f"the exporter does not answer at http://{self._address} yet; starting the command anyway")

    def tend(self) -> None:
        """Restarts the exporter if it has died and its pause is over. Call it regularly."""
        if self._process is not None and self._process.poll() is not None:
            status, self._process = self._process.returncode, None
            if time.monotonic() - self._started > GOOD_AFTER:
                self._pause = FIRST_PAUSE
                self._reported = False
            reason = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._plan_start(reason)
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start_at = None
            try:
                self._spawn()
            except OSError as error:  # no memory, no processes left
                self._plan_start(str(error))

    def publish(self, tell: Callable[[], None], within: float = SCRAPED_WITHIN) -> None:
        """Calls `tell`, which says how the run ended, and lets those who scrape the exporter read it.

        Waits for one more scrape, for at most `within` seconds, or until a signal. If nobody has scraped the
        exporter, it does not wait.
        """
        before, _ = self._scrapes()
        tell()
        if not before:
            return
        say("waiting until Prometheus has read how the run ended (Ctrl-C skips this)", "dim")
        counted, deadline = False, time.monotonic() + within
        while time.monotonic() < deadline and not asked_to_stop():
            scrapes, published = self._scrapes()
            if (counted and scrapes > before) or scrapes == inf:
                return
            if not counted:  # scrapes count once there is something to read
                before, counted = scrapes, published
            time.sleep(0.2)

    def metrics(self) -> bytes | None:
        """Returns the text of /metrics; None if there is no answer."""
        return self._get("/metrics")

    def is_watched(self) -> bool:
        """Returns whether a browser shows the live page."""
        return self._process is not None and self._get("/report/watched") == b"yes\n"

    def stop(self) -> None:
        """Ends the exporter after it has written its samples."""
        self._start_at = None
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _spawn(self) -> None:
        # In the root directory, so that Python imports no module next to the training script.
        self._process = subprocess.Popen(
            self._command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[self._socket],
        )
        self._started = time.monotonic()

    def _plan_start(self, reason: str) -> None:
        if not self._reported:
            self._reported = True
            say(f"the exporter {reason}; it is restarted and the recording continues")
        self._start_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _is_ready(self) -> bool:
        return self._get("/-/ready") is not None

    def _scrapes(self) -> tuple[float, bool]:
        """Returns how often the exporter was scraped, and whether /metrics has the end of the run."""
        text = self.metrics()
        if text is None:  # nobody can scrape it any more
            return inf, True
        found = re.search(rb"(?m)^stepscope_exporter_scrapes_total (\d+)", text)
        return float(found[1]) if found else 0.0, b"\nstepscope_run_ended_info{" in text

    def _get(self, path: str) -> bytes | None:
        connection = http.client.HTTPConnection(self._address, timeout=1)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
