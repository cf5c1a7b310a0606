"""Options of rendering. Rule files have them in their header, so that they can be checked."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field

from trainwatch.durations import parse_speed, positive_duration
from trainwatch.errors import UserError
from trainwatch.evaluation.arguments import add_parameters
from trainwatch.evaluation.settings import Settings
from trainwatch.rules.promql import Scraping, time_span

GRAFANA_URL = "http://localhost:3000"
DOCS_URL = "https://github.com/trainwatch/trainwatch/blob/main/docs"
COMMAND = "trainwatch rules render"


@dataclass(frozen=True)
class Options:
    words: tuple[str, ...] = ()  # Rule.parameter=value
    scraping: Scraping = field(default_factory=Scraping)
    grafana_url: str = GRAFANA_URL
    docs_url: str = DOCS_URL
    speed: float = 1.0  # of a simulated node; all other times here are simulated ones

    @property
    def settings(self) -> Settings:
        """Returns the parsed settings. Raises UserError for a bad one."""
        return Settings.parse(self.words)

    def command(self) -> str:
        """Returns the command that renders with these options, without `--out`."""
        words = [
            *COMMAND.split(),
            *("--scrape-interval", time_span(self.scraping.interval)),
            *("--sample-interval", time_span(self.scraping.sample_interval)),
        ]
        if self.grafana_url != GRAFANA_URL:
            words += ["--grafana-url", self.grafana_url]
        if self.docs_url != DOCS_URL:
            words += ["--docs-url", self.docs_url]
        if self.speed != 1:
            words += ["--speed", f"{self.speed:g}"]
        for word in self.words:
            words += ["--set", word]
        return shlex.join(words)

    @classmethod
    def from_command(cls, command: str) -> Options:
        """Returns the options in the result of `command`. Raises UserError for any other command."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"{command}: cannot be read ({error})") from None
        if words[: len(COMMAND.split())] != COMMAND.split():
            raise UserError(f"{command}: is not `{COMMAND} ...`")
        parser = _RaisingParser(add_help=False)
        add_options(parser)
        return cls.from_arguments(parser.parse_args(words[len(COMMAND.split()) :]))

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Options:
        in_file = Settings.read(arguments.parameters).words() if arguments.parameters else ()
        return cls(
            (*in_file, *arguments.set),
            Scraping(arguments.scrape_interval, arguments.sample_interval),
            arguments.grafana_url.rstrip("/"),
            arguments.docs_url.rstrip("/"),
            arguments.speed,
        )


class _RaisingParser(ArgumentParser):
    def error(self, message: str) -> object:  # type: ignore[override]
        raise UserError(message)


def add_options(parser: ArgumentParser) -> None:
    """Adds the flags that change what is rendered."""
    add_parameters(parser)
    parser.add_argument(
        "--scrape-interval",
        type=positive_duration,
        default="15s",
        metavar="DURATION",
        help="how often Prometheus scrapes the exporter; no rule is evaluated more often "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--sample-interval",
        type=positive_duration,
        default="500ms",
        metavar="DURATION",
        help="how often the exporter samples (default: %(default)s)",
    )
    parser.add_argument(
        "--grafana-url", default=GRAFANA_URL, metavar="URL", help="for its links (default: %(default)s)"
    )
    parser.add_argument(
        "--docs-url", default=DOCS_URL, metavar="URL", help="for links to the docs (default: %(default)s)"
    )
    parser.add_argument(
        "--speed",
        type=parse_speed,
        default=1.0,
        metavar="FACTOR",
        help="for `trainwatch demo --speed FACTOR`: divides all durations by it, the scrape interval too "
        "(default: 1)",
    )
