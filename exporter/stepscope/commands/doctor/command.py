"""`stepscope doctor`: checks what is measured on this node, and by a Prometheus."""

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from stepscope.commands.doctor.checks import Check, Node, of_node
from stepscope.commands.doctor.server import of_prometheus
from stepscope.common.console import Console
from stepscope.common.status import Status
from stepscope.exporter.ledgers.folder import add_ledger_dir

FORMAT = 1
EXAMPLES = """\
examples:
  stepscope doctor                                         what is measured on this node?
  stepscope doctor --prometheus http://localhost:9090      and are scraping, rules and intervals right?
  stepscope doctor --python /opt/conda/bin/python          do hooks load in the Python that trains?
  stepscope doctor --json | jq '.checks[] | select(.status == "found")'

Run it as the user of the exporter, or in its container. The exit status is 0 if nothing is broken, 1 if
something is (found, failed). Not enough data: that is not measured here, and nothing is broken.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope doctor`."""
    parser.epilog = EXAMPLES
    add_ledger_dir(parser)
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="the interpreter that trains (default: the one of this command)",
    )
    parser.add_argument(
        "--prometheus", metavar="URL", help="also check this Prometheus, such as http://localhost:9090"
    )
    for name, place in (("procfs", "/proc"), ("sysfs", "/sys")):
        parser.add_argument(
            f"--path.{name}",
            dest=name,
            type=Path,
            default=Path(place),
            metavar="DIR",
            help=f"where {place} of the host is (default: %(default)s)",
        )
    parser.add_argument(
        "--path.nvml-library",
        dest="nvml_library",
        type=Path,
        metavar="FILE",
        help="NVIDIA's libnvidia-ml.so.1 (default: the dynamic loader finds it)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(arguments: Namespace) -> int:
    """Prints the checks. Returns 1 if something is broken."""
    places = arguments.procfs, arguments.sysfs, arguments.nvml_library
    node = Node(*places, arguments.ledger_dir, arguments.python)
    checks = [*of_node(node), *(of_prometheus(arguments.prometheus) if arguments.prometheus else ())]
    if arguments.json:
        content = {"format": FORMAT, "checks": [asdict(check) for check in checks]}
        print(json.dumps(content, indent=2))
    else:
        _print(checks, Console(sys.stdout))
    return int(any(check.status in (Status.FOUND, Status.FAILED) for check in checks))


def _print(checks: list[Check], console: Console) -> None:
    for check in checks:
        words = console.wrapped(f"{check.status.icon} {check.status}: {check.name}: {check.found}", rest=4)
        first = words[0].removeprefix(f"{check.status.icon} {check.status}")
        console.write(console.state(check.status) + first, *words[1:])
        if check.fix:
            console.write(*console.wrapped(f"    fix: {check.fix}", rest=9))
