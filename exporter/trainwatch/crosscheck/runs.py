"""The check of all rules, for each run that a Prometheus has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainwatch.crosscheck.compare import Disagreement, Outcome, check_rule
from trainwatch.crosscheck.progress import shown
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.stored import Stored, Window
from trainwatch.prometheus_rules.options import Options


def check_rules(
    server: Server, options: Options, intervals: Mapping[str, Milliseconds], windows: Sequence[Window]
) -> list[Outcome]:
    """`intervals`: how often each group of rules is evaluated. Raises UserError where the server fails."""
    rules = [one for one in options.settings.rules() if one.prometheus_rules(options.scraping) is not None]
    outcomes: list[Outcome] = []
    with shown("rules checked", len(rules) * len(windows)) as progress:
        for heuristic in rules:
            group = f"trainwatch-{heuristic.name}"
            for window in windows:
                if group in intervals:
                    stored = Stored(server, heuristic, options.scraping, intervals[group], window)
                    outcome = check_rule(server, heuristic, options.scraping, stored)
                else:
                    missing = Disagreement(
                        heuristic.name, window.end, f"group {group}", frozenset(), "a group", None
                    )
                    outcome = Outcome(heuristic.name, window.run, disagreements=[missing])
                outcomes.append(outcome)
                progress(len(outcomes))
    return outcomes
