"""The watchdog gives up only on what fails at every attempt, for long."""

import asyncio
import errno
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from stepscope.common.watchdog import ATTEMPTS, PATIENCE_SECONDS, Watchdog
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.sampler import Sampler
from stepscope.web.messages import Request
from stepscope.web.pages import Pages
from stepscope.web.serving import Serving

from tests.support.waiting import SECONDS

FULL = OSError(errno.EMFILE, "Too many open files")


class Watched:
    """A watchdog, its clock, and the signals that it has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.sent: list[int] = []
        self.dog = Watchdog()
        monkeypatch.setattr("stepscope.common.watchdog.monotonic", lambda: self.now)
        monkeypatch.setattr("stepscope.common.watchdog.os.kill", lambda _, number: self.sent.append(number))
        monkeypatch.setattr("stepscope.common.watchdog.signal.alarm", lambda _: 0)

    def fail(self, seconds: float, what: str = "work") -> None:
        self.now += seconds
        self.dog.failed(what, FULL)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_it_gives_up_once_on_what_fails_for_long(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        watched.fail(PATIENCE_SECONDS / 4)
    assert watched.sent == [signal.SIGTERM]
    assert watched.dog.gave_up
    assert caplog.messages == [
        "work has failed for 30 s, so this process ends to be started again: [Errno 24] Too many open files"
    ]


def test_one_success_in_between_is_a_new_beginning(watched: Watched) -> None:
    for _ in range(20):
        watched.fail(PATIENCE_SECONDS * 0.9)
        watched.fail(PATIENCE_SECONDS * 0.05)
        watched.dog.worked("work")
    assert watched.sent == []


def test_failures_of_different_kinds_do_not_add_up(watched: Watched) -> None:
    for what in ("accepting", "answering", "sampling"):
        watched.fail(PATIENCE_SECONDS, what)
    assert watched.sent == []


def test_a_stopped_process_that_goes_on_is_not_ended_at_its_first_failures(watched: Watched) -> None:
    watched.fail(0.0)
    for _ in range(ATTEMPTS - 2):
        watched.fail(10 * PATIENCE_SECONDS)
    watched.dog.worked("work")
    assert watched.sent == []


def test_a_sampler_that_can_start_no_thread_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry([])

    def refuse(_: Sample) -> None:
        watched.now += PATIENCE_SECONDS / ATTEMPTS
        if watched.sent:
            sampler.stop(0.0)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(registry, "collect", refuse)
    sampler = Sampler(registry, 0.001, watchdog=watched.dog)
    sampler.start()
    sampler._thread.join(SECONDS)
    assert watched.sent == [signal.SIGTERM]


def test_scrapes_that_cannot_be_produced_are_noticed_whatever_else_is_answered(watched: Watched) -> None:
    def scrape(*_: object) -> bytes:
        watched.now += PATIENCE_SECONDS / ATTEMPTS
        raise MemoryError

    exporter: Any = SimpleNamespace(scrape=scrape)
    serving = Serving(["127.0.0.1:0"])
    serving.watchdog = watched.dog
    pages = Pages(exporter, serving)
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(MemoryError):
            asyncio.run(pages.answer(Request("GET", "/metrics", {})))
        assert asyncio.run(pages.answer(Request("GET", "/-/healthy", {}))).status == 200
    assert watched.sent == [signal.SIGTERM]
