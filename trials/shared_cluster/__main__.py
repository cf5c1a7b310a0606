"""Simulates shared clusters, prints what was found of what was planted, and can write trials/README.md."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus

from benchmarks.page import RESULTS, markdown, write_table
from trials.shared_cluster.faults import FAULTS, MINUTE
from trials.shared_cluster.judge import FiringAlert, Score, firing, judge, merged, needed, rule_groups
from trials.shared_cluster.machine import play
from trials.shared_cluster.plan import Plan, make_plan, make_short_plan

PAGE = RESULTS
HEAD = ("rule", "planted", "near", "found", "near misses silent", "false", "delay (min)", "clearing (min)")
HELD_BACK = (
    101,
    102,
    103,
    104,
    105,
    106,
    107,
    108,
)  # no threshold, fault or rule was changed with them before


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.shared_cluster", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        help="of a cluster, may be repeated; 1 to 100 are for tuning (default: those held back)",
    )
    parser.add_argument("--short", action="store_true", help="two nodes for half an hour")
    parser.add_argument("--markdown", action="store_true", help=f"also write the table into {PAGE.name}")
    arguments = parser.parse_args(words)
    plans = [make_short_plan()] if arguments.short else map(make_plan, arguments.seed or HELD_BACK)
    scores = merged(map(simulate, plans))
    rows = table(scores)
    print("\n".join(markdown(HEAD, rows)))
    if arguments.markdown:
        write_table(PAGE, "python -m trials.shared_cluster", markdown(HEAD, rows))
    return int(any(not score.holds for score in scores.values()))


def simulate(plan: Plan) -> dict[str, Score]:
    """Plays a cluster, and prints its false alerts and the faults that were missed."""
    begin = time.monotonic()
    groups = rule_groups(plan.scrape_interval)
    read = needed(groups)
    with local_prometheus() as store:
        with ProcessPoolExecutor(len(plan.nodes)) as pool:
            for series in pool.map(partial(play, plan, read=read), range(len(plan.nodes))):
                store.write(series)
        _say(f"seed {plan.seed}: simulated after {time.monotonic() - begin:.0f} s")
        alerts = firing(store, groups, plan.seconds)
    scores, false, missed = judge(plan, alerts)
    for alert in false:
        _say(f"  false: {_words(alert)}")
    for planted in missed:
        _say(f"  missed: {planted}")
    _say(f"seed {plan.seed}: {time.monotonic() - begin:.0f} s, {len(alerts)} alerts, {len(false)} false")
    return scores


def table(scores: Mapping[str, Score]) -> list[tuple[str, ...]]:
    """Returns a row per rule, and their sum."""
    rows = [_row(rule, scores[rule]) for rule in sorted(scores)]
    return [*rows, _row("**all**", merged({"all": score} for score in scores.values())["all"])]


def _row(rule: str, score: Score) -> tuple[str, ...]:
    counts = (score.planted, score.near, score.found, f"{score.silent} of {score.misses}", score.false)
    return (rule, *map(str, counts), _span(score.delays), _span(score.clearings))


def _span(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    low, high = (f"{edge / MINUTE:.1f}" for edge in (min(seconds), max(seconds)))
    return low if low == high else f"{low} to {high}"


def described() -> list[str]:
    """Returns the rows of the page about the faults."""
    return [
        f"| {' '.join((kind.__doc__ or '').split()).rstrip('.')} | `{kind.rule}` | "
        f"{', '.join(f'`{rule}`' for rule in sorted(kind.may)) or 'none'} |"
        for kind in FAULTS
    ]


def _words(alert: FiringAlert) -> str:
    labels = {
        name: value
        for name, value in alert.labels.items()
        if name in ("cluster", "instance", "run", "gpu", "rank")
    }
    return f"{alert.rule} {labels} from {alert.begin / MINUTE:.1f} to {alert.end / MINUTE:.1f} min"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
