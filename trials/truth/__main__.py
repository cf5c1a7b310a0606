"""Plants faults in training scripts that know nothing of Stepscope, and counts what reports say of them."""

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from math import inf
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from benchmarks.page import RESULTS, markdown, write_table
from trials.truth.judge import HEAD, Outcome, holds, judge, table
from trials.truth.observed import Observer, Seen, Stepscope, Tool, slow_network_is_possible
from trials.truth.plan import LIGHTNING, OTHERS, TRAINER, Case, full, short, some
from trials.truth.rival import PACKAGE, Rival

PAGE = RESULTS
NEEDS = {TRAINER: ("transformers", "accelerate"), LIGHTNING: ("lightning",)}  # packages, by script

EXAMPLES = """\
examples:
  python -m trials.truth                         each fault once, in some minutes (`make truth`)
  python -m trials.truth --full                  all ranks, 100 healthy runs (`make truth FULL=1`)
  python -m trials.truth --only "DDP, backward"  only cases whose name has this
  python -m trials.truth --full --list           print the names of the cases, and run none
  python -m trials.truth --full --results FILE   continue after an interruption, with what FILE holds already
  python -m trials.truth --full --minutes 40     as many of all cases as start in this time
  python -m trials.truth --full --markdown       also write the table into trials/README.md

The exit status is 1 if a rank was accused wrongly, or fewer than 95 % of the faults were named rightly.
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trials.truth",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--full", action="store_true", help="all cases (default: each fault once)")
    choice.add_argument("--short", action="store_true", help="four faults and two healthy runs")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (default: %(default)s)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="cases with TEXT in their name"
    )
    parser.add_argument("--list", action="store_true", help="print the cases, and run none")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=inf, help="start no run after this time (default: run all cases)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results there, and repeat none that it has"
    )
    parser.add_argument(
        "--rival",
        action="store_true",
        help=f"try {PACKAGE} in place of Stepscope, in a temporary environment; the exit status is 0",
    )
    parser.add_argument(
        "--markdown", action="store_true", help=f"also write the table into trials/{PAGE.name}"
    )
    arguments = parser.parse_args(words)
    everything = list((full if arguments.full else short if arguments.short else some)(arguments.seed))
    cases = [
        case for case in everything if not arguments.only or any(text in case.name for text in arguments.only)
    ]
    if not cases:
        parser.error(f"--only {' '.join(arguments.only)}: no case has this name; --list prints them")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    if find_spec("torch") is None:
        parser.error("PyTorch is missing: pip install '.[pytorch]'")
    cases = _possible(cases)
    if not cases:
        parser.error("none of these cases can be tried on this machine")
    if not arguments.rival:
        results = _tried(cases, everything, Stepscope(), arguments)
        return 0 if (len(results) == len(cases) or arguments.minutes < inf) and holds(results) else 1
    with TemporaryDirectory(prefix="stepscope-rival-") as folder:
        try:
            rival = Rival(Path(folder))
        except subprocess.CalledProcessError:
            _say(f"no rival: {PACKAGE} cannot be installed here")
            return 0
        unwrapped, all_unwrapped = (
            [case for case in chosen if case.kind != "slow network" and case.script not in OTHERS]
            for chosen in (cases, everything)
        )
        _tried(unwrapped, all_unwrapped, rival, arguments)
    return 0


def _possible(cases: Sequence[Case]) -> list[Case]:
    """Returns the cases that can be tried on this machine, and prints why others cannot."""
    possible = list(cases)
    for script, packages in NEEDS.items():
        if any(case.script == script for case in cases) and not all(map(find_spec, packages)):
            _say(f"no {script}: pip install {' '.join(packages)}")
            possible = [case for case in possible if case.script != script]
    if any(case.kind == "slow network" for case in cases) and not slow_network_is_possible():
        _say("no slow network: this machine does not permit `tc` in a network namespace (it needs root)")
        possible = [case for case in possible if case.kind != "slow network"]
    if any(case.alerts for case in cases) and which("prometheus") is None:
        _say("no long runs: their alerts need `prometheus` on the PATH")
        possible = [case for case in possible if not case.alerts]
    return possible


def _tried(
    cases: Sequence[Case], everything: Sequence[Case], tool: Tool, arguments: argparse.Namespace
) -> list[tuple[Case, Outcome]]:
    """Tries the cases, and prints or writes their tables. `everything` would be tried without --only."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results: list[tuple[Case, Outcome]] = []
    begin = time.monotonic()
    complete = False
    try:
        for case, seen in observe(cases, tool, arguments.jobs, arguments.results, arguments.minutes):
            results.append((case, judge(case, seen)))
        complete = True
    except KeyboardInterrupt:
        _say("interrupted: the table has only the runs that ended")
    lines = markdown(HEAD, [row.cells for row in table(results)])
    print("\n".join(lines))
    _say(f"{len(results)} runs, {(time.monotonic() - begin) / 60:.0f} min")
    if arguments.markdown and complete:
        write_tables(results, everything, arguments)
    return results


def write_tables(
    results: Sequence[tuple[Case, Outcome]], everything: Sequence[Case], arguments: argparse.Namespace
) -> None:
    """Writes each table of the page of which all cases were tried, or all that --minutes left time for."""
    flags = [f"--{flag}" for flag in ("full", "short", "rival") if getattr(arguments, flag)]
    flags += [f'--only "{text}"' for text in arguments.only]
    if arguments.minutes < inf:
        flags.append(f"--minutes {arguments.minutes:g}")
    command = " ".join(["python -m trials.truth", *flags, f"--seed {arguments.seed}"])
    for name in ("rival",) if arguments.rival else ("truth", "others"):
        needed = {case.name for case in everything if (case.script in OTHERS) == (name == "others")}
        of_table = [row for row in results if row[0].name in needed]
        missing = needed - {case.name for case, _ in of_table}
        if of_table and (not missing or arguments.minutes < inf):
            write_table(PAGE, command, markdown(HEAD, [row.cells for row in table(of_table)]), name=name)
        elif of_table:
            _say(f"trials/{PAGE.name} keeps its table {name!r}: {len(missing)} of its cases were not tried")


def observe(
    cases: Sequence[Case], tool: Tool, jobs: int = 1, file: Path | None = None, minutes: float = inf
) -> Iterator[tuple[Case, Seen]]:
    """Yields what was seen of each case, and prints progress. Results in the file are not repeated.

    Starts no run after `minutes`.
    """
    known = {}
    if file is not None and file.exists():
        known = {seen.case: seen for seen in map(Seen.from_json, file.read_text().splitlines())}
    for case in cases:
        if case.name in known:
            yield case, known[case.name]
    waiting = [case for case in cases if case.name not in known]
    outcomes: Counter[str] = Counter()
    begin = time.monotonic()
    observer = Observer(tool, until=begin + 60 * minutes)
    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(observer.observe, case): case for case in waiting}
        for done, future in enumerate(as_completed(running), 1):
            case, seen = running[future], future.result()
            if seen is None:
                continue
            if file is not None:
                with file.open("a") as lines:
                    lines.write(f"{seen.as_json()}\n")
            outcome = judge(case, seen)
            outcomes[outcome] += 1
            left = (time.monotonic() - begin) / done * (len(waiting) - done)
            said = "" if outcome == "right" else f": {seen.accused or seen.status}: {seen.finding}"
            counts = ", ".join(f"{number} {name}" for name, number in outcomes.items())
            _say(f"{done} of {len(waiting)}: {case.name}: {outcome} ({seen.seconds:.0f} s){said}")
            _say(f"    so far {counts}; about {left / 60:.0f} min to go")
            yield case, seen
    finally:
        observer.stop()
        pool.shutdown(cancel_futures=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
