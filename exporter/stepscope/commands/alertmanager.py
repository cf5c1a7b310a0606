"""`stepscope alertmanager`: writes Alertmanager's configuration and templates, and checks them."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from stepscope.common.rendered import add_actions, add_out, differences, report, write

DIRECTORY = Path("alertmanager")
# In the installed package, and in a checkout.
SOURCES = (
    Path(__file__).parents[1] / "alertmanager" / "files",
    Path(__file__).parents[3] / "alertmanager",
)
EXAMPLES = """\
examples:
  stepscope alertmanager export --out /etc/alertmanager
  stepscope alertmanager check /etc/alertmanager     exit status 1 if a file was edited or is out of date

The configuration notifies nobody until you choose a receiver in it: docs/notifications.md.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope alertmanager`."""
    parser.epilog = EXAMPLES
    add_out(add_actions(parser, "files", "write configuration and templates", DIRECTORY), DIRECTORY)


def run(arguments: Namespace) -> int:
    """Writes or checks. Raises UserError for a bad directory."""
    if arguments.action == "check":
        return report(differences(files(), arguments.directory, "stepscope alertmanager render"))
    return write(files(), arguments.out)


def files() -> dict[str, str]:
    """Returns texts by file name."""
    source = next(folder for folder in SOURCES if folder.is_dir())
    found = (source / "alertmanager.yml", *sorted(source.glob("templates/*.tmpl")))
    return {str(file.relative_to(source)): file.read_text(encoding="utf-8") for file in found}
