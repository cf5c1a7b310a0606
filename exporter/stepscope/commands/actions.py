"""`stepscope actions`: receives Alertmanager's notifications, and stops or profiles runs on allowed rules."""

import asyncio
import ipaddress
import logging
import re
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import Alert
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Policy
from stepscope.alertmanager.actions.profiling import Profiling
from stepscope.alertmanager.actions.receiver import LIMITS, Receiver
from stepscope.alertmanager.actions.stopping import Stopping
from stepscope.common.errors import UserError
from stepscope.exporter.ledgers.folder import add_ledger_dir
from stepscope.runs.prometheus.address import Access
from stepscope.web.log import add_log_level, log_to_stderr
from stepscope.web.serving import Serving, add_serving_flags

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "127.0.0.1:9871"
SHORTEST_TOKEN = 16

EXAMPLES = """\
examples:
  stepscope actions --stop-on TrainingStalled     dry run: print on stderr which runs would be stopped
  stepscope actions --stop-on TrainingStalled --act \\
      --token-file /etc/stepscope/token --audit-file /var/lib/stepscope/actions.log
                                                   send SIGTERM to the run's processes on this node
  sudo stepscope actions --profile-on Straggler --act \\
      --token-file /etc/stepscope/token --audit-file /var/lib/stepscope/actions.log
                                                   record some steps of the slow rank and of a median peer

Alertmanager posts to http://HOST:9871/alerts; docs/actions.md has its side of the configuration.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds every flag of `stepscope actions`."""
    parser.epilog = EXAMPLES
    acting = parser.add_argument_group("acting")
    acting.add_argument(
        "--stop-on",
        action="append",
        default=[],
        metavar="RULE",
        help="a rule on which a run may be stopped, may be repeated (default: none)",
    )
    acting.add_argument(
        "--stop-runs",
        action="append",
        default=[],
        metavar="PREFIX",
        help="stop only runs whose name begins with PREFIX, may be repeated (default: any run)",
    )
    acting.add_argument(
        "--prometheus",
        metavar="URL",
        help="stop a run only if its alert still fires in this server (default: only its ledgers are asked)",
    )
    acting.add_argument(
        "--profile-on",
        action="append",
        default=[],
        metavar="RULE",
        help="a rule on which the accused rank, or the slowest, and a median peer record a profile window, "
        "may be repeated (default: none); only root and the run's owner can ask",
    )
    acting.add_argument(
        "--act",
        action="store_true",
        help="send SIGTERM, and ask for windows (default: a dry run, which only writes the decisions)",
    )
    acting.add_argument(
        "--audit-file",
        type=Path,
        metavar="FILE",
        help="append one line of JSON per decision (default: write it to stderr)",
    )
    acting.add_argument(
        "--node",
        metavar="NAME",
        help="act on alerts with this `instance` (default: the host name)",
    )
    add_ledger_dir(acting)

    web = add_serving_flags(parser, DEFAULT_ADDRESS, LIMITS)
    web.add_argument(
        "--token-file", type=Path, metavar="FILE", help="a file with the bearer token that clients must send"
    )
    add_log_level(parser)


def run(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UserError before anything is started."""
    log_to_stderr(arguments.log_level)
    serving = Serving.of(vars(arguments), DEFAULT_ADDRESS)
    authentication = serving.config.authentication
    token = _read_token(arguments.token_file) if arguments.token_file else None
    guarded = token is not None or bool(authentication.users)
    _refuse_recklessness(arguments, guarded)
    with ExitStack() as stack:
        sockets = serving.bind(stack)
        if not guarded:
            _refuse_strangers(sockets)
        policy = Policy(
            node=arguments.node or socket.gethostname().partition(".")[0],
            rules=frozenset(arguments.stop_on),
            act=arguments.act,
            ledger_directory=arguments.ledger_dir,
            profiled=frozenset(arguments.profile_on),
            runs=tuple(arguments.stop_runs),
            why_not=_still_fires(arguments.prometheus),
        )
        audit, owners = Audit(arguments.audit_file), Owners(policy.ledger_directory)
        owners.watch()
        actions = [kind(policy, audit, owners) for kind in (Stopping, Profiling)]
        logger.info(
            "%s alerts on %s: %s",
            "acts on" if policy.act else "dry run, only writes decisions about",
            policy.node,
            ", ".join(sorted({*policy.rules, *policy.profiled})) or "none (no --stop-on or --profile-on)",
        )
        receiver = Receiver(actions, token, authentication)
        status = asyncio.run(serving.until_stopped(receiver.answer, sockets))
    logger.info("stopped")
    return status


def _still_fires(url: str | None) -> Callable[[Alert], str] | None:
    if url is None:
        return None
    from stepscope.alertmanager.actions.still_fires import StillFires  # the small image has no requests

    return StillFires(Access.of_flag("--prometheus", url)).why_not


def _refuse_recklessness(arguments: Namespace, guarded: bool) -> None:
    for flag, rules in (("--stop-on", arguments.stop_on), ("--profile-on", arguments.profile_on)):
        for rule in rules:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", rule):
                raise UserError(f"{flag} {rule}: not the name of a rule, such as TrainingStalled")
    if not arguments.act:
        return
    if not (arguments.stop_on or arguments.profile_on):
        raise UserError("--act without a rule: add --stop-on RULE or --profile-on RULE")
    if not guarded:  # every user of this machine reaches a loopback address
        raise UserError("--act without authentication: add --token-file FILE or --web.config.file FILE")
    if arguments.audit_file is None:  # earlier actions must be known after a restart
        raise UserError("--act without an audit: add --audit-file FILE")


def _refuse_strangers(sockets: Sequence[socket.socket]) -> None:
    for listening in sockets:
        host = str(listening.getsockname()[0]).partition("%")[0]
        if not ipaddress.ip_address(host).is_loopback:
            raise UserError(
                f"--web.listen-address: {host} can be reached from other machines: "
                "require a token with --token-file FILE, or listen on 127.0.0.1"
            )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise UserError(f"--token-file {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        token = ""
    if len(token) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise UserError(
            f"--token-file {path}: must be one word of at least {SHORTEST_TOKEN} ASCII characters; "
            "make one with `openssl rand -hex 32`"
        )
    return token
