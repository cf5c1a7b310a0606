"""When rules held: in words for every surface, and as bands over the heatmap."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import all_of, count, day, moment, time_of_day
from stepscope.evaluation.analysis import Analysis, Band, RuleResult
from stepscope.rules.parts.bands import Worst

SENTENCES = 3  # in the verdict; the table of rules has all


def holds_now(rule: RuleResult) -> bool:
    """Returns whether the rule holds at the last scan; rules without bands judge the whole run."""
    return any(band.lasts for band in rule.bands) if rule.bands else rule.status is Status.FOUND


def held(analysis: Analysis, rule: RuleResult) -> str:
    """Says from when to when the rule held, and whether it still does; empty if it has no bands."""
    if not rule.bands:
        return ""
    if analysis.finished:
        return f"It held {_when(analysis, rule, rule.bands)}."
    lasting = [band for band in rule.bands if band.lasts]
    if lasting:
        return f"It has held {_when(analysis, rule, lasting)}."
    return f"It no longer holds: it held {_when(analysis, rule, rule.bands)}."


def at_times(analysis: Analysis) -> list[RuleResult]:
    """Returns the rules that held at times and did not fire over the whole run."""
    return [rule for rule in analysis.rules if rule.bands and rule.status is not Status.FOUND]


def only_at_times(analysis: Analysis) -> list[str]:
    """Says when rules held that did not fire over the whole run."""
    rules = at_times(analysis)
    found = [
        f"Not over the whole run, but for a time: {rule.rule} held {_when(analysis, rule, rule.bands)}."
        for rule in rules[:SENTENCES]
    ]
    more = len(rules) - SENTENCES
    return [*found, f"So did {count(more, 'more rule')}: see the table of rules."] if more > 0 else found


def strips(analysis: Analysis, node: str) -> list[dict[str, Any]]:
    """Returns a strip for each rule that held on a node: its name, and start, end and words of its bands."""
    found = []
    for rule in analysis.rules:
        bands = [band for band in rule.bands if band.node == node]
        spans = [
            [
                1000 * min(band.start for band in group),
                1000 * max(band.end for band in group),
                said_of(group, [rule], wholes(analysis)),
            ]
            for group in together(bands)
        ]
        if spans:
            found.append({"name": rule.rule, "spans": spans})
    return found


def together(bands: Iterable[Band]) -> list[list[Band]]:
    """Groups bands, of any subjects, that overlap or touch."""
    groups: list[list[Band]] = []
    end = -float("inf")
    for band in sorted(bands, key=lambda band: band.start):
        if band.start > end:
            groups.append([])
        groups[-1].append(band)
        end = max(end, band.end)
    return groups


def _when(analysis: Analysis, rule: RuleResult, bands: Sequence[Band]) -> str:
    """Describes the longest band: when, where, the worst value of all, and how many there are."""
    longest = max(bands, key=lambda band: (band.end - band.start, -band.start))
    times = len(together(bands))
    often = f", the longest of {times} times" if times > 1 else ""
    return f"{_span(analysis, longest)} on {said_of([longest, *bands], [rule], wholes(analysis))}{often}"


def _span(analysis: Analysis, band: Band) -> str:
    """Writes the times of a band, with the date if it is not the day on which the run began."""
    first = analysis.start if analysis.start is not None else band.start
    write = time_of_day if len({day(time) for time in (first, band.start, band.end)}) == 1 else moment
    if band.end <= band.start:
        return f"at {write(band.start)}"
    return f"from {write(band.start).removesuffix(' UTC')} to {write(band.end)}"


def wholes(analysis: Analysis) -> dict[str, int]:
    """Returns how many ranks, GPUs and nodes the run has."""
    gpus = sum(len(of_node) for of_node in analysis.gpus.values())
    return {"rank": analysis.ranks, "GPU": gpus, "node": len(analysis.nodes)}


def said_of(bands: Sequence[Band], rules: Iterable[RuleResult], wholes: Mapping[str, int]) -> str:
    """Names the place of the first band and how many more there are, and the worst value of its condition.

    `rules`: those that the bands are of.
    """
    first, worst = bands[0], _worst(bands, rules)
    places = len({(band.node, band.subject.partition(",")[0]) for band in bands})  # without phases
    where = f"{first.subject} of {first.node}" if first.subject else first.node
    kind = first.subject.split()[0].rstrip(",") if first.subject else "node"
    if kind == "rank" and wholes[kind] <= 1:
        where = first.node
    elif places == wholes.get(kind) and places > 1:
        return f"{all_of(places, kind)}, at worst {worst}"
    others = f" (and {count(places - 1, f'more {kind}')})" if places > 1 else ""
    return f"{where}{others}, at worst {worst}"


def _worst(bands: Sequence[Band], rules: Iterable[RuleResult]) -> str:
    """Returns the words of the worst of the bands with the same condition as the first."""
    conditions = [how for rule in rules if (known := rule.definition.bands) for how in known.worst]

    def condition(band: Band) -> Worst | None:
        return next((how for how in conditions if how.say(band.worst) == band.words), None)

    how = condition(bands[0])
    alike = sorted((band for band in bands if condition(band) is how), key=lambda band: band.worst)
    return alike[0 if how is not None and how.lowest else -1].words
