"""`stepscope rules`: writes Prometheus rule files, and checks that they are up to date."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from stepscope.common.rendered import add_actions, add_out, report, write
from stepscope.prometheus.rules.files import render, stale
from stepscope.prometheus.rules.options import Options, add_options

DIRECTORY = Path("rules")
EXAMPLES = """\
examples:
  stepscope rules render --out /etc/prometheus/rules
  stepscope rules render --scrape-interval 30s --set CPUBottleneck.cpu_threshold=80 --out rules/
  stepscope rules check                      exit status 1 if a file in rules/ was edited or is out of date
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope rules`."""
    parser.epilog = EXAMPLES
    rendering = add_actions(parser, "rule files", "write the rule files", DIRECTORY)
    add_options(rendering)
    add_out(rendering, DIRECTORY)


def run(arguments: Namespace) -> int:
    """Renders or checks. Raises UserError for a bad flag or directory."""
    if arguments.action == "check":
        return report(stale(arguments.directory))
    return write(render(Options.from_flags(vars(arguments))), arguments.out)
