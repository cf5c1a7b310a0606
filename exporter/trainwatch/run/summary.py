"""The last words of `trainwatch run`: verdict, findings with advice, and where the report is."""

from __future__ import annotations

from pathlib import Path

from trainwatch.evaluation.analysis import Analysis
from trainwatch.run.terminal import say

FINDINGS = 3  # said on the terminal; the report has all of them


def say_summary(analysis: Analysis, report: Path) -> None:
    """A few lines, the most costly finding first."""
    fired = [rule for rule in analysis.rules if rule.status == "fired"]
    judged = sum(rule.status != "not judged" for rule in analysis.rules)
    if fired:
        causes = ", ".join(rule.rule for rule in fired)
        say(f"verdict: {causes}", "warning")
    elif judged:
        say(f"verdict: nothing found by {judged} {'rule' if judged == 1 else 'rules'}", "good")
    else:
        say("verdict: the run was too short to judge", "plain")
    for rule in fired[:FINDINGS]:
        say(f"  {rule.finding}")
        say(f"    {rule.recommendation}")
    if len(fired) > FINDINGS:
        say(f"  and {len(fired) - FINDINGS} more in the report")
    if not analysis.steps:
        say("no steps were recorded, so only the machine was judged. To see steps too, change the loop:")
        say('  import trainwatch; for batch in trainwatch.watch(loader): with trainwatch.step("train"): ...')
    say(f"report: {shown(report)}")


def shown(path: Path) -> str:
    """The path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
