"""The cross-check without a server: a recording, played back into a Prometheus of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trainwatch.crosscheck.compare import Outcome
from trainwatch.crosscheck.offline.blocks import make_blocks
from trainwatch.crosscheck.offline.evaluation import evaluate_groups
from trainwatch.crosscheck.offline.prometheus import local_prometheus, program
from trainwatch.crosscheck.offline.rule_files import metrics, read_groups
from trainwatch.crosscheck.progress import shown
from trainwatch.crosscheck.rendered import Rendered
from trainwatch.crosscheck.replay.run import RecordedRun
from trainwatch.crosscheck.runs import check_rules
from trainwatch.crosscheck.scrape_times import ScrapeTimes
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.stored import Window
from trainwatch.prometheus_rules.files import HEURISTICS, render
from trainwatch.rules import all_rules


def check_recording(
    run: RecordedRun, rules: Rendered, start: Milliseconds | None, end: Milliseconds | None
) -> list[Outcome]:
    """Scrapes are as far apart as the rules are rendered for; each evaluation is at the time of a scrape.

    Raises UserError where Prometheus is not installed, or a rule file cannot be evaluated.
    """
    for needed in ("promtool", "prometheus"):
        program(needed)
    groups = [group for place, text in rules.texts.items() for group in read_groups(text, place)]
    checked = [group for group in groups if group.name.removeprefix("trainwatch-") in all_rules()]
    intended = read_groups(render(rules.options)[HEURISTICS], HEURISTICS)
    interval = round(1000 * rules.options.scraping.interval)
    begin = round(1000 * run.start)
    moments = range(begin, round(1000 * run.end) + 1, interval)
    with tempfile.TemporaryDirectory(prefix="trainwatch-crosscheck-") as directory:
        folder = Path(directory)
        with shown("scrapes replayed", len(moments) * len(run.nodes)) as progress:
            ended = make_blocks(run, moments, metrics([*checked, *intended]), folder, progress)
        with local_prometheus(folder) as store, Server(store.url) as server:
            store.write((labels, [(time, None)]) for labels, time in ended)
            with shown("rules evaluated", sum(len(group.rules) for group in checked)) as progress:
                evaluate_groups(server, store, checked, begin, moments[-1], progress)
            window = Window(
                run.name,
                max(begin, start) if start is not None else begin,
                min(moments[-1], end) if end is not None else moments[-1],
                ScrapeTimes(interval, interval, unseen=0),
                restarted=None,
            )
            intervals = {group.name: group.interval for group in checked}
            return check_rules(server, rules.options, intervals, [window])
