"""Simulates runs once, lets every engine decide, prints what differs, and can write trials/README.md."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from stepscope.demo.scenarios import all_scenarios
from stepscope.prometheus.crosscheck.server import Series

from benchmarks.page import RESULTS, markdown, write_table
from trials.engines.scenarios import SCRAPE_SECONDS, run_of, scraped, seconds_of
from trials.engines.servers import Engine, engines_here
from trials.shared_cluster.judge import FiringAlert, judge, needed, rule_groups
from trials.shared_cluster.machine import play
from trials.shared_cluster.plan import Plan, make_plan, make_short_plan

PAGE = RESULTS
SEEDS = (107, 108)  # those of the shared clusters
Decided = Mapping[frozenset[tuple[str, str]], FiringAlert]  # the first of each alert, by its labels


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.engines", description=__doc__)
    parser.add_argument("--seed", type=int, action="append", help="of a shared cluster, may be repeated")
    parser.add_argument("--short", action="store_true", help="a shared cluster of two nodes for half an hour")
    parser.add_argument("--demo", action="store_true", help="only the demo's scenarios")
    parser.add_argument("--markdown", action="store_true", help=f"also write the table into {PAGE.name}")
    arguments = parser.parse_args(words)
    engines = engines_here()
    rows = list(of_demo(engines))
    if arguments.short:
        rows.append(of_cluster(make_short_plan(), engines))
    elif not arguments.demo:
        rows.extend(of_cluster(make_plan(seed), engines) for seed in arguments.seed or SEEDS)
    table = markdown(("simulated", "alerts", *(engine.title for engine in engines)), rows)
    print("\n".join(table))
    if arguments.markdown:
        written = sys.argv[1:] if words is None else words
        flags = [flag for flag in written if flag != "--markdown"]
        write_table(PAGE, " ".join(["python -m trials.engines", *flags]), table, name="engines")
    return int(any(not cell.startswith("same") for row in rows for cell in row[2:]))


def of_demo(engines: Sequence[Engine]) -> Iterator[tuple[str, ...]]:
    """Yields a row per scenario."""
    with ProcessPoolExecutor() as pool:
        series = [each for node in pool.map(scraped, all_scenarios()) for each in node]
    seconds = max(map(seconds_of, all_scenarios()))
    decided = [first_of(decide(engine, series, SCRAPE_SECONDS, seconds)) for engine in engines]
    for scenario in all_scenarios():
        own = [
            {key: alert for key, alert in found.items() if alert.labels.get("run") == run_of(scenario)}
            for found in decided
        ]
        yield scenario, str(len(own[0])), *compared(own, scenario)


def of_cluster(plan: Plan, engines: Sequence[Engine]) -> tuple[str, ...]:
    """Returns the row of a shared cluster."""
    read = needed(rule_groups(plan.scrape_interval))
    with ProcessPoolExecutor() as pool:
        nodes = pool.map(partial(play, plan, read=read), range(len(plan.nodes)))
        series = [each for node in nodes for each in node]
    found = [decide(engine, series, plan.scrape_interval, plan.seconds) for engine in engines]
    title = f"shared cluster, seed {plan.seed}" if plan.seed else "shared cluster, short form"
    cells = compared([first_of(alerts) for alerts in found], title)
    scores = [judge(plan, alerts) for alerts in found]
    for engine, (_, false, missed) in zip(engines, scores, strict=True):
        _say(f"{title}, {engine.title}: {len(false)} false, {len(missed)} missed")
    return title, str(len(first_of(found[0]))), *cells


def decide(engine: Engine, series: Sequence[Series], interval: float, seconds: float) -> list[FiringAlert]:
    begin = time.monotonic()
    alerts = engine.decided(series, interval, seconds)
    _say(f"{engine.title}: {len(alerts)} alerts, decided in {time.monotonic() - begin:.0f} s")
    return alerts


def first_of(alerts: Sequence[FiringAlert]) -> Decided:
    found: dict[frozenset[tuple[str, str]], FiringAlert] = {}
    for alert in sorted(alerts, key=lambda alert: alert.begin):
        found.setdefault(frozenset(alert.labels.items()), alert)
    return found


def compared(decided: Sequence[Decided], title: str) -> Iterator[str]:
    """Yields a cell per engine: whether it decided as the first one did, and how much later."""
    first = decided[0]
    for number, found in enumerate(decided):
        for key in first.keys() ^ found.keys():
            alert = first.get(key) or found[key]
            _say(f"{title}, engine {number}: {'missing' if key in first else 'only here'}: {alert}")
        later = [found[key].begin - first[key].begin for key in first.keys() & found.keys()]
        if first.keys() != found.keys():
            yield f"{len(first.keys() ^ found.keys())} differ"
        elif any(later):
            yield f"same, up to {max(later) / 60:g} min later"
        else:
            yield "same"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
