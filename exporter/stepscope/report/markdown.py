"""The report in Markdown, short enough for a pull request or a chat: the verdict first."""

from collections.abc import Iterator, Sequence
from itertools import islice

from stepscope.common.words import (
    NO_NUMBER,
    amount,
    capitalised,
    count,
    duration,
    energy,
    listing,
    moment,
    share,
)
from stepscope.evaluation.analysis import Analysis, DevicePasses, DeviceProfile
from stepscope.report import profile, sentences, shares
from stepscope.report.findings import Finding
from stepscope.report.hot_lines import parts as hot_parts
from stepscope.report.markdown_text import code, plain, sentence, table
from stepscope.report.price_list import Machine
from stepscope.report.right_sizing import Prediction, predicted_figure, predictions
from stepscope.report.savings import gains
from stepscope.report.summary import at_a_glance
from stepscope.report.verdict import verdict
from stepscope.runs.model import DeviceMemory

FINDINGS = 3  # shown in full
USAGE_NODES = 2  # the JSON has all
SOME = 0.0005  # of a whole: smaller parts are omitted
METRICS = {"step_seconds_mean": "a training step (mean)", "run_seconds": "the run", "cost": "its cost"}
STATISTICS = ("max", "p95", "p50", "min")


def render_markdown(
    analysis: Analysis,
    price: float | None = None,
    machines: Sequence[Machine] = (),
) -> str:
    """Returns paragraphs and tables, separated by empty lines. `price`: dollars per hour of one node."""
    return "\n\n".join(_blocks(analysis, price, machines)) + "\n"


def _blocks(analysis: Analysis, price: float | None, machines: Sequence[Machine]) -> Iterator[str]:
    yield f"## Training run {code(analysis.run) or 'without a name'}"
    missing = sentences.gaps(analysis.gaps)
    if missing:
        yield "\n".join([f"**{sentence(missing[0])}**", "", *(f"- {sentence(gap)}" for gap in missing[1:])])
    said = verdict(analysis, price)
    yield " ".join([f"**{said.status.icon} {said.status}**", *map(sentence, said.sentences)])
    found, suggestions = said.findings, predictions(analysis, price, machines)
    if found:
        gained = gains(analysis, found[:FINDINGS], suggestions)
        yield "\n".join(
            _finding(number, finding, gain)
            for number, (finding, gain) in enumerate(zip(found, gained, strict=False), 1)
        )
    if sum(finding.seconds > 0 for finding in found[:FINDINGS]) > 1:
        yield "The same second may be lost to several of these: do not add them up."
    if found[FINDINGS:]:
        problems = [finding.problem for finding in found[FINDINGS:]]
        more = ", ".join(plain(f"{problem.title} ({problem.rule.rule})") for problem in problems)
        yield f"Also found: {more}."
    yield _glance(analysis, price)
    if suggestions:
        yield "### Right-sizing"
        yield "Each row predicts the effect of one change, with everything else as before."
        yield _suggestions(suggestions)
    yield "### Time breakdown"
    yield " ".join(map(sentence, (sentences.phases(analysis), sentences.inside_steps(analysis))))
    accounted = shares.where_time_went(analysis)
    parts = [
        *_parts("", accounted if accounted.parts else shares.phases(analysis), "of all"),
        *_parts("inside steps: ", shares.inside_steps(analysis), "of the steps"),
    ]
    if parts:
        yield table(("part, all ranks together", "time", "share"), parts, right=(1, 2))
    if hot := hot_parts(analysis):
        yield "### Lines of code"
        yield "\n".join(f"- {sentence(capitalised(part.words))}." for part in hot)
    if analysis.windows:
        yield "### Operators"
        yield "\n".join(f"- {sentence(words)}" for words in _operators(analysis))
        if analysis.profile is not None:
            yield from (_of_device(device) for device in analysis.profile.devices[: profile.DEVICES])
            yield from map(_modules, profile.passes(analysis)[: profile.DEVICES])
            yield from map(_memory, profile.memory(analysis)[: profile.DEVICES])
        if changed := profile.changes(analysis):
            yield f"{profile.CHANGED}, self time per step:"
            rows = [(code(name), device, code(place), *times) for name, device, place, *times in changed]
            yield table(profile.CHANGES, rows, right=(3, 4, 5))
    if analysis.usage:
        yield "### System usage"
        yield _usage(analysis)
    yield "### How this was judged"
    yield "\n".join(f"- {sentence(words)}" for words in _measured(analysis))


def _finding(number: int, finding: Finding, gain: str) -> str:
    problem, rule = finding.problem, finding.problem.rule
    lost = ", ".join(finding.amounts)
    title = f"{problem.title}: about {lost}." if lost else f"{problem.title}."
    code = f": `{problem.code.replace('`', ' ')}`" if problem.code else ""
    lines = f"**Line:** {sentence(problem.lines)}{code}. " if problem.lines else ""
    rules = [rule.rule, *(other.rule for other in problem.also)]
    source = f"({'Rules' if len(rules) > 1 else 'Rule'}: {listing(rules)})"
    best = f"**Gain:** {sentence(gain)}. " if gain else ""
    return (
        f"{number}. **{plain(title)}** {sentence(finding.evidence)} {lines}**What to do:** "
        f"{sentence(rule.recommendation)} {best}{plain(source)}"
    )


def _glance(analysis: Analysis, price: float | None) -> str:
    rows = [
        (plain(figure.name), plain(figure.value), plain(figure.note))
        for figure in at_a_glance(analysis, price)
    ]
    if analysis.energy is not None:
        rows.append(("Energy", plain(energy(analysis.energy.joules)), "of the GPUs alone"))
    return table(("at a glance", "", ""), rows)


def _suggestions(rows: list[Prediction]) -> str:
    """Returns a table with one row per change and one column per predicted metric."""
    metrics = [metric for metric in METRICS if any(row.metric == metric for row in rows)]
    changes: dict[str, dict[str, Prediction]] = {}
    for row in rows:
        changes.setdefault(row.change, {})[row.metric] = row
    return table(
        ("change", *(METRICS[metric] for metric in metrics), "if"),
        (
            (
                plain(f"{row.resource}: {row.current:g} → {row.suggested:g}"),
                *(_predicted(by_metric[metric]) if metric in by_metric else NO_NUMBER for metric in metrics),
                sentence(max((row.assumption for row in by_metric.values()), key=len)),
            )
            for by_metric in changes.values()
            for row in islice(by_metric.values(), 1)
        ),
    )


def _predicted(row: Prediction) -> str:
    """Writes the measured value, the expected one and its range."""
    was, expected, low, high = (
        predicted_figure(row.metric, value, row.measured)
        for value in (row.measured, row.expected, row.low, row.high)
    )
    change = f"{was} → {expected}" if was != expected else f"still {was}"
    return plain(change if low == high else f"{change} ({low} to {high})")


def _parts(prefix: str, whole: shares.Whole, of: str) -> list[tuple[str, str, str]]:
    return [
        (plain(prefix + part.name.lower()), duration(part.seconds), f"{share(part.fraction, 1)} {of}")
        for part in whole.parts
        if part.fraction >= SOME
    ]


def _operators(analysis: Analysis) -> Iterator[str]:
    yield profile.headline(analysis)
    if analysis.profile is not None:
        yield from (f"{said} {advice}" for _, said, advice in analysis.profile.findings)
        yield from profile.gpus(analysis)
        yield from profile.kinds_by_device(analysis)
        yield from analysis.profile.unread


def _of_device(device: DeviceProfile) -> str:
    has_shapes = profile.has_shapes(device)
    rows = []
    for row in profile.rows(device):
        texts = [row.place, row.shapes] if has_shapes else [row.place]
        known = [code(text) if text else "" for text in texts]
        rows.append([code(row.name), *known, row.own, row.total, str(row.calls), row.share])
    texts = ["called from", "input shapes"] if has_shapes else ["called from"]
    header = [plain(profile.title(device)), *texts, "self time", "total", "calls", "of the steps"]
    return table(header, rows, right=range(len(texts) + 1, len(header)))


def _modules(device: DevicePasses) -> str:
    header = (plain(profile.passes_title(device)), *(name.lower() for name in profile.MODULES[1:]))
    rows = [(code(row.name), *row[1:5]) for row in profile.module_rows(device)]
    return table(header, rows, right=range(1, len(header)))


def _memory(device: DeviceMemory) -> str:
    rows = [
        (code(row.name), code(row.place) if row.place else "", row.allocated, row.kept, row.calls, row.share)
        for row in profile.memory_rows(device)
    ]
    header = (plain(profile.memory_title(device)), "called from", "per step", "kept", "allocations", "share")
    return table(header, rows, right=(2, 3, 4, 5))


def _usage(analysis: Analysis) -> str:
    nodes = list(dict.fromkeys(row.node for row in analysis.usage))
    several = len(nodes) > 1
    rows = [
        [
            *([code(row.node)] if several else []),
            plain(row.resource),
            *(amount(getattr(row, name), row.unit) for name in STATISTICS),
        ]
        for row in analysis.usage
        if row.node in nodes[:USAGE_NODES]
    ]
    first = 2 if several else 1
    header = [*(["node"] if several else []), "resource", *STATISTICS]
    text = table(header, rows, right=range(first, first + len(STATISTICS)))
    left = len(nodes[USAGE_NODES:])
    return f"{text}\n\n{count(left, 'more node')}: see report.json." if left else text


def _measured(analysis: Analysis) -> Iterator[str]:
    yield sentences.run_summary(analysis)[0] + (
        f" It began at {moment(analysis.date)}." if analysis.date is not None else ""
    )
    yield sentences.rules(analysis)
    for (state, reason), rules in sentences.not_judged(analysis).items():
        yield f"{capitalised(state)}: {', '.join(rules)}. {reason}"
    yield sentences.measured(analysis)[0]
    yield from analysis.unknowns
