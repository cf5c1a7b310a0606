"""`stepscope run`: observes a training command and reports on it.

this process            starts, observes, reports; passes signals on
  stepscope exporter   samples the machine, reads the ledgers, records, serves /metrics and /report
  COMMAND               trains; gets three environment variables
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope_startup import is_wanted

from stepscope import __version__
from stepscope.commands.run.ending import OutOfMemory, reason
from stepscope.commands.run.exporter_process import SCRAPED_WITHIN, STOPPED_SCRAPED_WITHIN, ExporterProcess
from stepscope.commands.run.hooks import HookedProcesses, command_environment
from stepscope.commands.run.hung_disk import despite_hung_disk
from stepscope.commands.run.listener import last_page
from stepscope.commands.run.pulse import Pulse
from stepscope.commands.run.status_line import StatusLine
from stepscope.commands.run.terminal import command_begins, command_ended, say
from stepscope.commands.run.training_command import TrainingCommand, end_if_asked, interruptible
from stepscope.common.console import Console
from stepscope.common.durations import positive_count, positive_duration
from stepscope.common.errors import UserError, describe
from stepscope.common.signals import OBSERVER, STOPPING, Signals, blocked
from stepscope.evaluation.arguments import (
    add_docs_url,
    add_parameters,
    add_scan_interval,
)
from stepscope.exporter.ledgers.presence import tell_ending
from stepscope.report.terminal import add_price, add_prices
from stepscope.training.stack_request import VARIABLE as STACKS
from stepscope.training.window_files import DIRECTORY as PROFILES
from stepscope.training.window_files import IN_RECORDING
from stepscope.training.window_plans import VARIABLE as PROFILE
from stepscope.training.window_plans import parse_plans
from stepscope.web.hosts import EXTERNAL_URLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.commands.run.live import LiveView
    from stepscope.commands.run.plan import Plan
    from stepscope.runs.recording.files import RunFile

INTERVAL = "500ms"
SIZES: dict[str, int] = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB"))}
EXAMPLES = """\
examples:
  stepscope run -- python train.py
  stepscope run --name resnet --out runs/7 -- torchrun --nproc-per-node 2 train.py
  stepscope run --profile 20:27 -- python train.py
  stepscope run --set CPUBottleneck.cpu_threshold=80 -- ./train.sh

The exit status is the command's (128 + n if signal n ended it). If the command was not started, it is 2, or
128 + n after signal n. docs/run.md says what each signal does.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope run`."""
    parser.usage = "stepscope run [flags] -- COMMAND..."
    parser.epilog = EXAMPLES
    parser.add_argument("--name", help="name of the run (default: STEPSCOPE_RUN, otherwise the script's)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to record and report (default: stepscope-runs/RUN-TIME)",
    )
    parser.add_argument(
        "--interval",
        type=positive_duration,
        metavar="DURATION",
        help=f"time between two samples of the machine (default: {INTERVAL})",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of /metrics and /report (default: 127.0.0.1:9870, or a free port if it is taken)",
    )
    parser.add_argument(
        "--external-url",
        help="URL at which browsers open the pages through a proxy, may be repeated (default: none is needed "
        "for IP addresses, localhost and the host name)",
        **EXTERNAL_URLS,
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="let training processes write their Python stacks on request: for `stepscope stacks`, and for "
        "the report of a hang",
    )
    parser.add_argument(
        "--profile",
        type=plans,
        action="append",
        default=[],
        metavar="WINDOW",
        help="record the operators of these training steps with the framework's profiler: 20:27, "
        "at=60s,for=5s or every=1000,steps=3, each also with ranks=0,7, with python for Python functions "
        "instead, or with memory; may be repeated (default: STEPSCOPE_PROFILE)",
    )
    parser.add_argument(
        "--profiler-config",
        type=Path,
        metavar="FILE",
        help="follow SageMaker's ProfilerConfig in this file of JSON: its interval, and its windows of "
        "operators and Python functions, and say what cannot be followed; --interval wins, --profile adds",
    )
    parser.add_argument(
        "--profile-findings",
        action="store_true",
        help="when Straggler accuses a rank, record the operators of some steps of this rank and of a median "
        "peer, once per rank",
    )
    parser.add_argument(
        "--no-command-line",
        dest="command_line",
        action="store_false",
        help="do not store the command (default: store it, with *** in place of what looks like a secret)",
    )
    parser.add_argument(
        "--no-lines",
        dest="lines",
        action="store_false",
        help="do not sample which lines of Python the command executes (default: up to 20 times per second)",
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
    parser.add_argument(
        "--steps",
        type=positive_count,
        metavar="N",
        help="how many train steps each rank makes, to show when the run will end",
    )
    parser.add_argument(
        "--no-status-line",
        dest="status_line",
        action="store_false",
        help="do not show rate, use and findings in the last row of the terminal",
    )
    add_price(parser, of="this node")
    add_prices(parser)
    add_docs_url(parser, "rules link to no docs")
    parser.add_argument(
        "--recording.max-age",
        dest="recording_max_age",
        type=positive_duration,
        metavar="DURATION",
        help="before the run, remove finished recordings in stepscope-runs/ that ended longer ago, as 30d"
        " (default: keep all)",
    )
    parser.add_argument(
        "--recording.max-size",
        dest="recording_max_size",
        type=parse_size,
        metavar="SIZE",
        help="before the run, remove the oldest finished recordings in stepscope-runs/ until all of them"
        " have at most this size, as 50GB (default: keep all)",
    )
    parser.add_argument("words", nargs="...", metavar="COMMAND", help="the training command, after --")


def parse_size(text: str) -> int:
    """Returns bytes; units are powers of 1024, as in Prometheus. Raises ArgumentTypeError."""
    match = re.fullmatch(rf"([0-9]{{1,15}})({'|'.join(SIZES)})", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size such as 500MB or 50GB")
    return int(match[1]) * SIZES[match[2]]


def plans(text: str) -> str:
    """Returns what says which steps to profile. Raises ArgumentTypeError."""
    try:
        parse_plans(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def run(arguments: Namespace) -> int:
    """Runs the command and returns its exit status. Raises UserError if it was not started."""
    with blocked(OBSERVER) as mask:  # cli.py has done so before the imports: threads inherit it
        from stepscope.commands.run.ledger_directory import ledger_directory
        from stepscope.commands.run.live import LiveView
        from stepscope.commands.run.old_recordings import remove_old_recordings
        from stepscope.commands.run.on_findings import FindingWindows, HangStacks
        from stepscope.commands.run.plan import planned
        from stepscope.evaluation.settings import Settings

        settings = Settings.parse(arguments.set, arguments.parameters)
        try:
            if given := os.environ.get(PROFILE):
                parse_plans(given)
        except ValueError as error:
            raise UserError(f"{PROFILE}: {error}") from error
        _follow_profiler_config(arguments)
        end_if_asked()
        with planned(arguments) as plan, ledger_directory() as ledgers:
            if arguments.out is None:
                limits = (arguments.recording_max_age, arguments.recording_max_size)
                for line in remove_old_recordings(plan.directory.parent, time.time(), *limits):
                    say(line, "dim")
            stacks = HangStacks(ledgers, plan.directory)
            seconds = plan.scan_interval, arguments.live_interval
            windows = FindingWindows(ledgers) if plan.profile_findings else None
            live = LiveView(plan.directory, settings, *seconds, plan.price, stacks, windows, plan.steps)
            with despite_hung_disk(plan.directory) as watch_disk:
                return _observe(plan, ledgers, live, mask, watch_disk)


def _follow_profiler_config(arguments: Namespace) -> None:
    """Completes --interval and --profile from --profiler-config. Raises UserError."""
    if arguments.profiler_config is not None:
        from stepscope.commands.run.profiler_config import read_profiler_config

        config = read_profiler_config(arguments.profiler_config, time.time())
        for note in config.notes:
            say(f"{arguments.profiler_config}: {note}", "warning")
        arguments.interval = arguments.interval or config.interval
        arguments.profile = [*config.windows, *arguments.profile]
    arguments.interval = arguments.interval or positive_duration(INTERVAL)


def _observe(
    plan: Plan, ledgers: Path, live: LiveView, mask: Signals, watch_disk: Callable[[int], None]
) -> int:
    from stepscope.commands.run.old_recordings import remove_unused

    run = _begin_recording(plan)
    exporter = ExporterProcess(_exporter_flags(plan, ledgers), plan.listener)
    environment = command_environment(os.environ, plan.launch, ledgers, plan.lines)
    if plan.stacks:
        environment[STACKS] = "1"
    environment[PROFILES] = str(plan.directory / IN_RECORDING)
    if plan.windows:
        environment[PROFILE] = plan.windows
    command = TrainingCommand(plan.command, environment, mask)
    hooked = HookedProcesses(ledgers, switched_off=not is_wanted(environment))
    pulse = Pulse(exporter.metrics, time.monotonic, plan.steps)
    line = StatusLine(lambda: (live.status, [live.found, *pulse.parts()]))

    def meanwhile() -> None:
        exporter.tend()
        if warning := hooked.look(command.pid):
            say(f"no steps were seen so far. {warning}", "warning")

    if plan.listener.note:
        say(plan.listener.note)
    try:
        exporter.start()
        say(
            f"observing {plan.launch.run}: http://{plan.listener.reachable}/report (live), "
            f"recording in {plan.directory}",
            "dim",
        )
        out_of_memory = OutOfMemory()
        end_if_asked()
        command.start()
        command_begins()
        live.start()
        if plan.status_line:
            line.start()
        status = command.wait(meanwhile, line.pause)
        watch_disk(status)
        line.stop()
        command_ended()
        how = reason(status, command.ended_by, out_of_memory.happened(command.ended_by))
        label = _label(plan, ledgers)
        if label != plan.launch.run:
            say(f"the ranks of this run agreed on its label: {label}", "dim")
        went_wrong = command.ended_by not in STOPPING if status else hooked.all_raised()
        ended_by, restarted_after = hooked.exceptions(command.pid, failed=went_wrong)
        ended = replace(
            run,
            run=label,
            end=command.end,
            exit_status=status,
            ended=how,
            stopped_by=command.stopped_by,
            exception=ended_by,
            restarted_after=restarted_after,
        )
        with suppress(OSError):  # of a full disk
            ended.write(plan.directory)  # before all else: a scheduler may kill this process soon
            stopped = command.ended_by in STOPPING
            within = STOPPED_SCRAPED_WITHIN if stopped else SCRAPED_WITHIN
            exporter.publish(lambda: tell_ending(ledgers, label, how), within)
    finally:
        line.stop()
        watched = exporter.is_watched()
        exporter.stop()
        live.stop()
        if not command.pid:
            remove_unused(plan.directory)
    page = plan.directory / "report.html", plan.external_urls
    with last_page(plan.listener, watched, *page) as hand_over:
        _complete_recording(plan, ledgers, ended, hooked)
        written = False
        try:
            with interruptible():
                written = _report(plan, live)
                hand_over(written)
        except KeyboardInterrupt:
            if not written:
                _say_how_to_report(plan, "interrupted")
    return status


def _begin_recording(plan: Plan) -> RunFile:
    from stepscope.runs.recording.files import RunFile

    run = RunFile(
        name=plan.launch.name,
        run=plan.launch.run,
        start=time.time(),
        command=plan.command_line,
        interval=plan.interval,
        versions={
            "stepscope": __version__,
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


def _label(plan: Plan, ledgers: Path) -> str:
    """Returns the label of the run at its end: its nodes may have agreed on another one."""
    from stepscope.exporter.ledgers.presence import labels_in, observed
    from stepscope.runs.malformed import DamageError
    from stepscope.runs.recording.files import RunFile

    label = observed(plan.launch.run, labels_in(ledgers))
    with suppress(DamageError, OSError):  # ledgers may be gone, but the exporter has seen them
        if label == plan.launch.run and (known := RunFile.read(plan.directory)):
            return known.run
    return label


def _exporter_flags(plan: Plan, ledgers: Path) -> list[str]:
    return [
        f"--web.listen-address={plan.listener.address}",
        *(f"--web.external-url={url}" for url in plan.external_urls),
        f"--sample-interval={round(plan.interval * 1000)}ms",
        f"--ledger-dir={ledgers}",
        f"--state-dir={ledgers / 'state'}",
        f"--run={plan.launch.run}",
        f"--node={plan.node}",
        f"--recording.dir={plan.directory}",
        f"--report-dir={plan.directory}",
        *(["--recording.lines"] if plan.lines else []),
        "--log-level=warning",
    ]


def _complete_recording(plan: Plan, ledgers: Path, run: RunFile, hooked: HookedProcesses) -> None:
    from stepscope.commands.run.ending import finish_recording

    try:
        finish_recording(plan.directory, plan.node, run, ledgers, hooked.why_no_steps, plan.typed)
    except Exception as error:  # noqa: BLE001 - the exit status must always be the command's
        say(f"the recording could not be completed: {describe(error)}", "warning")
    if reason := hooked.why_no_lines():
        say(f"no line samples {reason}", "warning")


def _report(plan: Plan, live: LiveView) -> bool:
    """Returns whether the report was written. Prints errors."""
    try:
        from stepscope.report.price_list import price_of_node
        from stepscope.report.printed import print_summary
        from stepscope.report.sentences import gaps
        from stepscope.report.write import write_report

        analysis = live.final_analysis()
        price = price_of_node(analysis, plan.machines, plan.price)
        write_report(
            analysis,
            plan.directory,
            price,
            typed=plan.typed,
            docs_url=plan.docs_url,
            machines=plan.machines,
        )
        for line in gaps(analysis.gaps):
            say(line, "warning")
        print_summary(Console(sys.stderr), analysis, plan.directory / "report.html", price)
    except Exception as error:  # noqa: BLE001 - the exit status must always be the command's
        _say_how_to_report(plan, describe(error))
        return False
    return True


def _say_how_to_report(plan: Plan, reason: str) -> None:
    say(f"no report was written ({reason}); the recording is kept", "warning")
    say(f"make the report with `stepscope report {shlex.quote(str(plan.directory))}`")
