"""Performs trials, prints their table, and can write it into trials/README.md."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.common.errors import describe

from benchmarks.page import RESULTS, markdown, read_table, write_table
from trials import Attempt, NotPossibleError, Trial, all_trials

PAGE = RESULTS
NAME = "promises"  # of the table in the page
HEAD = ("promise", "trial", "count", "seed", "seen")

EXAMPLES = """\
examples:
  python -m trials                              every trial in its long form
  python -m trials --short                      every trial in its short form, which takes seconds
  python -m trials killed_trainer --count 1000  one trial, with more kills
  python -m trials killed_trainer --seed 7      the same, at other random points
  python -m trials --markdown                   also write the table into trials/README.md

The exit status is 1 if a promise was broken. The trials:
"""


@dataclass(frozen=True)
class Result:
    """A performed trial, as its row of the table."""

    row: tuple[str, str, str, str, str]
    holds: bool


def main(words: Sequence[str] | None = None) -> int:
    trials = all_trials()
    width = max(map(len, trials))
    parser = argparse.ArgumentParser(
        prog="python -m trials",
        description=__doc__,
        epilog=EXAMPLES + "\n".join(f"  {name:{width}}  {each.promise}" for name, each in trials.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these trials (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: %(default)s)")
    parser.add_argument("--count", type=int, help="how many kills, files, seconds ... (default: the trial's)")
    parser.add_argument("--short", action="store_true", help="take the count of the short form")
    parser.add_argument(
        "--markdown", action="store_true", help=f"also write the rows into {PAGE.parent.name}/{PAGE.name}"
    )
    arguments = parser.parse_args(words)
    unknown = set(arguments.names) - set(trials)
    if unknown:
        parser.error(f"no such trial: {', '.join(sorted(unknown))}; there are {', '.join(trials)}")
    results = []
    for name in arguments.names or trials:
        each = trials[name]
        results.append(
            perform(each, arguments.count or (each.short if arguments.short else each.count), arguments.seed)
        )
    print("\n".join(markdown(HEAD, [result.row for result in results])))
    if arguments.markdown:
        write_page(PAGE, [result.row for result in results])
    return 0 if all(result.holds for result in results) else 1


def perform(trial: Trial, count: int, seed: int) -> Result:
    """Performs one trial. An exception is a broken promise, and costs no other trial its row."""
    print(f"{trial.name}: {count:,} {trial.of}, seed {seed} ...", file=sys.stderr)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stepscope-trial-", ignore_cleanup_errors=True) as folder:
        try:
            seen, holds = trial.perform(Attempt(trial, count, seed, Path(folder))), True
        except NotPossibleError as error:
            seen, holds = f"NOT TRIED: {error}", False
        except Exception as error:  # noqa: BLE001 - whatever it is, the promise was not kept
            words = str(error) if isinstance(error, AssertionError) else describe(error)
            seen, holds = f"BROKEN: {' '.join(words.split())}", False
    print(f"{trial.name}: {seen} ({time.monotonic() - begin:.0f} s)", file=sys.stderr)
    return Result((trial.promise, f"`{trial.name}`", f"{count:,} {trial.of}", str(seed), seen), holds)


def write_page(page: Path, rows: Sequence[Sequence[str]]) -> None:
    """Writes the rows into the page's table. Rows of trials that were not performed stay."""
    known = {row[1]: row for row in [*read_table(page, NAME), *rows]}
    order = [f"`{name}`" for name in all_trials()]
    table = [known[name] for name in order if name in known]
    write_table(page, "make trials", markdown(HEAD, table), name=NAME)


if __name__ == "__main__":
    sys.exit(main())
