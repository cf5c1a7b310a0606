"""Defines the flags of rules' parameters, for every command. Imports no numpy, because `run` starts first."""

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

from stepscope.common.durations import positive_duration


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


def add_docs_url(parser: ArgumentParser, without: str, *names: str, default: str = "") -> None:
    """Adds `--docs-url`, also called `names`. `without`: what happens if it is not given."""
    parser.add_argument(
        "--docs-url",
        *names,
        type=url,
        default=default,
        metavar="URL",
        help=f"of a copy of docs/ (default: {without})",
    )


def url(text: str) -> str:
    """Parses the address of a site. Raises ArgumentTypeError, as the `type` of a flag must."""
    if text and not text.startswith(("http://", "https://")):
        raise ArgumentTypeError(f"{text!r} must be a URL such as https://grafana.example.com")
    return text.rstrip("/")
