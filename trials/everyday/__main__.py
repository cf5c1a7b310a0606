"""Runs everyday scripts, with what slows them and without, and scores what their reports say first."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.evaluation.unexplained import LOOP

from benchmarks.page import RESULTS, markdown, write_table
from trials.everyday.clock import FOLDER, clocked
from trials.everyday.judge import HEAD, Results, Seen, holds, is_silent, judge, rows, script, totals
from trials.everyday.truths import FIRST, SECOND, Situation
from trials.processes import Processes

PAGE = RESULTS
SECONDS = 120.0  # after which a run is ended

EXAMPLES = """\
examples:
  python -m trials.everyday                       every situation and its healthy twin: half an hour
  python -m trials.everyday metric_in_loop        only this one
  python -m trials.everyday --second-set          those that were kept until the rules were tuned
  python -m trials.everyday --results FILE        continue after an interruption, with what FILE holds already
  python -m trials.everyday --markdown            also write the table into trials/README.md

The exit status is 1 if a healthy twin was accused, fewer than 90 % of the findings or lines are right, or
less than 80 % of the advice helps.
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trials.everyday",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these situations (default: all)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--first-set", action="store_true", help="only those written before rules were tuned")
    choice.add_argument("--second-set", action="store_true", help="only those kept until then")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="print the situations, and run none")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results there, and repeat none that it has"
    )
    parser.add_argument(
        "--markdown", action="store_true", help=f"also write the table into trials/{PAGE.name}"
    )
    arguments = parser.parse_args(words)
    everything = FIRST if arguments.first_set else SECOND if arguments.second_set else FIRST + SECOND
    unknown = set(arguments.names) - {each.name for each in everything}
    if unknown:
        parser.error(f"no situation has the name {', '.join(sorted(unknown))}; --list prints them")
    situations = [each for each in everything if each.name in arguments.names or not arguments.names]
    if arguments.list:
        print("\n".join(f"{each.name}: {each.cause}" for each in situations))
        return 0
    if find_spec("torch") is None:
        parser.error("PyTorch is missing: pip install '.[pytorch]'")
    return _scored(_possible(situations), arguments)


def _possible(situations: Sequence[Situation]) -> list[Situation]:
    """Returns the situations whose packages are installed, and prints which others are skipped."""
    possible = []
    for each in situations:
        missing = [package for package in each.needs if find_spec(package) is None]
        if missing:
            _say(f"skipped {each.name}: it needs {' and '.join(missing)}")
        else:
            possible.append(each)
    return possible


def _scored(situations: Sequence[Situation], arguments: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results: dict[tuple[str, bool], Seen] = {}
    begin = time.monotonic()
    complete = False
    try:
        for seen in observe(situations, arguments.jobs, arguments.results):
            results[seen.name, seen.good] = seen
        complete = True
    except KeyboardInterrupt:
        _say("interrupted: the table has only the runs that ended")
    lines = markdown(HEAD, rows(situations, results))
    print("\n".join(lines))
    _say(f"{len(results)} runs, {(time.monotonic() - begin) / 60:.0f} min")
    if arguments.markdown and complete:
        flags = [f"--{name}-set" for name in ("first", "second") if getattr(arguments, f"{name}_set")]
        write_table(
            PAGE, " ".join(["python -m trials.everyday", *arguments.names, *flags]), lines, "everyday"
        )
    return 0 if holds(situations, results) else 1


def observe(situations: Sequence[Situation], jobs: int = 1, file: Path | None = None) -> Iterator[Seen]:
    """Yields what was seen of each situation and of its twin, and prints progress.

    Results in the file are not repeated.
    """
    known = {}
    if file is not None and file.exists():
        known = {(seen.name, seen.good): seen for seen in map(Seen.from_json, file.read_text().splitlines())}
    every = [(each, good) for good in (False, True) for each in situations]
    yield from (known[each.name, good] for each, good in every if (each.name, good) in known)
    waiting = [(each, good) for each, good in every if (each.name, good) not in known]
    results: dict[tuple[str, bool], Seen] = {}
    begin = time.monotonic()
    processes = Processes(SECONDS)
    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(run, each, good, processes): each for each, good in waiting}
        for done, future in enumerate(as_completed(running), 1):
            each, seen = running[future], future.result()
            results[seen.name, seen.good] = seen
            if file is not None:
                with file.open("a") as lines:
                    lines.write(f"{seen.as_json()}\n")
            _say_how_far(each, seen, results, f"{done} of {len(waiting)}")
            left = (time.monotonic() - begin) / done * (len(waiting) - done)
            _say(f"    about {left / 60:.0f} min to go")
            yield seen
    finally:
        processes.stop()
        pool.shutdown(cancel_futures=True)


def run(situation: Situation, good: bool, processes: Processes) -> Seen:
    """Runs a situation, or its healthy twin, and reads its report."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stepscope-everyday-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        variables = {**os.environ, FOLDER: folder, "PYTHONPATH": str(RESULTS.parents[1])}
        status = processes.run(command(situation, good, place / "run"), variables, place)
        try:
            report = json.loads((place / "run" / "report.json").read_text())
        except (OSError, ValueError):
            report = {}
        terminal = (place / "log").read_text(errors="replace")[-4000:]
        seconds = time.monotonic() - begin
        return Seen(
            situation.name,
            good,
            status,
            report.get("verdict", {}),
            clocked(place),
            seconds,
            terminal,
            *_loop(report),
        )


def _loop(report: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the seconds from the first step to the last, per rank, and the training steps of a rank."""
    steps = [each for each in report.get("steps", ()) if each["phase"] == "train"]
    if not steps:
        return 0.0, 0
    leaves = report["account"]["leaves"]
    seconds = sum(leaf["seconds"] for leaf in leaves if leaf["part"] in LOOP)
    return seconds / len(steps), max(each["count"] for each in steps)


def command(situation: Situation, good: bool, recording: Path) -> list[str]:
    """Returns the command that trains, observed."""
    python = [sys.executable]
    if situation.ranks > 1:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(situation.ranks)]
    training = [*python, str(script(situation.name)), *(["--good"] if good else [])]
    observed = [sys.executable, "-m", "stepscope", "run", "--name", "train", "--out", str(recording)]
    return [*observed, "--", *training]


def _say_how_far(situation: Situation, seen: Seen, results: Results, done: str) -> None:
    if seen.good:
        outcome = "silent" if is_silent(seen) else f"accused: {seen.words}"
    else:
        score = judge(situation, seen)
        wrong = [name for name in ("finding", "line", "seconds") if getattr(score, name) is False]
        outcome = f"wrong {' and '.join(wrong)}: {seen.words}" if wrong else "right"
    twin = ", healthy twin" if seen.good else ""
    _say(f"{done}: {situation.name}{twin}: {outcome} ({seen.seconds:.0f} s)")
    names = ("findings", "lines", "seconds", "advice", "silent twins")
    counted = zip(names, totals(FIRST + SECOND, results), strict=True)
    _say(f"    so far: {', '.join(' '.join(each) for each in counted)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
