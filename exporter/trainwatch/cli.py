"""The `trainwatch` command: one module per subcommand, each with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from trainwatch import __version__
from trainwatch.errors import UserError

# A module is imported only for its own command: the exporter must not pay for numpy.
COMMANDS = {
    "run": ("trainwatch.run.command", "observe a training command and report on it"),
    "exporter": ("trainwatch.exporter.command", "publish this node's metrics for Prometheus"),
    "actions": ("trainwatch.actions.command", "stop runs on Alertmanager's notifications"),
    "report": ("trainwatch.report.command", "write the profiler report of a recorded run"),
    "compare": ("trainwatch.compare.command", "compare two runs: speed, cost, and where they differ"),
    "crosscheck": (
        "trainwatch.crosscheck.command",
        "check the alerts of Prometheus against raw counters",
    ),
    "demo": ("trainwatch.demo.command", "serve or write a simulated node, to see the rules at work"),
    "rules": (
        "trainwatch.prometheus_rules.command",
        "write alerting rules for Prometheus, or check rule files",
    ),
    "dashboards": (
        "trainwatch.dashboards.command",
        "write dashboards for Grafana, or check dashboard files",
    ),
}

EXAMPLES = """\
examples:
  trainwatch run -- python train.py           watch a training script, write a report at its end
  trainwatch exporter                         serve metrics on http://localhost:9870/metrics
  trainwatch report trainwatch-runs/RUN       write the report of a recording again
  trainwatch compare BEFORE AFTER             show what a change saved, and where
  trainwatch demo cpu-bottleneck              serve a simulated node, without a GPU
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status (2: an error of the user, printed on one line)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _parser(chosen=words[0] if words else None)
        parsed = parser.parse_args(words)
        if parsed.command is None:
            parser.error("no command given")
        module = import_module(COMMANDS[parsed.command][0])
        status: int = module.run(parsed)
    except UserError as error:
        print(f"trainwatch: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        if (missing.name or "trainwatch").startswith("trainwatch"):
            raise
        needs = f"needs the package {missing.name}, which is not installed here"
        print(
            f"trainwatch: {words[0]} {needs}; install trainwatch-exporter with its dependencies",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `trainwatch ... | head`
        sys.stderr.close()
        return 141
    return status


class _OneLineParser(argparse.ArgumentParser):
    """Reports an error on one line that refers to --help, instead of the whole usage."""

    def error(self, message: str) -> object:  # type: ignore[override]
        raise UserError(f"{message}; see `{self.prog} --help`")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="trainwatch",
        description="Finds out why a training job leaves its GPUs idle.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trainwatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            import_module(module).add_arguments(command)
    return parser
