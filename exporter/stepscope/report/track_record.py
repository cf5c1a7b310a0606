"""The record of predictions: what earlier reports predicted, and what a later run achieved.

`stepscope compare` keeps it in the folder of runs, one outcome per line. All amounts are shares of the time
in training steps for the same work: 0.4 is a saving of 40 %. docs/score.md describes it.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.common.shared_files import read_file
from stepscope.common.whole_file import write_whole
from stepscope.report.index_page import is_runs_folder
from stepscope.runs.malformed import finite, naming

RECORD = "predictions.jsonl"
MOST_BYTES = 64 << 20
FORMAT = 1
TENTHS = 9  # of all predictions, whose saving should be in their range: the nominal coverage


@dataclass(frozen=True)
class Outcome:
    """A predicted saving and the one that was achieved. Times are since the epoch."""

    kind: str  # a rule, for the time that its finding costs; or the change that right-sizing suggests
    a: str  # the run whose report predicted it
    b: str  # the run in which it came true, or did not
    a_start: float
    b_start: float
    predicted: float
    low: float
    high: float
    widened: float  # how much of `low` and `high` is due to earlier errors
    achieved: float
    noise: float  # of `achieved`: half of its 95 % interval

    @property
    def error(self) -> float:
        return self.achieved - self.predicted

    @property
    def miss(self) -> float:
        """Returns how far the saving is outside its range, beyond the noise of the runs; at most 0 inside."""
        return max(self.low - self.achieved, self.achieved - self.high) - self.noise

    @property
    def held(self) -> bool:
        return self.miss <= 0


@dataclass(frozen=True)
class Score:
    """The outcomes of one kind of prediction; at least one."""

    kind: str
    outcomes: tuple[Outcome, ...]

    @property
    def held(self) -> int:
        return sum(outcome.held for outcome in self.outcomes)

    @property
    def coverage(self) -> float:
        """Returns the share of predictions that held, 0..1."""
        return self.held / len(self.outcomes)

    @property
    def predicted(self) -> float:
        return _mean(outcome.predicted for outcome in self.outcomes)

    @property
    def achieved(self) -> float:
        return _mean(outcome.achieved for outcome in self.outcomes)

    @property
    def error(self) -> float:
        return _mean(outcome.error for outcome in self.outcomes)

    @property
    def widening(self) -> float:
        """Returns how much wider the range of the next prediction must be, at each end; never negative.

        With n outcomes it is the ceil(0.9 (n + 1))-th smallest miss of the range before any widening. The
        next saving is then in its range with a probability of 90 % or more, if it is drawn like the earlier
        ones. Fewer than 9 outcomes say nothing about 90 %: then it is 0.

        Source: Romano, Patterson and Candès, "Conformalized quantile regression" (2019), theorem 1.
        """
        misses = sorted(outcome.miss + outcome.widened for outcome in self.outcomes)
        rank = -(-TENTHS * (len(misses) + 1) // 10)
        return max(0.0, misses[rank - 1]) if rank <= len(misses) else 0.0


@dataclass(frozen=True)
class TrackRecord:
    """All outcomes that a folder of runs has recorded."""

    recorded: tuple[Outcome, ...] = ()

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Returns the score by kind, in alphabetical order."""
        counted = _once_per_run(self.recorded)
        kinds = sorted({outcome.kind for outcome in counted})
        return {
            kind: Score(kind, tuple(outcome for outcome in counted if outcome.kind == kind)) for kind in kinds
        }

    @property
    def widening(self) -> dict[str, float]:
        """Returns by kind how much wider the range of the next prediction must be, at each end."""
        return {kind: score.widening for kind, score in self.scores.items()}


NO_RECORD = TrackRecord()


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


def _once_per_run(recorded: Iterable[Outcome]) -> list[Outcome]:
    """Returns the outcomes that count: of each kind, a run counts once as A and once as B.

    One fix compared with five earlier runs is one outcome. A counts with the first run after it.
    """
    counted: list[Outcome] = []
    seen: set[tuple[str, str, str]] = set()
    for outcome in sorted(set(recorded), key=lambda each: (each.b_start, -each.a_start, *_values(each))):
        runs = {(outcome.kind, "a", outcome.a), (outcome.kind, "b", outcome.b)}
        if not runs & seen:
            counted.append(outcome)
            seen |= runs
    return counted


def read_record(folder: Path) -> TrackRecord:
    """Reads the record of a folder of runs; empty without one. Raises UserError if it cannot be read."""
    path = folder / RECORD
    try:
        text = read_file(path, MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return NO_RECORD
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; make it readable, or remove it") from error
    lines = enumerate(text.splitlines(), 1)
    return TrackRecord(tuple(_outcome(line, f"{path}, line {at}") for at, line in lines if line.strip()))


def record_of(directory: Path, start: float | None, say: Callable[[str], None] | None = None) -> TrackRecord:
    """Returns what was recorded, in the folder that a run is in, of runs that began before it.

    So a report that is written again predicts the same. A record that cannot be read is said, and empty.
    """
    folder = directory.absolute().parent
    try:
        record = read_record(folder) if is_runs_folder(folder) else NO_RECORD
        return TrackRecord(tuple(each for each in record.recorded if start is None or each.b_start < start))
    except UserError as error:
        (say or _on_stderr)(f"{error}; until then, predictions are not compared with earlier ones")
        return NO_RECORD


def add_outcomes(folder: Path, a: str, b: str, outcomes: list[Outcome]) -> list[Outcome]:
    """Replaces what was recorded about this pair of runs, and returns the outcomes that are new.

    Raises UserError if the record cannot be read, and OSError if it cannot be written; it is then unchanged.
    """
    recorded = read_record(folder).recorded
    others = [outcome for outcome in recorded if (outcome.a, outcome.b) != (a, b)]
    every = sorted({*others, *outcomes}, key=lambda each: (each.b_start, each.a_start, *_values(each)))
    if set(every) != set(recorded):
        write_whole(folder / RECORD, "".join(f"{_as_line(outcome)}\n" for outcome in every))
    return [outcome for outcome in outcomes if outcome not in recorded]


def _values(outcome: Outcome) -> tuple[str | float, ...]:
    return tuple(asdict(outcome).values())


def _as_line(outcome: Outcome) -> str:
    return json.dumps({"format": FORMAT, **asdict(outcome)}, ensure_ascii=False, allow_nan=False)


def _outcome(line: str, place: str) -> Outcome:
    with naming(place, "the outcome of a prediction", "remove the line"):
        content: dict[str, Any] = json.loads(line)
        if content["format"] != FORMAT:
            raise UserError(f"{place}: format {content['format']} is of a newer Stepscope; update this one")
        values: dict[str, Any] = {
            field.name: (finite if field.type is float else str)(content[field.name])
            for field in fields(Outcome)
        }
        outcome = Outcome(**values)
        if outcome.low > outcome.high or min(outcome.widened, outcome.noise) < 0:
            raise ValueError("its range is not in order")
    return outcome


def _on_stderr(text: str) -> None:
    print(f"stepscope: {text}", file=sys.stderr)
