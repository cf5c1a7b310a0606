"""`stepscope demo`: a simulated node with the real exporter, to try Stepscope without a slow run."""

import asyncio
import logging
import os
import shlex
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import socket

from stepscope import __version__
from stepscope.commands.exporter import DEFAULT_ADDRESS
from stepscope.commands.run.ledger_directory import memory_or_temporary
from stepscope.common.console import BOLD, Console
from stepscope.common.durations import parse_duration, parse_speed, positive_duration
from stepscope.common.errors import UserError, did_you_mean
from stepscope.common.signals import SERVED, unblocked
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.scenario import Scenario
from stepscope.demo.scenarios import all_scenarios, summary
from stepscope.demo.simulation import Simulation
from stepscope.exporter.ledgers.presence import FINISHED
from stepscope.report.terminal import shown
from stepscope.runs.recording.live import LiveRecording
from stepscope.web.log import log_to_stderr
from stepscope.web.pages import Pages
from stepscope.web.serving import Serving

ENDED_BY_SIGTERM = 143
logger = logging.getLogger(__name__)

CATCH_UP_TICKS = 50  # well below what the recording's queue holds

EXAMPLES = """\
examples:
  stepscope demo --list                                    list the scenarios
  stepscope demo cpu-bottleneck                            serve it on http://localhost:9870/metrics
  stepscope demo straggler --speed 10                      ten simulated seconds per second
  stepscope demo stall --begun-ago 20m                     as if it had trained for 20 minutes
  stepscope demo thermal --write-recording runs/thermal    write a run without waiting, then:
  stepscope report runs/thermal                            its report

The node and the training are simulated; the exporter, the recording and the rules are real.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope demo`."""
    parser.epilog = EXAMPLES
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="see --list")
    parser.add_argument("--list", action="store_true", help="list the scenarios and the rules that fire")
    parser.add_argument(
        "--web.listen-address",
        dest="listen",
        action="append",
        metavar="[HOST]:PORT",
        help=f"address to serve on, may be repeated (default: {DEFAULT_ADDRESS}; none with "
        "--write-recording)",
    )
    parser.add_argument(
        "--speed",
        type=parse_speed,
        default=1.0,
        metavar="FACTOR",
        help="simulated seconds per second, when serving: 1, 10, ... (default: 1)",
    )
    parser.add_argument(
        "--begun-ago",
        type=parse_duration,
        default="0s",
        metavar="DURATION",
        help="serve a run that began DURATION ago, in simulated time: its past is simulated without waiting, "
        "so that rules with patience decide soon (default: 0s)",
    )
    parser.add_argument(
        "--duration",
        type=positive_duration,
        metavar="DURATION",
        help="how long the run lasts, in simulated time (default: until Ctrl-C; with --write-recording as "
        "long as the rules need)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same run (default: 0)")
    parser.add_argument(
        "--write-recording", type=Path, metavar="DIR", help="write the run as `stepscope run` records it"
    )


def run(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT, or writes the run and returns. Raises UserError for a bad flag."""
    if arguments.list:
        scenarios = all_scenarios()
        width = max(map(len, scenarios))
        for name, each in scenarios.items():
            print(f"{name:{width}}  {summary(each)}")
            later = "".join(f", in reports {rule}" for rule in sorted(each.too_early))
            print(f"{'':{width}}  fires: {', '.join(sorted(each.alerts())) or 'nothing'}{later}")
        return 0
    scenario = _scenario(arguments.scenario)
    listen = arguments.listen or ([] if arguments.write_recording else [DEFAULT_ADDRESS])
    log_to_stderr("info" if listen else "warning")
    serving = Serving(listen)
    with ExitStack() as stack:
        sockets = serving.bind(stack)
        directory = stack.enter_context(simulated_directory())
        demo = _Demo(scenario, arguments, directory, without_waiting=not sockets)
        if sockets:
            demo.serve(serving, sockets)
        else:
            demo.write()
    if arguments.write_recording:
        console = Console(sys.stderr)
        console.write(f"wrote {console.link(arguments.write_recording)}")
        command = f"stepscope report {shlex.quote(str(arguments.write_recording))}"
        console.write(f"next: {console.styled(command, BOLD)}")
    return 0


@contextmanager
def simulated_directory() -> Iterator[Path]:
    """Yields a temporary directory for a simulation, in memory because its /proc is written every tick."""
    prefix, base = f"stepscope-demo-{os.getpid()}-", memory_or_temporary()
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base) as directory:
        yield Path(directory)


class _Demo:
    """A simulation, the exporter that reads it, and the files that it is written to."""

    def __init__(
        self, scenario: Scenario, arguments: Namespace, directory: Path, without_waiting: bool
    ) -> None:
        recording = arguments.write_recording
        duration = arguments.duration or (60 * scenario.minutes if recording else None)
        now = float(int(time.time()))
        self._begun_ago: float = 0.0 if without_waiting else arguments.begun_ago
        start = now - (duration if without_waiting and duration else self._begun_ago)
        name = f"simulated-{scenario.name}"
        self._clock = SimulatedClock(start, arguments.speed)
        self._written = Written(scenario, arguments.seed, name, start, recording)
        self._simulation = Simulation(scenario, arguments.seed, name, start, duration, directory)
        live = LiveRecording(recording) if recording else None
        self._exporter = make_exporter(self._simulation, self._clock, directory, live)

    def serve(self, serving: Serving, sockets: list[socket]) -> None:
        """Serves until SIGTERM or SIGINT."""
        logger.info("simulated: %s", summary(type(self._simulation.scenario)))
        try:
            if self._begun_ago:
                with unblocked(SERVED):  # until now; the sampler takes the next sample
                    while self._clock.lag() > INTERVAL:
                        self._exporter.tick()
                        self._clock.advance(INTERVAL)
                    self._exporter.catch_up()
                    self._clock.start_waiting()
            self._exporter.start()
            asyncio.run(serving.until_stopped(Pages(self._exporter, serving).answer, sockets))
        finally:
            self._close()
        logger.info("stopped")

    def write(self) -> None:
        """Takes all samples of the run without waiting."""
        assert self._simulation.duration is not None
        ticks = 1 + int(self._simulation.duration / INTERVAL)
        try:
            with unblocked(SERVED), shown("samples written", ticks) as progress:
                for tick in range(ticks):
                    if tick:
                        self._clock.advance(INTERVAL)
                    self._exporter.tick()
                    if tick % CATCH_UP_TICKS == 0:
                        self._exporter.catch_up()
                    progress(tick + 1)
        finally:
            self._close()

    def _close(self) -> None:
        self._exporter.close()
        self._written.end(self._clock.time(), self._simulation.ended_well)


def _scenario(name: str | None) -> Scenario:
    scenarios = all_scenarios()
    known = ", ".join(scenarios)
    if name is None:
        raise UserError(f"no SCENARIO given; choose one of {known}")
    if name not in scenarios:
        hint = did_you_mean(name, scenarios, f"choose one of {known}")
        raise UserError(f"scenario {name!r} does not exist; {hint}")
    return scenarios[name]()


class Written:
    """The recording of a run, if there is one. The exporter writes its samples.

    Raises UserError if the directory is not new or cannot be written.
    """

    def __init__(self, scenario: Scenario, seed: int, run: str, start: float, recording: Path | None) -> None:
        self._recording = recording
        if recording:
            if recording.exists() and (not recording.is_dir() or any(recording.iterdir())):
                raise UserError(f"{recording}: already exists; choose a new or empty directory")
            try:
                recording.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{recording}: {error.strerror}; choose another directory") from None
            from stepscope.runs.recording.files import RunFile  # numpy, only for recordings

            self._run = RunFile(
                name=run,
                start=start,
                command=f"stepscope demo {scenario.name} --seed {seed}  (simulated, nothing was measured)",
                interval=INTERVAL,
                versions={"stepscope": __version__, "simulated": f"{scenario.name}, seed {seed}"},
            )
            self._run.write(recording)

    def end(self, moment: float, well: bool) -> None:
        """Completes run.json after the exporter has closed. Unfinished runs get the status of SIGTERM."""
        if self._recording:
            status, ended = (0, FINISHED) if well else (ENDED_BY_SIGTERM, "signal SIGTERM")
            replace(self._run, end=moment, exit_status=status, ended=ended).write(self._recording)
