"""Plants faults in simulated runs, and scores what Stepscope says of them."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from random import Random

from stepscope.prometheus.crosscheck.server import Series

from trials.fault_matrix.alerts import alerts_by_instance, series_read
from trials.fault_matrix.case import LONGEST_INTERVAL, Case, cases
from trials.fault_matrix.faults import SEVERITIES
from trials.fault_matrix.page import PAGE, printed, write_page
from trials.fault_matrix.play import Seen, play
from trials.fault_matrix.score import Result
from trials.fault_matrix.store import FOLDER, read, write
from trials.fault_matrix.training import Truth

REPORTED = 1000  # the first seed that is only reported: 0 to 99 are for tuning
BATCH = 8  # runs in one Prometheus: results are kept after each

EXAMPLES = """\
examples:
  python -m trials.fault_matrix                      each fault at 20 %, and healthy runs (`make truth`)
  python -m trials.fault_matrix --full               in all severities (`make truth FULL=1`)
  python -m trials.fault_matrix --seed 0 --only ECC  one fault, with a seed for tuning
  python -m trials.fault_matrix --full --save FILE   keep results there, and repeat none that it has
  python -m trials.fault_matrix --page               write trials/README.md from the stored results

Seeds 0 to 99 are for tuning. Those from 1000 on are only reported.
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trials.fault_matrix",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--full", action="store_true", help="all severities, and as many healthy runs")
    parser.add_argument("--seed", type=int, action="append", help=f"may be repeated (default: {REPORTED})")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="cases with TEXT in their name"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="keep results there, and repeat none that it has"
    )
    parser.add_argument(
        "--page", action="store_true", help=f"only write trials/{PAGE.name} from {FOLDER.name}/"
    )
    arguments = parser.parse_args(words)
    if arguments.page:
        write_page()
        return 0
    chosen = [
        case
        for case in cases(arguments.seed or [REPORTED], SEVERITIES if arguments.full else SEVERITIES[1:2])
        if not arguments.only or any(text in case.name for text in arguments.only)
    ]
    if not chosen:
        parser.error(f"--only {' '.join(arguments.only)}: no case has this name")
    results = list(read(arguments.save).results) if arguments.save and arguments.save.exists() else []
    known = {result.case for result in results}
    for batch in try_all([case for case in chosen if case not in known], arguments.jobs):
        results += batch
        if arguments.save:
            write(arguments.save, results)
    print("\n".join(printed(results)))
    return 0


def try_all(chosen: Sequence[Case], jobs: int) -> Iterator[list[Result]]:
    """Yields the results of some cases at a time, and prints progress."""
    begin = time.monotonic()
    ordered = list(chosen)
    Random(0).shuffle(ordered)  # an interrupted matrix has some of each
    with ProcessPoolExecutor(jobs) as pool:
        for first in range(0, len(ordered), BATCH):
            batch = ordered[first : first + BATCH]
            results = _try_batch(batch, pool)
            for result in results:
                _say(f"{result.case.name}: {result.outcome}")
            _say(f"{first + len(batch)} of {len(ordered)}, {(time.monotonic() - begin) / 60:.0f} min")
            yield results


def _try_batch(batch: Sequence[Case], pool: ProcessPoolExecutor) -> list[Result]:
    truths = [case.training().truth() for case in batch]  # before any run starts
    names = [f"run-{number}" for number in range(len(batch))]
    seen: list[Seen] = []

    def series() -> Iterator[list[Series]]:
        for said, scraped in pool.map(play, batch, names, repeat(series_read())):
            seen.append(said)
            _say(f"played {len(seen)} of {len(batch)}: {batch[len(seen) - 1].name}")
            yield scraped

    longest = max(case.training().length for case in batch)
    alerts = alerts_by_instance(series(), longest + LONGEST_INTERVAL)
    return [
        _result(case, truth, replace(said, alerts=alerts.get(name, [])))
        for case, truth, said, name in zip(batch, truths, seen, names, strict=True)
    ]


def _result(case: Case, truth: Truth, seen: Seen) -> Result:
    """Returns the result, with alerts by the time since the run's start, and without those after its end."""
    alerts = [replace(alert, begin=alert.begin - case.phase) for alert in seen.alerts]
    length = case.training().length
    return Result(case, truth, replace(seen, alerts=[alert for alert in alerts if alert.begin <= length]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
