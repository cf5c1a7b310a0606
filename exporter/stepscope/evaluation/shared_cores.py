"""How much a problem may also slow computing down: its cause uses cores that computing uses, too."""

from stepscope.evaluation.account import INTERPRETER_LOCK, Key, lines_of
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.places import Place
from stepscope.rules.data_starved import DataStarved
from stepscope.training.layout import PIPELINE_PYTHON, THREADS

# In three scripts of trials/everyday, with one worker on two full cores, a second worker saved 2 to 19 % of
# the time per step, and cheaper fetches 62 to 87 %.
CHEAPER = "Cheaper fetches also free cores that computing uses; more workers or parallel calls do not."


def shared_seconds(result: RuleResult, places: list[Place], analysis: Analysis) -> float:
    """Returns the most that computing can gain from the cores that the cause of a finding used, in seconds.

    That is their CPU seconds divided by the run's cores. It is 0 if there are cores for all, if GPUs compute,
    or if that is not known.
    """
    if "shared_seconds" in result.details:
        return float(result.details["shared_seconds"])
    account = analysis.account
    allowed = sum(cores.allowed for cores in analysis.run_cores)
    of_tensorflow = allowed if PIPELINE_PYTHON in analysis.gauges else 0.0  # as many as it may use
    threads = analysis.gauges.get(THREADS, of_tensorflow) * max(analysis.ranks, 1)
    used = _used_seconds(result, places, analysis)
    if account is None or not (allowed and threads and used) or analysis.uses_gpus:
        return 0.0
    if threads + used / account.seconds * account.ranks <= allowed:
        return 0.0
    return min(used / allowed, account.useful_share * account.seconds / account.ranks)


def _used_seconds(result: RuleResult, places: list[Place], analysis: Analysis) -> float:
    """Returns the CPU seconds of what loads data, or of other Python threads that are waited for."""
    if result.about.topic == DataStarved.topic:
        loaders = (loader for loader in analysis.loaders if loader["phase"] == "train" and loader["workers"])
        of_pipelines = analysis.gauges.get(PIPELINE_PYTHON, 0.0) * max(analysis.ranks, 1)
        return float(sum(loader["fetch_cpu_seconds"] for loader in loaders)) + of_pipelines
    waits_for_threads = result.details.get("component") == INTERPRETER_LOCK or (
        not result.is_of_a_rule and bool(places) and _waits_for_a_lock(places[0])
    )
    others = lines_of(Key("", INTERPRETER_LOCK), analysis.threads) if waits_for_threads else ()
    return sum(line.total for line in others)


def _waits_for_a_lock(place: Place) -> bool:
    seconds = place.line.seconds
    return max(seconds, key=lambda state: seconds[state], default="") == "lock"
