"""The facts of a run: names and values for the run summary."""

from __future__ import annotations

from trainwatch.evaluation.analysis import Analysis
from trainwatch.report import shares
from trainwatch.report.cost import cost_of_run
from trainwatch.words import UNKNOWN, count, duration, listing, moment, money


def facts(analysis: Analysis, price: float | None = None) -> list[tuple[str, str]]:
    """Returns names and values; `price`: dollars per hour of one node."""
    end = moment(analysis.end) if analysis.finished else "not yet, or not recorded"
    status = UNKNOWN if analysis.exit_status is None else str(analysis.exit_status)
    bill = cost_of_run(analysis, price)
    cost = f"{money(bill)}, at {money(price)} per node and hour" if bill is not None and price else ""
    named = [
        ("Command", analysis.command or UNKNOWN),
        ("Start", moment(analysis.start)),
        ("End", end),
        ("Duration", duration(shares.run_seconds(analysis))),
        ("Exit status", status),
        ("Framework", analysis.framework or UNKNOWN),
        ("Ranks", _ranks(analysis)),
        ("Nodes", _shortened(analysis.nodes) or "none"),
        ("GPUs", _gpus(analysis)),
        ("Cores", _cores(analysis)),
        ("Cost", cost),
    ]
    return [(name, value) for name, value in named if value]


def _ranks(analysis: Analysis) -> str:
    if not analysis.ranks:
        return "none seen"
    if analysis.world_size > analysis.ranks:
        return f"{analysis.ranks} of {analysis.world_size} seen"
    return str(analysis.ranks)


def _gpus(analysis: Analysis) -> str:
    """Returns the models and their number over all nodes: "8 × NVIDIA H100"."""
    models: dict[str, int] = {}
    for names in analysis.gpus.values():
        for name in names:
            model = name.partition(": ")[2] or "GPU of an unknown model"
            models[model] = models.get(model, 0) + 1
    return listing([f"{number} × {model}" for model, number in models.items()]) or "none seen"


def _cores(analysis: Analysis) -> str:
    sizes = sorted({size for size in analysis.cores.values() if size})
    if not sizes:
        return UNKNOWN
    if len(analysis.cores) == 1:
        return str(sizes[0])
    span = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{count(sum(analysis.cores.values()), 'core')}, {span} per node"


def _shortened(names: list[str]) -> str:
    if len(names) <= 4:
        return listing(names)
    return f"{len(names)}: {', '.join(names[:3])}, … {names[-1]}"
