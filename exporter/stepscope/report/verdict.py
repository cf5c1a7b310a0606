"""The state of a run, its verdict and its evidence: what every surface shows, in these words.

The terminal, the report page, JSON, Markdown, the list of runs and the comparison all take them from here.
"""

import math
from dataclasses import dataclass

from stepscope.common.status import Status
from stepscope.common.words import (
    capitalised,
    count,
    duration,
    in_words,
    listing,
    number,
    percent,
    share,
    uncapitalised,
)
from stepscope.evaluation.account import AFTER, BEFORE, name_of
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.problems import problems_of, small_problems, unproven
from stepscope.evaluation.unexplained import fetching, is_accounted, perhaps_idle, unseen
from stepscope.report.devices import headline
from stepscope.report.ended import failed, how_it_ended, stopped
from stepscope.report.findings import Finding, findings
from stepscope.report.held import at_times, only_at_times
from stepscope.report.hot_lines import keeps_cores_busy, knows_lines, process_verdict
from stepscope.report.sentences import counts, decided, not_judged, traced
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.remedies import HOW_TO_SEE_STEPS
from stepscope.rules.parts.topics import Effect

MENTIONED = 0.005  # of the run: what costs less is not even a small thing
SPENT = 3  # parts of the account that a healthy run's sentence names
STANDSTILL = "standstill"  # the topic of rules on runs that get no further
MOST_OUTSIDE = 0.9  # of the run before its first step and after its last: the rest is too little to judge
MOST_UNRECORDED = 0.05  # of the run's samples: with more missing, nobody knows whether it was healthy
WHY_UNRECORDED = (
    "The list of what is missing says when, and why if it is known. The log of the exporter, or of "
    "`stepscope run`, says why sampling stopped."
)
UNRECOGNISED = "Only operators, kernels and copies are judged."
NO_WORK = "If the run uses the GPU, record its activity (with torch.profiler: ProfilerActivity.CUDA)."
CAPTURE_BOTH = (
    "Capture host and device with the profiler of your framework while steps run, and let it mark the steps."
)
TRAIN_LONGER = "Train for some more steps: so few do not tell how the time of training is spent."
CAPTURE_MORE = "Capture ten steps or more, with the activity of host and device."
FETCH_OUTSIDE = (
    "To see waits for data, call the `tf.function` with each batch: `for batch in dataset: step(batch)`."
)
LOOK_INSIDE = "`stepscope run --profile 20:29,python` records every function of ten steps."


@dataclass(frozen=True)
class RunVerdict:
    """The state of a run, one sentence, further sentences, and the findings."""

    status: Status
    sentence: str
    details: list[str]
    findings: list[Finding]
    unjudged: str = ""  # how many rules could not be judged

    @property
    def evidence(self) -> list[str]:
        return [finding.evidence for finding in self.findings]

    @property
    def sentences(self) -> list[str]:
        return list(filter(None, [self.sentence, *self.details, self.unjudged]))


def verdict(analysis: Analysis, price: float | None = None) -> RunVerdict:
    """Returns the verdict on a run, finished or not. `price`: dollars per hour of one node."""
    status = status_of_run(analysis)
    found = findings(analysis, price)
    does = process_verdict(analysis)
    if status in (Status.FAILED, Status.STOPPED):
        sentence, *details = how_it_ended(analysis)
        until = _found(analysis, found) or list(filter(None, [_spent(analysis)]))
        details += [f"Until then: {uncapitalised(text)}" for text in until]
    elif status is Status.FOUND:
        sentence, *details = _found(analysis, found)
    elif status is Status.HEALTHY:
        whole = " over the whole run" if at_times(analysis) else ""
        spent = _spent(analysis)
        if does and not (spent or analysis.gpu_use):
            first, *does = does
            spent = uncapitalised(first)
        sentence, details = f"Healthy{whole}: {spent or _judged(analysis)}", []
    else:
        missing, remedy = _missing(analysis)
        sentence, details = f"{capitalised(status)}: {missing}.", [remedy] if remedy else []
        if does and knows_lines(analysis):
            first, *does = does
            sentence, details = first, [f"{capitalised(missing)}.", *details]
        if _knows_where_time_goes(analysis) and not perhaps_idle(analysis):
            details.insert(0, f"What was recorded looks healthy: {_judged(analysis)}")
    if analysis.no_steps and status is not Status.NOT_ENOUGH_DATA:
        details.append(f"No steps were seen, so only the machine was judged. {analysis.no_steps}")
    details += headline(analysis) or ([f"{traced(analysis)}."] if analysis.is_trace else [])
    run = analysis.run_seconds or math.inf
    small = [one for one in small_problems(analysis) if one.seconds_lost >= MENTIONED * run]
    noted = [one for one in small if one.rule.about.effect is Effect.OVERVIEW]
    named = listing([f"{one.title} {share(one.seconds_lost, run)}" for one in small if one not in noted])
    details += [*does, *(f"{one.finding} {one.rule.recommendation}" for one in noted)]
    details += [*([f"Small things: {named} of the run."] if named else []), *only_at_times(analysis)]
    unjudged = _unjudged(analysis) if status is not Status.NOT_ENOUGH_DATA else ""
    return RunVerdict(status, sentence, details, found, unjudged)


def status_of_run(analysis: Analysis) -> Status:
    """Returns the state of the run as a whole: a command that failed did, whatever was found."""
    if failed(analysis):
        return Status.STOPPED if stopped(analysis) else Status.FAILED
    if problems_of(analysis):
        return Status.FOUND
    too_little = Status.COLLECTING if Status.COLLECTING in counts(analysis) else Status.NOT_ENOUGH_DATA
    if (
        _hides_a_device(analysis)
        or unseen(analysis)
        or fetching(analysis)
        or _outside_steps(analysis) > MOST_OUTSIDE
        or unproven(analysis)
        or perhaps_idle(analysis)
    ):
        return too_little
    if _knows_where_time_goes(analysis):
        return too_little if unrecorded(analysis) > MOST_UNRECORDED else Status.HEALTHY
    is_whole = too_little is Status.NOT_ENOUGH_DATA and is_accounted(analysis.account)
    return Status.HEALTHY if is_whole else too_little


def unrecorded(analysis: Analysis) -> float:
    """Returns the share of the run's samples that is missing, 0..1; 0 if its duration is not known."""
    whole = (analysis.run_seconds or 0.0) * len(analysis.nodes)
    missing = sum(gap.count or 0 for gap in analysis.gaps if gap.what == "samples")
    return min(missing * analysis.interval / whole, 1.0) if whole > 0 else 0.0


def _outside_steps(analysis: Analysis) -> float:
    account = analysis.account
    if account is None or not account.useful_share:
        return 0.0
    return account.share(BEFORE) + account.share(AFTER)


def _knows_where_time_goes(analysis: Analysis) -> bool:
    """Returns whether more than risks, the start and pauses was judged: or time may be lost elsewhere.

    Without steps and GPUs, only what waits for the machine is judged, and not what a thread does.
    """
    if not (analysis.steps or analysis.is_trace or analysis.gpu_use):
        return keeps_cores_busy(analysis)
    return any(
        rule.status is Status.HEALTHY and rule.about.effect is Effect.TIME and not rule.definition.only_pauses
        for rule in decided(analysis)
    )


def _hides_a_device(analysis: Analysis) -> bool:
    """Returns whether a trace lists a GPU without its work, or may have a device's work in other events."""
    lists_gpus = analysis.is_trace and any(analysis.gpus.values())
    seen = any(device.seconds for device in analysis.devices)
    return not seen and (lists_gpus or bool(analysis.unrecognised))


def _spent(analysis: Analysis) -> str:
    """Says what a healthy run spent its time on; "" if that is not known."""
    account = analysis.account
    if account is None or not account.useful_share:
        return ""
    most = sorted(account.leaves, key=lambda leaf: -leaf.share)[:SPENT]
    named = listing([f"{uncapitalised(name_of(leaf.key))} {share(leaf.share, 1.0)}" for leaf in most])
    return f"{share(account.useful_share, 1.0)} of the run computes. Most of its time: {named}."


def _judged(analysis: Analysis) -> str:
    """Writes "12 of 22 rules judged, nothing found."."""
    states = counts(analysis)
    judged, every = states.get(Status.HEALTHY, 0), sum(states.values())
    of = "" if judged == every else f" of {every}"
    return f"{number(judged)}{of} {'rule' if every == 1 else 'rules'} judged, nothing found."


def _unjudged(analysis: Analysis) -> str:
    """Says how many rules could not be judged, and where the reasons are; "" if every rule was judged."""
    states = counts(analysis)
    said = {state: amount for state, amount in states.items() if not state.judged}
    if not said:
        return ""
    each = [f"{amount} {state}" if len(said) > 1 else str(state) for state, amount in said.items()]
    return (
        f"{number(sum(said.values()))} of {count(sum(states.values()), 'rule')} could not be judged "
        f"({listing(each)}): the report’s section “Rules” has the reasons."
    )


def _missing(analysis: Analysis) -> tuple[str, str]:
    """Returns what is missing to judge the run, and the one thing that would provide it."""
    if (gone := unrecorded(analysis)) > MOST_UNRECORDED and _knows_where_time_goes(analysis):
        return f"{share(gone, 1.0)} of the run’s samples are missing", WHY_UNRECORDED
    if _hides_a_device(analysis) and not analysis.unrecognised:
        return "the trace lists a GPU, but no work of it", NO_WORK
    if _hides_a_device(analysis):
        events = count(analysis.unrecognised, "event")
        said = f"{events} of the trace may be the work of a device, and are not understood"
        return said, " ".join((*analysis.damaged[:1], UNRECOGNISED))
    if own := unseen(analysis):
        return (
            f"{share(own, 1.0)} of the run is your own code, and hardly any of its lines was seen",
            LOOK_INSIDE,
        )
    if inside := fetching(analysis):
        spent = f"{share(inside, 1.0)} of the run is in graphs that fetch their batches"
        return f"{spent}: whether they compute or wait is not known", FETCH_OUTSIDE
    if (outside := _outside_steps(analysis)) > MOST_OUTSIDE:
        return f"{share(outside, 1.0)} of the run is before its first step or after its last", TRAIN_LONGER
    if early := unproven(analysis):
        what = uncapitalised(max(early, key=lambda found: found.seconds_lost).about.subject)
        return f"a run of {duration(analysis.run_seconds)} is too short to judge {what}", TRAIN_LONGER
    if idle := perhaps_idle(analysis):
        gpu, rule = idle
        return f"a GPU was used {percent(gpu.p95)} or less in 95 % of its readings", rule.finding
    if analysis.too_little:
        return analysis.too_little, CAPTURE_MORE
    if analysis.is_trace and not analysis.steps:
        seen = any(device.seconds for device in analysis.devices)
        return f"the trace marks no steps{'' if seen else ', and shows no device'}", CAPTURE_BOTH
    if Status.COLLECTING in counts(analysis) and not analysis.steps:
        return "no step has finished yet", analysis.no_steps
    if analysis.no_steps or not (analysis.steps or analysis.is_trace):
        return "no steps were seen, so only the machine was judged", analysis.no_steps or HOW_TO_SEE_STEPS
    yet = " yet" if Status.COLLECTING in counts(analysis) else ""
    data = analysis.result_of(DataStarved)
    if data is not None and not data.status.judged:
        reason = data.finding
    else:
        reasons = not_judged(analysis)
        (_, reason), _ = max(reasons.items(), key=lambda item: len(item[1]), default=((None, ""), []))
    if healthy := [rule for rule in decided(analysis) if rule.status is Status.HEALTHY]:
        risks = "risks, " if any(rule.about.effect is Effect.RISK for rule in healthy) else ""
        return f"only {risks}the start and pauses could be judged{yet}, not where the time goes", reason
    return f"nothing could be judged{yet}", reason


def _found(analysis: Analysis, found: list[Finding]) -> list[str]:
    """Says what cost most, what cost second most, and how many more problems there are."""
    if not found:
        return []
    first, *more = found
    sentences = [_first(analysis, first)]
    if more and more[0].seconds > 0:
        second, *more = more
        time, of, *_ = second.amounts
        comma = "," if second.of_run is not None else ""
        sentences.append(f"{second.problem.title} cost about {time}{comma} {of}{second.bill}.")
    if more:
        others = "one more thing was" if len(more) == 1 else f"{in_words(len(more))} more things were"
        sentences.append(f"{others.capitalize()} found.")
    return sentences


def _first(analysis: Analysis, finding: Finding) -> str:
    problem = finding.problem
    if finding.seconds > 0:
        return _lost(analysis, finding)
    if problem.is_risk:
        several = "" if problem.title.endswith("errors") else "s"
        return f"{problem.title} put{several} your run at risk; no time was lost."
    if problem.rule.about.topic == STANDSTILL:
        return f"{problem.title} stopped your run; for how long is not known."
    return f"{problem.title} may slow your run down; how much is not known."


def _lost(analysis: Analysis, finding: Finding) -> str:
    """Writes "Your run spent about 55 % of its time, 1 min 17 s of 2 min 20 s, waiting for data."."""
    problem = finding.problem
    has, so_far = ("", "") if analysis.finished else ("has ", " so far")
    if finding.of_run is None:  # the sum over ranks is no share of the run
        time = f"about {duration(finding.seconds)} of all ranks and GPUs together{finding.bill}"
    else:
        of = f"{duration(finding.seconds)} of {duration(analysis.run_seconds)}"
        time = f"about {share(finding.of_run, 1.0)} of its time{so_far}, {of}{finding.bill}"
    if problem.title.startswith("Waiting"):
        return f"Your run {has}spent {time}, {uncapitalised(problem.title)}."
    place = f": {problem.places[0].words}" if problem.places else ""
    return f"{problem.title} cost your run {time}{place}."
