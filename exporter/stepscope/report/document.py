"""The report as one JSON document for programs: report.json. docs/report.schema.json describes it.

`profiler-reports/<Rule>.json` next to it holds the details of each rule, which have no fixed form.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import JOULES_PER_KWH
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.as_json import json_value
from stepscope.evaluation.places import Place
from stepscope.measurements.device_times import shares_of
from stepscope.measurements.steps import StepDistribution
from stepscope.report import sentences, shares
from stepscope.report.ended import failed, failure, out_of_memory, signal_name, stopped
from stepscope.report.figures import cost_of_run, main_steps
from stepscope.report.findings import Finding, cut_across
from stepscope.report.hot_lines import Part, parts
from stepscope.report.price_list import Machine
from stepscope.report.right_sizing import predictions
from stepscope.report.verdict import RunVerdict, verdict
from stepscope.rules.communication_bound import CommunicationBound
from stepscope.runs.model import USEFUL, DeviceTime, ThreadTime

PLACES = 3  # per part of the account
LINES, STACKS = 50, 100  # per rank and role; a recording has more

# Increases if a field disappears or changes its meaning, not for a new field.
# 3: null instead of 0 for what was not measured or estimated.
SCHEMA_VERSION = 1


def document(
    analysis: Analysis,
    price: float | None = None,
    machines: Sequence[Machine] = (),
) -> dict[str, Any]:
    """Returns the whole report without charts, as JSON values; None for unknown numbers.

    `price`: dollars per hour of one node. `machines`: the price
    list of right-sizing.
    """
    said = verdict(analysis, price)
    content = {
        "schema_version": SCHEMA_VERSION,
        "run": _run(analysis),
        "gaps": [asdict(gap) for gap in analysis.gaps],
        "verdict": _verdict(analysis, said),
        "usage": [asdict(row) for row in analysis.usage],
        "gpus": [_known(asdict(use), "memory_bytes") for use in analysis.gpu_use],
        "devices": [_device(device) for device in analysis.devices],
        "low_gpu_snapshots": [asdict(row) for row in analysis.low_gpu_snapshots],
        "account": _account(analysis, said.findings, price),
        "parts": _parts(shares.parts_of_the_run(analysis)),
        "phases": _parts(shares.phases(analysis)),
        "components": _parts(shares.inside_steps(analysis)),
        "steps": [_steps(row) for row in analysis.steps],
        "loaders": [_loader(loader) for loader in analysis.loaders],
        "lines": [_thread(thread) for thread in analysis.threads],
        "windows": [asdict(window) for window in analysis.windows],
        "operators": _operators(analysis),
        "top_lines": [_part(part) for part in parts(analysis)],
        "processes": [asdict(use) for use in analysis.run_use],
        "rules": [_rule(rule) for rule in analysis.rules],
        "energy": _energy(analysis),
        "cost": _cost(analysis, price),
        "predictions": [asdict(row) for row in predictions(analysis, price, machines)],
        "measurement": {
            "complete": not sentences.measuring_failures(analysis),
            "failures": sentences.measuring_failures(analysis),
            **attributes(analysis, "interval", "samples_taken", "samples_missed", "unknowns", "versions"),
        },
    }
    known: dict[str, Any] = json_value(content)
    return known


def render_json(
    analysis: Analysis,
    price: float | None = None,
    machines: Sequence[Machine] = (),
) -> str:
    """Returns the document as text with a newline at the end."""
    return (
        json.dumps(document(analysis, price, machines), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def attributes(thing: Any, *names: str) -> dict[str, Any]:
    """Returns these attributes under their names."""
    return {name: getattr(thing, name) for name in names}


def _run(analysis: Analysis) -> dict[str, Any]:
    return {
        **attributes(analysis, "name", "run", "command", "exit_status"),
        "ending": _ending(analysis),
        "finished": analysis.finished,
        "start": analysis.date,
        **attributes(analysis, "first_step_start", "last_step_end", "no_steps"),
        "end": analysis.end_date,
        "seconds": analysis.run_seconds,
        "framework": analysis.framework,
        **({"gauges": analysis.gauges} if analysis.gauges else {}),
        **({"restarts": [asdict(each) for each in analysis.restarts]} if analysis.restarts else {}),
        **({"counted": [asdict(each) for each in analysis.counted]} if analysis.counted else {}),
        **({"mfu": analysis.flops_utilisation} if analysis.flops_utilisation is not None else {}),
        "world_size": analysis.world_size or None,
        "ranks": analysis.ranks,
        "nodes": [
            {"name": name, "cores": analysis.cores.get(name) or None, "gpus": analysis.gpus.get(name, [])}
            for name in analysis.nodes
        ],
    }


def _verdict(analysis: Analysis, said: RunVerdict) -> dict[str, Any]:
    return {
        "status": said.status,
        "rules": {
            state: sentences.counts(analysis).get(state, 0) for state in Status if state is not Status.STOPPED
        },
        **attributes(said, "sentences", "evidence"),
        "findings": [_finding(finding) for finding in said.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    problem = finding.problem
    return {
        "title": problem.title,
        "rule": problem.rule.rule,
        "also": [rule.rule for rule in problem.also],
        "finding": problem.finding,
        "lines": [_place(place) for place in problem.places],
        "recommendation": problem.rule.recommendation,
        "seconds_lost": finding.seconds or None,
        "shared_seconds": problem.shared_seconds or None,
        "share_of_run": finding.of_run,
        "cost": finding.dollars,
    }


def _account(analysis: Analysis, findings: Sequence[Finding], price: float | None) -> dict[str, Any] | None:
    account, energy, bill = analysis.account, analysis.energy, cost_of_run(analysis, price)
    if account is None:
        return None
    return {
        **attributes(account, "seconds", "ranks", "useful_share"),
        "leaves": [
            {
                "part": leaf.key.part,
                "component": leaf.key.component or None,
                **attributes(leaf, "seconds", "share", "rank", "rank_seconds"),
                "useful": leaf.key.component in USEFUL,
                "cost": None if bill is None else leaf.share * bill,
                "kilowatt_hours": None if energy is None else leaf.share * energy.joules / JOULES_PER_KWH,
                "findings": [each.problem.title for each in findings if each.explains(leaf.key)],
                "lines": [_place(place) for place in leaf.places[:PLACES]],
            }
            for leaf in account.leaves
        ],
        "of_which": [
            {"title": rule.about.subject, "rule": rule.rule, "seconds": rule.seconds_lost}
            for rule in cut_across(findings, account)
        ],
    }


def _parts(whole: shares.Whole) -> dict[str, Any]:
    return {
        "seconds": whole.seconds if whole.parts else None,
        "parts": [
            {"name": part.key, "seconds": part.seconds, "share": part.fraction} for part in whole.parts
        ],
    }


def _steps(row: StepDistribution) -> dict[str, Any]:
    content = asdict(row)
    histogram = {name: content.pop(name) for name in ("edges", "counts")}
    return {**content, "histogram": histogram}


def _device(device: DeviceTime) -> dict[str, Any]:
    shares = shares_of([device])
    return {
        **attributes(device, "node", "rank", "device", "steps", "seconds"),
        "percent": shares.parts if shares else None,
        "idle_percent": shares.idle_for if shares else None,
        "idle_seconds": device.idle_for,
    }


def _thread(thread: ThreadTime) -> dict[str, Any]:
    return asdict(replace(thread, lines=thread.lines[:LINES], stacks=thread.stacks[:STACKS]))


def _part(part: Part) -> dict[str, Any]:
    return {
        **attributes(part.thread, "node", "rank", "role"),
        **attributes(part, "phase", "component", "seconds", "share", "words", "typical_rank"),
        "lines": [
            {
                "place": hot.place.line.place,
                "function": hot.place.function,
                "library": hot.place.line.library,
                "caller_place": hot.place.line.caller_place,
                "caller": hot.place.line.caller,
                "share": hot.place.share,
                "typical_share": hot.typical_share,
            }
            for hot in part.lines
        ],
    }


def _operators(analysis: Analysis) -> dict[str, Any] | None:
    """Returns what the traces of profile windows show; None without traces."""
    profile = analysis.profile
    if profile is None:
        return None
    traces = profile.traces
    names = "title", "finding", "recommendation"
    return {
        "devices": [_without(asdict(device), "windows") for device in profile.devices],
        "passes": [asdict(device) for device in profile.passes],
        "memory": [_without(asdict(device), "held", "begins") for device in profile.memory],
        "changes": [{**asdict(each), "difference": each.difference} for each in profile.changes],
        "findings": [dict(zip(names, words, strict=True)) for words in profile.findings],
        "unread": list(profile.unread),
        "gpus": [_device(device) for device in traces.devices] if traces else [],
        "collectives": traces.details_of(CommunicationBound).get("collectives", []) if traces else [],
    }


def _place(place: Place) -> dict[str, Any]:
    return {"place": place.words, "text": place.line.text, "share": place.share}


def _rule(rule: RuleResult) -> dict[str, Any]:
    content = asdict(rule)
    del content["details"], content["about"], content["debugger_parameters"], content["debugger_triggered"]
    return _known(content, "seconds_lost")


def _without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the content without what only charts need."""
    return {name: value for name, value in content.items() if name not in names}


def _known(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the content with null in these fields if they are 0: what they say is not known."""
    return {name: value or None if name in names else value for name, value in content.items()}


def _loader(loader: dict[str, Any]) -> dict[str, Any]:
    """Returns a loader; its fetches are null if they were not timed."""
    if loader.get("fetches"):
        return loader
    return _known(loader, "fetches", "fetch_seconds", "fetch_cpu_seconds", "fetch_core_wait_seconds")


def _ending(analysis: Analysis) -> dict[str, Any] | None:
    """Returns how the command ended, apart from whether measuring was complete; None if it has not ended."""
    if not analysis.finished:
        return None
    return {
        "failed": failed(analysis) and not stopped(analysis),
        "stopped_by": analysis.stopped_by or None,
        "exception": analysis.exception or None,
        "words": failure(analysis) if failed(analysis) else None,
        "signal": signal_name(analysis),
        "out_of_memory": out_of_memory(analysis) if analysis.ended else None,
        "last_steps": [asdict(step) for step in analysis.last_steps],
    }


def _energy(analysis: Analysis) -> dict[str, Any] | None:
    energy = analysis.energy
    if energy is None:
        return None
    steps = max((row.count for row in main_steps(analysis)), default=0)
    return {
        "joules": energy.joules,
        "kilowatt_hours": energy.joules / JOULES_PER_KWH,
        "joules_per_step": energy.joules / steps if steps else None,
        "gpus": [asdict(gpu) for gpu in energy.gpus],
        "gpus_without": energy.gpus_without,
    }


def _cost(analysis: Analysis, price: float | None) -> dict[str, Any] | None:
    amount = cost_of_run(analysis, price)
    if amount is None:
        return None
    return {
        "currency": "USD",
        "price_per_node_hour": price,
        "nodes": len(analysis.nodes),
        "seconds": analysis.run_seconds,
        "amount": amount,
    }
