"""Durations in flags."""

from argparse import ArgumentTypeError

import pytest
from stepscope.common.durations import parse_duration, parse_speed, positive_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1s", 1),
        ("1m30s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d12h", 129600),
        ("1w", 604800),
        ("0s", 0),
        ("0.5", 0.5),
        (".25", 0.25),
        ("5", 5),
    ],
)
def test_durations_are_read_as_prometheus_reads_them_and_numbers_are_seconds(
    text: str, seconds: float
) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "fast", "1s1m", "-1s", "1.5s", " 1s", "-1", "nan", "inf", "1e3", "0.5.1", "."]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "9" * 5000 + "w", "999999999w", "2000w9999d"])
def test_a_duration_that_no_clock_can_wait_for_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"not a duration|longer than 30 years"):
        parse_duration(text)


def test_an_interval_cannot_be_nothing() -> None:
    assert positive_duration("1ms") == 0.001
    with pytest.raises(ArgumentTypeError, match="more than 0"):
        positive_duration("0s")


@pytest.mark.parametrize("text", ["0", "nan", "inf", "1e300", "1e-300", "-1", "fast"])
def test_a_speed_that_no_clock_can_follow_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be a number above 0"):
        parse_speed(text)
