"""Limits: what is above one is left out, counted and named; the choice does not flap."""

import logging
import re
from argparse import ArgumentParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.sampling.limits import NAMED, Choice, Limits, ReachedLimits, add_limit_flags, cut


def reached(limits: ReachedLimits, limit: str) -> float:
    return limits.families[0].samples[(limit,)]


def left_out(limits: ReachedLimits) -> dict[tuple[str, ...], float]:
    return dict(limits.families[1].samples)


def parsed(*words: str) -> Limits:
    parser = ArgumentParser()
    add_limit_flags(parser)
    return Limits.from_flags(vars(parser.parse_args(words)))


def test_every_limit_is_a_flag_with_its_default() -> None:
    assert parsed() == Limits()
    assert parsed("--limit.series=5", "--limit.label-length=16") == Limits(series=5, label_length=16)


@pytest.mark.parametrize("word", ["0", "-1", "many", "1e4", "1" * 10, "--limit.label-length=15"])
def test_a_limit_that_is_no_count_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(word if word.startswith("--") else f"--limit.runs={word}")
    assert "must be a whole number from" in capsys.readouterr().err


def test_live_runs_go_before_dead_ones_and_older_before_newer() -> None:
    kept, rest = Choice[str]().of({"dead": False, "old": True, "new": True, "newest": True}, 2)
    assert (kept, rest) == (["old", "new"], ["newest", "dead"])


def test_a_run_that_was_kept_stays_when_an_older_one_returns() -> None:
    choice = Choice[str]()
    assert choice.of({"a": True, "b": True, "c": True}, 2)[1] == ["c"]
    assert choice.of({"a": False, "b": True, "c": True}, 2)[1] == ["a"]  # it ended: its place is free
    for _ in range(3):
        assert choice.of({"a": True, "b": True, "c": True}, 2)[1] == ["a"]  # restarted: c keeps its place


@given(st.lists(st.dictionaries(st.integers(0, 9), st.just(True), max_size=10), max_size=20))
def test_among_live_names_none_that_stays_is_ever_replaced(calls: list[dict[int, bool]]) -> None:
    choice, kept = Choice[int](), set[int]()
    for live in calls:
        now = set(choice.of(live, 4)[0])
        assert len(now) == min(4, len(live))
        assert kept & live.keys() <= now
        kept = now


def test_no_user_crowds_out_another_and_the_choice_stays() -> None:
    choice = Choice[str]()
    owners = {"a1": 1, "a2": 1, "a3": 1, "a4": 1, "b1": 2, "c1": 3}
    runs = dict.fromkeys(("a1", "a2", "a3", "a4"), True)
    assert choice.of(runs, 3, owners=owners)[1] == ["a4"]
    for _ in range(3):
        assert choice.of({**runs, "b1": True}, 3, owners=owners)[1] == ["a3", "a4"]
    for _ in range(3):
        assert choice.of({**runs, "c1": True, "b1": True}, 3, owners=owners)[1] == ["a2", "a3", "a4"]
    assert choice.of({**runs, "c1": False, "b1": True}, 3, owners=owners)[1] == ["a3", "a4", "c1"]


def test_what_is_left_out_is_named_counted_once_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    limits = ReachedLimits(Limits(runs=2), clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            limits.report("runs", {"train-3": 1})
    assert left_out(limits) == {("runs", "train-3", ""): 1}
    assert reached(limits, "runs") == 1
    assert caplog.messages == ["--limit.runs 2 is reached: 1 left out (train-3); raise the limit"]
    with caplog.at_level(logging.WARNING):
        limits.report("runs", {"train-3": 1, "train-4": 1})
        assert len(caplog.messages) == 1  # at most one line per minute
        now[0] = 61.0
        limits.report("runs", {"train-3": 1, "train-4": 1})
    assert "train-4" in caplog.messages[1]
    limits.report("runs", {})
    assert left_out(limits) == {}
    assert reached(limits, "runs") == 2


def test_devices_are_named_by_their_collector() -> None:
    limits = ReachedLimits()
    limits.report("devices", {"": 9488}, collector="network")
    limits.report("devices", {"": 3}, collector="disk")
    assert left_out(limits) == {("devices", "", "network"): 9488, ("devices", "", "disk"): 3}


def test_ten_thousand_runs_above_a_limit_are_a_few_series() -> None:
    limits = ReachedLimits()
    limits.report("runs", {f"run-{number}": 1 for number in range(10_000)})
    assert len(left_out(limits)) == NAMED + 1
    assert sum(left_out(limits).values()) == 10_000


def test_a_label_that_is_cut_shows_it_and_stays_unique() -> None:
    assert cut("train-7", 16) == "train-7"
    one, other = cut("x" * 500 + "1", 32), cut("x" * 500 + "2", 32)
    assert one != other
    assert re.fullmatch("x{21}…[0-9a-f]{8}", one)


@given(st.text(st.characters(), max_size=60), st.integers(16, 64))
def test_a_cut_label_is_utf_8_of_at_most_that_many_bytes(text: str, most: int) -> None:
    assert len(cut(text, most).encode()) <= most


def test_two_names_that_differ_only_in_bytes_that_are_not_utf_8_stay_two() -> None:
    names = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in (0x80, 0x81)]
    assert len({cut(name, 64) for name in names}) == 2
