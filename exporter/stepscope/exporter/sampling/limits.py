"""The limits of the exporter, and what they leave out: no amount of runs or devices may end it.

A collector keeps a `Choice` for each of its limits, and reports every time what it leaves out:

    live = {"train-1": True, "train-2": False}  # in the order of their start
    kept, left_out = self._choice.of(live, self.reached.limits.runs)
    self.reached.report("runs", dict.fromkeys(left_out, 1))
"""

import logging
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from hashlib import sha256
from itertools import islice
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypeVar

from stepscope.exporter.sampling.families import FamilyTable, LabelValues

logger = logging.getLogger(__name__)

NAMED = 20  # runs that one limit's metric names; the rest is one number
LOG_SECONDS = 60.0  # between two lines about the same limit
HASH_CHARACTERS = 8
CUT = "…"
SURROGATES = re.compile("[\ud800-\udfff]")  # of bytes that are not UTF-8
METRICS = """
counter stepscope_exporter_limit_reached_total{limit}
    Runs, ledgers, ranks, devices, series and labels that a limit has left out or cut.
gauge stepscope_exporter_left_out{limit,run,collector}
    How much a limit leaves out now, by the run or the collector that it belongs to.
"""

Name = TypeVar("Name")


def _limit(default: int, help: str, least: int = 1) -> Any:
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True)
class Limits:
    """How many of each the exporter serves at most. Every field is a flag: `series` is `--limit.series`."""

    series: int = _limit(20_000, "series per scrape; node first, then live runs, then ended runs")
    runs: int = _limit(100, "runs per node")
    ledgers: int = _limit(1_000, "ledgers open at once")
    ranks: int = _limit(256, "ranks per run on this node")
    devices: int = _limit(512, "devices per collector, such as disks or network interfaces")
    label_length: int = _limit(
        200,
        "bytes of a label's value; a longer one is cut and ends in a hash",
        least=16,  # the hash and some letters
    )

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> "Limits":
        return cls(**{each.name: flags[_destination(each)] for each in fields(cls)})


def add_limit_flags(parser: ArgumentParser) -> None:
    """Adds one flag per limit."""
    group = parser.add_argument_group(
        "limits", "what is above a limit is left out, counted, and named in the log and in the metrics"
    )
    for each in fields(Limits):
        group.add_argument(
            f"--limit.{_shown(each.name)}",
            dest=_destination(each),
            type=partial(_whole_number, least=each.metadata["least"]),
            default=each.default,
            metavar="N",
            help=f"{each.metadata['help']} (default: %(default)s)",
        )


def _shown(limit: str) -> str:
    return limit.replace("_", "-")


def _destination(limit: Field[Any]) -> str:
    return f"limit_{limit.name}"


def _whole_number(text: str, least: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise ArgumentTypeError(f"{text!r} must be a whole number from {least} to 999999999")
    return int(text)


class Choice(Generic[Name]):
    """Keeps names up to a limit, and the same ones from call to call: the choice does not flap."""

    def __init__(self) -> None:
        self._kept: Collection[Name] = ()

    def of(
        self,
        live: Mapping[Name, bool],
        limit: int,
        sizes: Mapping[Name, int] | None = None,
        owners: Mapping[Name, int] | None = None,
    ) -> tuple[list[Name], list[Name]]:
        """Returns the names kept and those left out; `sizes` says how much of the limit each one needs.

        Live names go first, then those kept before, then those given first. `owners` take turns, so that no
        user's runs crowd out another's. A name that is too large for the room that is left costs itself, and
        not those after it.
        """
        if (sum(sizes[name] for name in live) if sizes else len(live)) <= limit:
            self._kept = live.keys()
            return list(live), []
        before = self._kept
        kept: list[Name] = []
        left_out: list[Name] = []
        order = sorted(live, key=lambda name: (not live[name], name not in before))
        turns: Counter[tuple[bool, int | None]] = Counter()
        turn: dict[Name, int] = {}
        for name in order:
            owner = (live[name], owners.get(name) if owners else None)
            turn[name] = turns[owner]
            turns[owner] += 1
        for name in sorted(order, key=lambda name: (not live[name], turn[name])):
            size = sizes[name] if sizes else 1
            (kept if size <= limit else left_out).append(name)
            limit -= size if size <= limit else 0
        self._kept = set(kept)
        return kept, left_out


class ReachedLimits:
    """Counts, names and logs what the limits leave out."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._reached, self._left_out = self.families = tuple(FamilyTable(METRICS).values())
        self._counts = {each.name: 0 for each in fields(Limits)}
        self._now: dict[tuple[str, str], Mapping[str, int]] = {}  # by limit and collector: a count per run
        self._logged: dict[tuple[str, str], float] = {}
        self._unlogged: set[tuple[str, str]] = set()  # with runs that no line has named
        self._lock = Lock()  # collectors report in their thread, a scrape in another
        self._publish()

    def report(self, limit: str, left_out: Mapping[str, int], collector: str = "") -> None:
        """Replaces what `limit` leaves out now, as counts per run. Devices have a collector instead."""
        key = (limit, collector)
        with self._lock:
            before = self._now.get(key, {})
            if left_out != before:
                self._now[key] = left_out
                self._counts[limit] += sum(max(0, n - before.get(run, 0)) for run, n in left_out.items())
                self._publish()
                if left_out.keys() - before.keys():
                    self._unlogged.add(key)
            if not left_out or key not in self._unlogged or not self._may_log(key):
                return
            self._unlogged.discard(key)
        logger.warning("%s", _sentence(limit, getattr(self.limits, limit), left_out, collector))

    def shortened(self, label: str) -> str:
        """Returns a label's value within the limit."""
        shown = cut(label, self.limits.label_length)
        if shown == label:
            return label
        with self._lock:
            self._counts["label_length"] += 1
            self._publish()
            log = self._may_log(("label_length", ""))
        if log:
            logger.warning("a label that is too long, or not UTF-8, is shown as %s", shown)
        return shown

    def _may_log(self, key: tuple[str, str]) -> bool:
        now = self._clock()
        if now - self._logged.get(key, -inf) < LOG_SECONDS:
            return False
        self._logged[key] = now
        return True

    def _publish(self) -> None:
        self._reached.publish({(_shown(limit),): count for limit, count in self._counts.items()})
        samples: dict[LabelValues, float] = {}
        for (name, collector), left_out in self._now.items():
            limit = _shown(name)
            for run, count in islice(left_out.items(), NAMED):
                samples[limit, run, collector] = count
            if rest := sum(islice(left_out.values(), NAMED, None)):
                samples[limit, "", collector] = samples.get((limit, "", collector), 0) + rest
        self._left_out.publish(samples)


def _sentence(limit: str, most: int, left_out: Mapping[str, int], collector: str) -> str:
    runs = [run for run in islice(left_out, 3) if run] or [
        f"collector {collector}" if collector else "the node"
    ]
    more = [f"{len(left_out) - len(runs)} more runs"] if len(left_out) > len(runs) else []
    of, total = ", ".join(runs + more), sum(left_out.values())
    return f"--limit.{_shown(limit)} {most} is reached: {total} left out ({of}); raise the limit"


def cut(text: str, most: int) -> str:
    """Returns a label's value of at most `most` bytes, in valid UTF-8.

    A value that is too long, or not UTF-8, ends in a hash of the whole: two values never become one.
    """
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= most and not SURROGATES.search(text):
        return text
    ending = CUT + sha256(encoded).hexdigest()[:HASH_CHARACTERS]
    readable = text.encode("utf-8", "replace")[: most - len(ending.encode())]
    return readable.decode("utf-8", "ignore") + ending
