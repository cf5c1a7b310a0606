"""The last lines of `trainwatch run`: verdict, findings with advice, and the report's path."""

from __future__ import annotations

from pathlib import Path

from trainwatch.evaluation.analysis import Analysis
from trainwatch.report.sentences import counts
from trainwatch.run.terminal import say
from trainwatch.status import Status
from trainwatch.words import count

FINDINGS = 3  # on the terminal; the report has all


def say_summary(analysis: Analysis, report: Path) -> None:
    """Prints a few lines, the most costly finding first."""
    found = [rule for rule in analysis.rules if rule.status is Status.FOUND]
    states = counts(analysis)
    if found:
        say(f"verdict: found {', '.join(rule.rule for rule in found)}", "warning")
    elif Status.HEALTHY in states:
        say(f"verdict: healthy, nothing found by {count(states[Status.HEALTHY], 'rule')}", "good")
    else:
        say("verdict: not enough data, the run was too short to judge")
    for rule in found[:FINDINGS]:
        say(f"  {rule.finding}")
        say(f"    {rule.recommendation}")
    if len(found) > FINDINGS:
        say(f"  and {len(found) - FINDINGS} more in the report")
    if not analysis.steps:
        say("no steps were recorded, so only the machine was judged. To record steps, change the loop:")
        say('  import trainwatch; for batch in trainwatch.watch(loader): with trainwatch.step("train"): ...')
    say(f"report: {shown(report)}")


def shown(path: Path) -> str:
    """Returns the path, relative to the current directory if it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
