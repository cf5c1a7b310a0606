"""Isolation: a collector that fails or hangs costs its own metrics and nothing else."""

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import ClassVar

import pytest
from stepscope.common.users import user_name
from stepscope.exporter.sampling.apart import Apart
from stepscope.exporter.sampling.collector import Collector, SourceAbsentError
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample

from tests.support.waiting import SECONDS, wait_until


class Stub(Collector):
    """Publishes 1, or does what it was told to do instead."""

    name: ClassVar[str] = "stub"

    def __init__(self, name: str, act: Callable[[], object] = lambda: None) -> None:
        self.name = name  # type: ignore[misc]
        self.family = Family(f"{name}_value", "gauge", "A value.")
        self.families = (self.family,)
        self.act = act
        self.calls = 0
        self.closed = False

    def collect(self, sample: Sample) -> None:
        self.calls += 1
        self.act()
        self.family.publish({(): 1})

    def close(self) -> None:
        self.closed = True


class Failing:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        if self.error:
            raise self.error


def tick(registry: Registry) -> None:
    registry.collect(Sample(time=0.0))


def published(registry: Registry) -> dict[str, float]:
    return {family.name: family.samples[()] for family in registry.families() if () in family.samples}


def success(registry: Registry) -> dict[str, float]:
    family, *_ = registry.own_families
    return {labels[0]: value for labels, value in family.samples.items()}


def test_every_collector_is_read_and_timed() -> None:
    registry = Registry([Stub("a"), Stub("b")])
    tick(registry)
    assert published(registry) == {"a_value": 1, "b_value": 1}
    assert success(registry) == {"a": 1, "b": 1}
    _, duration, _ = registry.own_families
    assert all(seconds >= 0 for seconds in duration.samples.values())
    registry.close()


def test_a_failing_collector_publishes_nothing_and_the_others_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing(ValueError("two\nlines"))
    collectors = [Stub("a"), Stub("bad", failing), Stub("c")]
    registry = Registry(collectors)
    failing.error = None
    tick(registry)
    assert published(registry) == {"a_value": 1, "bad_value": 1, "c_value": 1}
    failing.error = ValueError("two\nlines")
    with caplog.at_level(logging.INFO):
        tick(registry)
        tick(registry)
    assert published(registry) == {"a_value": 1, "c_value": 1}
    assert success(registry) == {"a": 1, "bad": 0, "c": 1}
    assert caplog.messages == ["collector bad failed: ValueError: two lines"]  # once, on one line

    failing.error = None
    with caplog.at_level(logging.INFO):
        tick(registry)
    assert success(registry)["bad"] == 1
    assert caplog.messages[-1] == "collector bad works again"
    registry.close()


def test_a_source_that_this_node_does_not_have_is_noted_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry([Stub("absent", Failing(SourceAbsentError("no such device here")))])
    with caplog.at_level(logging.INFO):
        tick(registry)
        tick(registry)
    assert success(registry) == {}  # nothing is wrong
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "collector absent failed: no such device here")
    ]
    registry.close()


def test_a_hanging_collector_is_written_off_and_asked_again_when_it_has_returned() -> None:
    release = Event()
    hanging = Stub("hangs")
    before, behind = Stub("a"), Stub("z")
    registry = Registry([before, hanging, behind], patience=0.2)
    tick(registry)

    hanging.act = lambda: release.wait(SECONDS)
    tick(registry)
    assert success(registry) == {"a": 1, "hangs": 0, "z": 1}
    assert published(registry) == {"a_value": 1, "z_value": 1}
    assert behind.calls == 2
    tick(registry)
    assert (before.calls, hanging.calls, behind.calls) == (3, 2, 3)

    hanging.act = lambda: None
    release.set()
    while hanging.calls == 2:
        tick(registry)
    assert published(registry) == {"a_value": 1, "hangs_value": 1, "z_value": 1}
    assert success(registry) == {"a": 1, "hangs": 1, "z": 1}
    registry.close()


def test_what_a_hanging_collector_publishes_late_is_not_shown() -> None:
    release, returned = Event(), Event()
    hanging = Stub("hangs", lambda: release.wait(SECONDS))
    registry = Registry([hanging], patience=0.1)
    tick(registry)
    publish = hanging.family.publish

    def publish_and_tell(samples: dict[tuple[str, ...], float]) -> None:
        publish(samples)
        assert published(registry) == {}
        returned.set()

    hanging.family.publish = publish_and_tell  # type: ignore[method-assign, assignment]
    release.set()
    assert returned.wait(SECONDS)
    wait_until(lambda: not hanging.family.samples)
    assert published(registry) == {}
    registry.close()


def full_disk(_: Sample) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("too deep"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
)
def test_whatever_a_collector_raises_the_others_are_read(error: BaseException) -> None:
    failing = Failing(error)
    registry = Registry([Stub("bad", failing), Stub("z")])
    for _ in range(3):
        tick(registry)
    assert success(registry) == {"bad": 0, "z": 1}
    failing.error = None
    tick(registry)
    assert success(registry) == {"bad": 1, "z": 1}
    registry.close()


def test_a_sink_that_fails_is_logged_once_and_the_others_get_their_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: list[Sample] = []
    registry = Registry([], sinks={"recording": full_disk, "page": kept.append})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tick(registry)
    assert len(kept) == 3
    assert caplog.messages == ["recording failed: [Errno 28] No space left on device"]
    registry.close()


def test_a_sink_that_hangs_misses_samples_and_the_others_none() -> None:
    release = Event()
    kept: list[Sample] = []
    hung: list[Sample] = []

    def hang(sample: Sample) -> None:
        hung.append(sample)
        release.wait(SECONDS)

    registry = Registry([Stub("a")], patience=0.1, sinks={"page": hang, "recording": kept.append})
    for _ in range(5):
        tick(registry)
    assert (len(hung), len(kept)) == (1, 5)
    release.set()
    while len(hung) == 1:
        tick(registry)
    assert len(hung) == 2
    registry.close()


def test_a_slow_collector_is_waited_for_once_and_published_when_it_returns() -> None:
    release = Event()
    slow = Stub("slow", lambda: release.wait(SECONDS))
    registry = Registry([slow, Stub("z")], patience=8)
    reading = registry._readings[0]
    reading.seconds = 7.5  # at the last tick: so this tick waits for 0.5 s instead of 8 s
    tick(registry)
    assert published(registry) == {"z_value": 1}
    assert slow.calls == 1
    release.set()
    wait_until(lambda: not reading.still_busy())
    assert published(registry) == {"slow_value": 1, "z_value": 1}  # late, but of this moment
    assert reading.succeeded
    assert reading.seconds < 7.5
    registry.close()


def test_a_tick_waits_its_whole_patience_for_the_first_one_that_hangs_and_not_for_others() -> None:
    held = [Event(), Event()]
    acts: list[Callable[[], object]] = [lambda: None, lambda: None]
    stubs = [Stub("a", lambda: acts[0]()), Stub("b", lambda: acts[1]()), Stub("c")]
    registry = Registry(stubs, patience=4.0)
    tick(registry)
    acts[:] = [event.wait for event in held]
    tick(registry)
    assert success(registry) == {"a": 0, "b": 1, "c": 1}  # nobody has waited long enough to call b hanging
    assert stubs[2].calls == 2
    for event in held:
        event.set()
    acts[:] = [lambda: None, lambda: None]

    def works() -> bool:
        tick(registry)
        return success(registry) == {"a": 1, "b": 1, "c": 1}

    wait_until(works)
    registry.close()


def test_what_a_late_collector_fills_in_is_not_in_the_sample_that_was_passed_on() -> None:
    release = Event()

    class Late(Stub):
        def collect(self, sample: Sample) -> None:
            release.wait(SECONDS)
            sample.memory_used_bytes = 1.0

    kept: list[Sample] = []
    registry = Registry([Late("late")], patience=0.1, sinks={"recording": kept.append})
    tick(registry)
    release.set()
    wait_until(lambda: not registry._readings[0].still_busy())
    assert kept[0].memory_used_bytes != 1.0
    registry.close()


def test_closing_closes_every_collector_though_one_refuses() -> None:
    refusing, other = Stub("a"), Stub("b")
    refusing.close = Failing(RuntimeError("no"))  # type: ignore[method-assign]
    registry = Registry([refusing, other])
    tick(registry)
    registry.close()
    assert other.closed


class TestTheLogOfAFailure:
    """A failure is a line at its begin, one when it has lasted, one at its end; never one per tick."""

    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        self.now = 1000.0
        monkeypatch.setattr("stepscope.exporter.sampling.registry.monotonic", lambda: self.now)
        caplog.set_level(logging.INFO)
        self.failing = Failing(None)
        self.registry = Registry([Stub("bad", self.failing)])
        yield
        self.registry.close()

    def tick(self, error: Exception | None) -> None:
        self.failing.error = error
        tick(self.registry)
        self.now += 0.5

    def test_a_collector_that_fails_for_a_minute_says_so_once_with_the_file_and_its_owner(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path))
        for _ in range(400):
            self.tick(error)
        self.tick(None)
        said = f"[Errno 21] Is a directory: '{tmp_path}' (a file of user {user_name(os.getuid())})"
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("WARNING", f"collector bad failed: {said}"),
            ("ERROR", f"collector bad has failed for 60 s: {said}"),
            ("INFO", "collector bad works again"),
        ]

    def test_another_file_per_tick_is_not_another_line_per_tick(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(240):  # two minutes, and every second tick succeeds
            self.tick(OSError(errno.EIO, "Input/output error", f"/nowhere/{number}"))
            self.tick(None)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 4
        assert "/nowhere/0" in caplog.messages[0]


def test_what_is_about_one_item_costs_that_item_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    apart, seen = Apart("collector stub"), []

    def act(names: Mapping[str, int]) -> None:
        seen.append(list(names))
        if 0 in names.values():
            raise ValueError("is nothing")

    for _ in range(3):
        apart.together("run {}".format, {"a": 1, "b": 0, "c": 2}, act)
    assert seen[-1] == ["a", "c"]
    assert apart.lost == 3
    assert caplog.messages == ["collector stub left out run b: ValueError: is nothing"]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_what_is_about_the_whole_process_fails_the_collector(error: Exception) -> None:
    with pytest.raises(type(error)):
        Apart("collector stub").together("run {}".format, {"a": 1, "b": 2}, Failing(error))
