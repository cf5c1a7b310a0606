"""Leads from a report: the command that made it, the run before, the other runs, the docs of rules."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stepscope.evaluation.analysis import Analysis
from stepscope.report.run_list import PAGE, ListedRun, find_before
from stepscope.report.shell import compare_command, shell_command, shell_words
from stepscope.runs.recording.files import holds_recording

HEURISTICS = "heuristics.md"  # the page of the docs with a section on each rule


@dataclass(frozen=True)
class Leads:
    """Leads of one report; those that are empty are left out."""

    command: str = ""  # as typed, without secrets
    again: str = ""  # writes the report again, with a parameter to change
    docs_url: str = ""  # of a copy of docs/
    before: ListedRun | None = None  # the newest earlier run with the same name
    compare: str = ""  # compares this run with it
    index: bool = False  # whether the folder of the run has an index page

    def docs(self, rule: str) -> str:
        """Returns the address of the rule's section in the docs, "" without docs."""
        return f"{self.docs_url}/{HEURISTICS}#{rule.lower()}" if self.docs_url else ""

    @property
    def before_link(self) -> str:
        """Returns the address of the report of the run before, relative to this report; "" without one."""
        if self.before is None or self.before.page is None:
            return ""
        return quote(os.fsencode(f"../{self.before.directory.name}/{PAGE}"))


def leads_of(
    analysis: Analysis, directory: Path, index: bool, typed: Sequence[str] = (), docs_url: str = ""
) -> Leads:
    """Returns the leads of a report in that directory. `typed`: the words of the command that writes it."""
    before = find_before(directory, analysis.name, analysis.date)
    settings = (  # of the first parameter of the first rule, to the value that it has
        f" --set {result.rule}.{name}={value}"
        for result in analysis.rules
        for name, value in result.parameters.items()
        if value is not None
    )
    again = f"stepscope report {shell_words([directory])}{next(settings, '')}"
    return Leads(
        command=shell_command(typed),
        again=again if holds_recording(directory) else "",
        docs_url=docs_url,
        before=before,
        compare="" if before is None else compare_command(before.directory, directory),
        index=index,
    )
