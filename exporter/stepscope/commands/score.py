"""`stepscope score`: how often the predictions of a folder's reports came true."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.common.console import Console
from stepscope.common.errors import UserError
from stepscope.common.words import NO_NUMBER, in_columns, percent, points
from stepscope.report.markdown_text import one_line
from stepscope.report.track_record import TENTHS, Outcome, Score, TrackRecord, read_record
from stepscope.runs.recording.files import RUNS

FORMAT = 1
NONE_YET = "no predictions with an outcome yet: compare a run with a later one"
HEADINGS = ("Prediction", "Outcomes", "Held", "Coverage", "Predicted", "Achieved", "Error", "Widened by")
EXAMPLES = """\
examples:
  stepscope score                            the predictions in stepscope-runs/
  stepscope score /scratch/runs              those of another folder of runs
  stepscope score --json | jq '.kinds[]'     for scripts

`stepscope compare BEFORE AFTER` records an outcome if a finding of BEFORE is gone in AFTER, or if AFTER made
a change that the report of BEFORE suggested.
Predicted and Achieved are means, in shares of the step time; Error is their difference. A prediction held if
the achieved saving is in its range. With 9 outcomes or more, a range that held too seldom becomes wider.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope score`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="RUNS_FOLDER", help=f"the folder of runs (default: {RUNS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts, with every outcome")


def run(arguments: Namespace) -> int:
    """Prints the score. Raises UserError if the folder or its record cannot be read."""
    folder = arguments.folder
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder}: is no directory; give a folder of runs, as stepscope-runs")
    record = read_record(folder or RUNS)
    if arguments.json:
        print(json.dumps(_as_json(record), indent=2, ensure_ascii=False, allow_nan=False))
    elif record.scores:
        Console(sys.stdout).write(*_lines(record))
    else:
        print(NONE_YET)
    return 0


def _lines(record: TrackRecord) -> Iterator[str]:
    return in_columns([HEADINGS, *map(_row, record.scores.values())], words=1)


def _row(score: Score) -> tuple[str, ...]:
    return (
        one_line(score.kind.replace("_", " ")),
        str(len(score.outcomes)),
        str(score.held),
        percent(100 * score.coverage),
        percent(100 * score.predicted),
        percent(100 * score.achieved),
        points(100 * score.error),
        points(100 * score.widening) if score.widening else NO_NUMBER,
    )


def _as_json(record: TrackRecord) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "nominal_coverage": TENTHS / 10,
        "kinds": [_score_as_json(score) for score in record.scores.values()],
    }


def _score_as_json(score: Score) -> dict[str, Any]:
    return {
        "kind": score.kind,
        "outcomes": [_outcome_as_json(outcome) for outcome in score.outcomes],
        "held": score.held,
        "coverage": score.coverage,
        "mean_predicted": score.predicted,
        "mean_achieved": score.achieved,
        "mean_error": score.error,
        "widening": score.widening,
    }


def _outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    return {key: value for key, value in asdict(outcome).items() if key != "kind"} | {"held": outcome.held}
