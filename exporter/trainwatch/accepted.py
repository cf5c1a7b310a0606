"""Accepted findings: which rule may fire for which run, why, and until when. They are in one YAML file.

- rule: CPUBottleneck
  run: resnet              # a run, or the name of runs
  reason: The new loader comes in January
  until: 2026-12-31        # with this day, in UTC; or a time such as 2026-12-31T18:00:00+01:00
  by: alice                # optional
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from trainwatch.errors import UserError, did_you_mean
from trainwatch.whole_file import write_whole

NAME = "accepted.yml"  # in the folder of runs
HEADER = "# Accepted findings: `trainwatch accept --help`\n"
REQUIRED = ("rule", "run", "reason", "until")
FIELDS = (*REQUIRED, "by")
LONGEST = 200  # characters of a reason, which becomes a label in Prometheus
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_WHEN = "write a date such as 2026-12-31, or a time with its zone such as 2026-12-31T18:00:00Z"


@dataclass(frozen=True)
class Acceptance:
    """One accepted finding. The rule is measured and shown as before, but does not decide the verdict."""

    rule: str
    run: str  # a run, or the name of runs
    reason: str
    until: str  # as it was written
    by: str = ""

    @property
    def end(self) -> float:
        """Returns when it ends, in seconds since the epoch: after the whole day, if `until` is a date."""
        return _end(self.until)

    @property
    def words(self) -> str:
        """Writes "accepted until 2026-12-31: the new loader comes in January (by alice)"."""
        return f"accepted until {self.until}: {self.reason}{f' (by {self.by})' if self.by else ''}"

    def as_json(self) -> dict[str, str | None]:
        return {"reason": self.reason, "until": self.until, "by": self.by or None}


class AcceptedFile:
    """A file of accepted findings, which is read again when it has changed."""

    def __init__(self, path: Path, rules: Collection[str] = ()) -> None:
        self.path = path
        self._rules = rules
        self._seen: tuple[int, ...] | None = None
        self._entries: Sequence[Acceptance] = ()

    def entries(self) -> Sequence[Acceptance]:
        """Returns the entries now, none while there is no file. Raises UserError as `read_accepted` does."""
        try:
            status = self.path.stat()
        except OSError:
            self._seen = None
            return ()
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self._seen = None
            self._entries = read_accepted(self.path, self._rules)
            self._seen = seen
        return self._entries


def read_accepted(path: Path, rules: Collection[str] = ()) -> list[Acceptance]:
    """Returns the entries of a file. With `rules`, each entry must name one of them.

    Raises UserError if the file cannot be read, or an entry is not complete.
    """
    try:
        # Without types: YAML would turn dates into other objects, and a run's name 7 into a number.
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `trainwatch accept` writes it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: is not YAML; write a list of entries, as in `- rule: ...`") from None
    if content in (None, ""):
        return []
    if not isinstance(content, list):
        raise UserError(f"{path}: is not a list; begin each entry with `- rule: ...`")
    return [checked(entry, f"{path}, entry {number}", rules) for number, entry in enumerate(content, 1)]


def checked(entry: Any, where: str, rules: Collection[str] = ()) -> Acceptance:
    """Returns an entry from its fields. Raises UserError with the place of the entry."""
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise UserError(f"{where}: write `field: text` lines with the fields {', '.join(FIELDS)}")
    for name in entry:
        if name not in FIELDS:
            raise UserError(f"{where}: has no field {name!r}; {did_you_mean(name, FIELDS, _fields())}")
    values = {name: " ".join(value.split()) for name, value in entry.items()}
    for name in REQUIRED:
        if not values.get(name):
            raise UserError(f"{where}: {name} is missing; {_fields()}")
    if not all(value.isprintable() for value in values.values()):
        raise UserError(f"{where}: must have only printable characters")
    if len(values["reason"]) > LONGEST:
        raise UserError(f"{where}: reason has more than {LONGEST} characters; link to the whole story")
    if rules and values["rule"] not in rules:
        hint = did_you_mean(values["rule"], rules, f"the rules are {', '.join(rules)}")
        raise UserError(f"{where}: there is no rule {values['rule']!r}; {hint}")
    try:
        _end(values["until"])
    except (ValueError, OverflowError):
        raise UserError(f"{where}: until {values['until']!r} is not a date or time; {_WHEN}") from None
    return Acceptance(**values)


def write_accepted(path: Path, entries: Iterable[Acceptance]) -> None:
    """Replaces the file. Raises UserError if it cannot be written."""
    values = [{name: value for name, value in asdict(entry).items() if value} for entry in entries]
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=LONGEST) if values else "[]\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, HEADER + text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file with --file") from error


def of_run(entries: Iterable[Acceptance], names: Collection[str]) -> dict[str, Acceptance]:
    """Returns the entry of each rule that is about this run or its name: the one that ends last."""
    ours = [entry for entry in entries if entry.run in names]
    return {entry.rule: entry for entry in sorted(ours, key=lambda entry: entry.end)}


def _end(until: str) -> float:
    """Raises ValueError or OverflowError if it is neither a date nor a time with its zone."""
    if _DATE.fullmatch(until):
        day = datetime.fromisoformat(until).replace(tzinfo=UTC)
        return (day + timedelta(days=1)).timestamp()
    moment = datetime.fromisoformat(until.upper())  # Python reads no z
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    return moment.timestamp()


def _fields() -> str:
    return f"an entry has {', '.join(REQUIRED)}, and if you like, by"
