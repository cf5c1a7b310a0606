"""Compares what Prometheus stored of a run with the recording of the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainwatch.crosscheck.hidden.archive import LOOK_BACK, Archive, Sampling
from trainwatch.crosscheck.hidden.bounds import Bounds
from trainwatch.crosscheck.hidden.compared import Compared
from trainwatch.crosscheck.hidden.scrapes import Scrapes
from trainwatch.crosscheck.readings import matcher
from trainwatch.crosscheck.replay.run import RecordedRun
from trainwatch.crosscheck.rule_files import metrics, read_groups
from trainwatch.crosscheck.scrape_times import SAMPLES
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.stored import Stored, Window
from trainwatch.errors import UserError
from trainwatch.measurements.scraped import Labels, without
from trainwatch.prometheus_rules.files import RULES, render
from trainwatch.prometheus_rules.options import Options
from trainwatch.prometheus_rules.profiles import alerting_rules
from trainwatch.report.terminal import shown

# What these rules read is not replayed from a recording: pids, cgroups, other users' processes, and when
# ranks waited for a core. Recordings have that wait by the minute only.
NOT_REPLAYED = {"CPUThrottled", "HostMemoryLeak", "IdleGPU", "MemoryPressure", "NoisyNeighbour", "Straggler"}


def compare_with_recording(
    server: Server,
    run: RecordedRun,
    options: Options,
    intervals: Mapping[str, Milliseconds],
    window: Window,
) -> list[Compared]:
    """Compares raw series, and what each rule recorded. Raises UserError if they cannot be compared."""
    window = replace(window, end=min(window.end, round(1000 * run.known_until)))
    targets = _targets(server, run, window)
    stored = [
        (rule, Stored(server, rule, options.scraping, intervals[group], window, options.labels()))
        for rule in alerting_rules(options)
        if (group := f"trainwatch-{rule.name}") in intervals and rule.name not in NOT_REPLAYED
    ]
    first = min((kept.times[0] for _, kept in stored if kept.times), default=window.start)
    names = metrics(read_groups(render(options)[RULES], RULES))
    with shown("samples replayed", sum(len(run.times(node)) for node in run.nodes)) as progress:
        archive = Archive(run, targets, names, min(first, window.start), window.end, progress)
    sample = round(1000 * run.facts.interval)
    scrapes = Scrapes(server, archive, window)
    since = _first_scrape(server, window, first - LOOK_BACK) - scrapes.late - sample
    sampling = Sampling(since, sample, scrapes.late)
    found = scrapes.compared()
    with shown("rules compared with the recording", len(stored)) as progress:
        for number, (rule, kept) in enumerate(stored):
            if kept.times:
                found += Bounds(server, archive, rule, options.scraping, kept, sampling).compared()
            progress(number + 1)
    return found


def _first_scrape(server: Server, window: Window, since: Milliseconds) -> Milliseconds:
    """Returns the time of the first scrape: Prometheus never saw earlier samples."""
    points = server.points(f"{SAMPLES}{{{matcher('run', window.run)}}}", since, window.end)
    return min((int(times[0]) for times, _ in points.values()), default=window.start)


def _targets(server: Server, run: RecordedRun, window: Window) -> dict[str, Labels]:
    """Returns the target labels of each node; `instance` must be the node if there are several."""
    selector = f"{SAMPLES}{{{matcher('run', run.name)}}}"
    found = [without(labels, "run") for labels in server.points(selector, window.start, window.end)]
    if len(run.nodes) == 1 and len(found) == 1:
        return {run.nodes[0]: found[0]}
    by_instance: dict[str, Labels] = {}
    for target in found:
        instance = dict(target).get("instance", "")
        if by_instance.setdefault(instance, target) is not target:
            raise UserError(
                f"--recording: Prometheus has two targets {instance} of run {run.name}; "
                "compare with a server that scrapes only one of them"
            )
    for node in run.nodes:
        if node not in by_instance:
            known = ", ".join(sorted(by_instance)) or "no instance"
            raise UserError(
                f"--recording: Prometheus has no instance {node} of run {run.name}, but {known}; "
                "set `instance` to the recording's node names in the scrape configuration"
            )
    return {node: by_instance[node] for node in run.nodes}
