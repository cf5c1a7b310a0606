"""The `stepscope` command: one module per subcommand, each with `add_arguments` and `run`."""

import argparse
import io
import os
import re
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

from stepscope import __version__
from stepscope.common.errors import UserError, did_you_mean
from stepscope.common.masking import masked
from stepscope.common.signals import take_signals
from stepscope.common.without_pandas import without_pandas

# A module is imported only for its own command: the exporter must not pay for numpy.
COMMANDS = {
    "run": ("run.command", "observe a training command and report on it"),
    "exporter": ("exporter", "publish this node's metrics for Prometheus"),
    "actions": ("actions", "stop runs on Alertmanager's notifications"),
    "hooks": ("hooks", "show, install or remove the hooks in a Python that trains"),
    "stacks": ("stacks", "print where each rank is now, and its Python stack"),
    "profile": ("profile", "record the operators of a running job's next steps"),
    "timeline": ("timeline", "write one trace of a whole run, for ui.perfetto.dev"),
    "report": ("report", "write the profiler report of a recorded run"),
    "list": ("list", "list the runs here: state, verdict, cost and trend"),
    "open": ("open", "open the report of a run, or the page of all runs"),
    "compare": ("compare", "compare two runs: speed, cost, and where they differ"),
    "usage": ("usage", "show who used the GPUs, in hours, kWh and dollars"),
    "crosscheck": ("crosscheck", "check the alerts of Prometheus against raw counters"),
    "doctor": ("doctor.command", "check what is measured here, and by Prometheus"),
    "demo": ("demo", "serve or write a simulated node, to see the rules at work"),
    "rules": ("rules", "write alerting rules for Prometheus, or check rule files"),
    "dashboards": ("dashboards", "write dashboards for Grafana, or check dashboard files"),
    "alertmanager": ("alertmanager", "write configuration and templates for Alertmanager, or check them"),
}

# What argparse says, and how it writes flags.
_CHOICE = re.compile(r"invalid choice: '(.*)' (\(choose from .*\))")
_UNKNOWN_FLAG = re.compile(r"unrecognized arguments: .*?(--[^\s=]+)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
_WORD = re.compile(r"[\w.-]+")

EXAMPLES = """\
examples:
  stepscope run -- python train.py           watch a training script, write a report at its end
  stepscope exporter                         serve metrics on http://localhost:9870/metrics
  stepscope report stepscope-runs/RUN        write the report of a recording again
  stepscope compare BEFORE AFTER             show what a change saved, and where
  stepscope demo cpu-bottleneck              serve a simulated node, without a GPU
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status (2: an error of the user, printed on one line)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words:  # this process is the command's alone
        take_signals(words[0])
        _open_streams()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names and locales may be any
        without_pandas()
    try:
        parser = parser_of(words[:1])
        parsed = parser.parse_args(words)
        if parsed.command is None:
            parser.print_help()
            return 0
        module = import_module(f"stepscope.commands.{COMMANDS[parsed.command][0]}")
        parsed.typed = ("stepscope", *words)  # reports say which command made them
        status: int = module.run(parsed)
    except UserError as error:
        print(f"stepscope: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        if (missing.name or "stepscope").startswith("stepscope"):
            raise
        needs = f"needs the package {missing.name}, which is not installed here"
        print(f"stepscope: {words[0]} {needs}; install stepscope with its dependencies", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `stepscope ... | head`
        sys.stderr.close()
        return 141
    except OSError as error:  # of a file or a connection that nobody expected to fail
        print(f"stepscope: {error.filename or words[0]}: {error.strerror or error}", file=sys.stderr)
        return 2
    return status


def _open_streams() -> None:
    """Opens /dev/null for standard streams that the caller closed: a socket would get their numbers."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # not inherited: a command has them closed, too
        pass
    os.close(null)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", errors="backslashreplace", closefd=False)


class _OneLineParser(argparse.ArgumentParser):
    """Reports an error on one line that suggests a name or refers to --help, instead of the whole usage."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Reports unknown arguments of a command with the help of this command."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> object:  # type: ignore[override]
        near = ""
        if choice := _CHOICE.search(message):
            near = did_you_mean(choice[1], _WORD.findall(choice[2]), "")
            message = message.replace(f" {choice[2]}", "") if near else message
        elif flag := _UNKNOWN_FLAG.search(message):
            near = did_you_mean(flag[1], _FLAG.findall(self.format_help()), "")
        words = " ".join(masked(message.split(" ")))  # a log may keep it, and it quotes arguments
        see = f"`{self.prog} --help`"
        raise UserError(f"{words}; {near} See {see}" if near else f"{words}; see {see}")


def parser_of(chosen: Collection[str]) -> argparse.ArgumentParser:
    """Returns the parser; only the chosen commands have their flags."""
    parser = _OneLineParser(
        prog="stepscope",
        description="Finds out why a training job leaves its GPUs idle.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in chosen:
            import_module(f"stepscope.commands.{module}").add_arguments(command)
    return parser
