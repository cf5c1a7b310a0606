"""`trainwatch run`: observes a training command and reports on it.

this process            starts, observes, reports; passes signals on
  trainwatch exporter   samples the machine, reads the ledgers, records, serves /metrics and /report
  COMMAND               trains; gets two environment variables
"""

from __future__ import annotations

import os
import platform
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwatch import __version__
from trainwatch.durations import positive_duration
from trainwatch.errors import UserError, describe
from trainwatch.evaluation.arguments import add_parameters, add_scan_interval
from trainwatch.report.price import add_price
from trainwatch.run.exporter_process import ExporterProcess
from trainwatch.run.terminal import say
from trainwatch.run.training_command import (
    SignalMask,
    TrainingCommand,
    blocked_signals,
    interruptible,
    raise_interrupt,
)

if TYPE_CHECKING:
    from trainwatch.run.live import LiveView
    from trainwatch.run.plan import Plan
    from trainwatch.runs.recording.files import RunFile

EXAMPLES = """\
examples:
  trainwatch run -- python train.py
  trainwatch run --name resnet --out runs/7 -- torchrun --nproc-per-node 2 train.py
  trainwatch run --set CPUBottleneck.cpu_threshold=80 -- ./train.sh

The exit status is the command's (128 + n if signal n ended it), or 2 if it was not started.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `trainwatch run`."""
    parser.usage = "trainwatch run [flags] -- COMMAND..."
    parser.epilog = EXAMPLES
    parser.add_argument("--name", metavar="RUN", help="name of the run (default: the script's)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to record and report (default: trainwatch-runs/RUN-TIME)",
    )
    parser.add_argument(
        "--interval",
        type=positive_duration,
        default="500ms",
        metavar="DURATION",
        help="time between two samples of the machine (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of /metrics and /report (default: 127.0.0.1:9870, or a free port if it is taken)",
    )
    add_parameters(parser)
    add_scan_interval(parser)
    parser.add_argument(
        "--live-interval",
        type=positive_duration,
        default="10s",
        metavar="DURATION",
        help="time between two evaluations for the terminal and the live page (default: %(default)s)",
    )
    add_price(parser, of="this node")
    parser.add_argument("words", nargs="...", metavar="COMMAND", help="the training command, after --")


def run(arguments: Namespace) -> int:
    """Runs the command and returns its exit status. Raises UserError if it was not started."""
    # Before all imports: numpy starts threads, which inherit the mask.
    with blocked_signals() as mask:
        from trainwatch.evaluation.settings import Settings
        from trainwatch.run.ledger_directory import ledger_directory
        from trainwatch.run.live import LiveView
        from trainwatch.run.plan import make_directory, plan_run

        settings = Settings.parse(arguments.set, arguments.parameters)
        plan = plan_run(arguments)
        raise_interrupt()
        make_directory(plan.directory)
        live = LiveView(plan.directory, settings, plan.scan_interval, arguments.live_interval, plan.price)
        with ledger_directory() as ledgers:
            return _observe(plan, ledgers, live, mask)


def _observe(plan: Plan, ledgers: Path, live: LiveView, mask: SignalMask) -> int:
    run = _begin_recording(plan)
    exporter = ExporterProcess(_exporter_flags(plan, ledgers), plan.reachable)
    environment = {**os.environ, "TRAINWATCH_RUN": plan.name, "TRAINWATCH_LEDGER_DIR": str(ledgers)}
    command = TrainingCommand(plan.command, environment, mask)
    try:
        exporter.start()
        say(
            f"observing {plan.name}: http://{plan.reachable}/report (live), recording in {plan.directory}",
            "dim",
        )
        command.start()
        live.start()
        status = command.wait(meanwhile=exporter.tend)
    finally:
        exporter.stop()
        live.stop()
    try:
        with interruptible():
            _report(plan, ledgers, run, live, status, command.end or time.time())
    except KeyboardInterrupt:
        _say_how_to_report(plan, "interrupted")
    return status


def _begin_recording(plan: Plan) -> RunFile:
    from trainwatch.runs.recording.files import RunFile

    run = RunFile(
        name=plan.name,
        start=time.time(),
        command=plan.command_line,
        interval=plan.interval,
        versions={
            "trainwatch": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    )
    try:
        run.write(plan.directory)
    except OSError as error:
        raise UserError(
            f"cannot write to {plan.directory}: {error.strerror}; choose another directory with --out"
        ) from error
    return run


def _exporter_flags(plan: Plan, ledgers: Path) -> list[str]:
    return [
        f"--web.listen-address={plan.address}",
        f"--sample-interval={round(plan.interval * 1000)}ms",
        f"--ledger-dir={ledgers}",
        f"--run={plan.name}",
        f"--node={plan.node}",
        f"--recording.dir={plan.directory}",
        f"--report-dir={plan.directory}",
        "--log-level=warning",
    ]


def _report(plan: Plan, ledgers: Path, run: RunFile, live: LiveView, status: int, end: float) -> None:
    """Completes the recording and writes the report. Prints errors; the recording stays."""
    from trainwatch.run.ending import finish_recording, say_summary

    try:
        finish_recording(plan.directory, plan.node, run, ledgers, end, status)
    except (OSError, UserError) as error:
        say(f"the recording could not be completed: {error}", "warning")
    try:
        from trainwatch.report.write import write_report

        analysis = live.final_analysis()
        write_report(analysis, plan.directory, plan.price)
        say_summary(analysis, plan.directory / "report.html")
    except Exception as error:  # noqa: BLE001 - the exit status must always be the command's
        _say_how_to_report(plan, describe(error))


def _say_how_to_report(plan: Plan, reason: str) -> None:
    from trainwatch.run.ending import shown

    directory = shown(plan.directory)
    say(f"no report was written ({reason}); the recording is kept", "warning")
    say(f"make the report with `trainwatch report {directory}`")
