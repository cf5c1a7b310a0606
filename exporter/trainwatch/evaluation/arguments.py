"""Defines the flags of rules' parameters, for every command. Imports no numpy, because `run` starts first."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from trainwatch.durations import positive_duration


def add_parameters(parser: ArgumentParser) -> None:
    """Adds `--set` and `--parameters`, for `Settings.parse(arguments.set, arguments.parameters)`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="Rule.parameter=value",
        help="set a parameter of a rule; may be repeated",
    )
    parser.add_argument(
        "--parameters",
        type=Path,
        metavar="FILE",
        help="a YAML file of rules and their parameters; --set overrides it",
    )


def add_scan_interval(parser: ArgumentParser) -> None:
    """Adds `--scan-interval`, in seconds."""
    parser.add_argument(
        "--scan-interval",
        type=positive_duration,
        default="60s",
        metavar="DURATION",
        help="time between two scans of the rules, in the run's time (default: %(default)s)",
    )
