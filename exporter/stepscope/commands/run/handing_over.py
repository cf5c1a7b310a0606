"""Hands the live page over: it is served after the exporter has ended, until it has become the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepscope.commands.run.terminal import say

if TYPE_CHECKING:
    from stepscope.commands.run.plan import Plan


@contextmanager
def last_page(plan: Plan, watched: bool) -> Iterator[Callable[[bool], None]]:
    """Yields a function that waits until open pages show the report, if it was written.

    If no page is open, clients are refused from now on, so that none waits in vain.
    """
    if not watched:
        plan.listener.socket.close()
        yield lambda _: None
        return
    from stepscope.commands.run.last_page import LastPage

    page = LastPage(plan.listener, plan.directory / "report.html", plan.external_urls)

    def hand_over(written: bool) -> None:
        if written:
            say("waiting until the page in your browser shows the report (Ctrl-C skips this)", "dim")
            page.hand_over()

    try:
        yield hand_over
    finally:
        page.stop()
