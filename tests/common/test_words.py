"""One voice: every number has one spelling, with a unit, whatever surface it is on."""

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common import words

AMOUNTS = st.floats(min_value=1e-9, max_value=1e15)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-6, "2.50 µs"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (75, "1 min 15 s"),
        (431, "7 min 11 s"),
        (3599.9, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86_399, "1 d 00 h"),
        (90_000, "1 d 01 h"),
        (1e6, "11 d 14 h"),
        (-3, "−3.00 s"),
        (None, "not known"),
        (math.nan, "not known"),
    ],
)
def test_durations_have_three_digits_or_two_units(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0577, "58 ms"), (0.4, "400 ms"), (12.04, "12 s"), (325, "5 min 20 s"), (5016, "1 h 24 min")],
)
def test_predicted_times_have_two_digits(seconds: float, text: str) -> None:
    assert words.rough_duration(seconds) == text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (words.percent, 0.0, "0 %"),
        (words.percent, 0.04, "< 0.1 %"),
        (words.percent, 9.94, "9.9 %"),
        (words.percent, 9.96, "10 %"),
        (words.percent, 70.46, "70 %"),
        (words.percent, -3.25, "−3.2 %"),
        (words.percent, -0.01, "0 %"),
        (words.percent, math.nan, "–"),
        (words.exact_percent, 70.46, "70.5 %"),
        (words.exact_percent, 0.0, "0.0 %"),
        (words.exact_percent, math.nan, "–"),
        (words.change, 0.034, "+3.4 %"),
        (words.change, -0.12, "−12.0 %"),
        (words.change, -0.0001, "0 %"),
        (words.change, 1.5, "+150 %"),
        (words.change, 11.0, "× 12"),
        (words.change, math.inf, "–"),
        (words.size, 999.4, "999 B"),
        (words.size, 80e9, "80.0 GB"),
        (words.size, -1500, "−1.50 kB"),
        (words.size, 7e21, "7000 EB"),
        (words.rate, 0, "0 B/s"),
        (words.rate, 999.6, "1.00 kB/s"),
        (words.rate, 2.5e12, "2.50 TB/s"),
        (words.rate, math.nan, "–"),
        (words.energy, 0.0, "0.00 J"),
        (words.energy, 0.5, "0.500 J"),
        (words.energy, 999.6, "1.00 kJ"),
        (words.energy, 36_000, "0.0100 kWh"),
        (words.energy, 752_400, "0.209 kWh"),
        (words.energy, 3.6e10, "10000 kWh"),
        (words.energy, -7.2e6, "−2.00 kWh"),
        (words.money, 0, "$0.00"),
        (words.money, 0.00002, "less than $0.0001"),
        (words.money, 0.0209, "$0.0209"),
        (words.money, 0.5, "$0.50"),
        (words.money, 0.02, "$0.02"),
        (words.money, 0.999, "$1.00"),
        (words.money, 6.1573, "$6.16"),
        (words.money, 1234.5, "$1,234.50"),
        (words.money, -1.5, "−$1.50"),
        (words.number, 1234567, "1\u202f234\u202f567"),
        (words.number, 9999.4, "9999"),
        (words.number, 9999.5, "10\u202f000"),
        (words.number, 3.0, "3"),
        (words.number, 1.8, "1.8"),
        (words.number, 2.345, "2.35"),
        (words.number, -0.5, "−0.5"),
        (words.in_words, 0, "no"),
        (words.in_words, 9, "nine"),
        (words.in_words, 10, "10"),
        (words.ordinal, 1, "1st"),
        (words.ordinal, 12, "12th"),
        (words.ordinal, 23, "23rd"),
        (words.ordinal, 111, "111th"),
        (words.moment, 0.0, "1970-01-01 00:00:00 UTC"),
        (words.moment, None, "not known"),
        (words.time_of_day, 3661.0, "01:01:01 UTC"),
        (words.machine_time, 0.0, "1970-01-01T00:00:00Z"),
        (words.listing, [], ""),
        (words.listing, ["a"], "a"),
        (words.listing, ["a", "b", "c"], "a, b and c"),
        (words.capitalised, "no GPU", "No GPU"),
    ],
)
def test_one_spelling(write: Callable[[object], str], value: object, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.count(1, "step"), "1 step"),
        (words.count(0, "step"), "0 steps"),
        (words.count(2000, "class", "classes"), "2000 classes"),
        (words.share(1, 3), "33 %"),
        (words.share(0.0004, 1), "< 0.1 %"),
        (words.amount(90.0, "s"), "1 min 30 s"),
        (words.amount(12.34, "%"), "12.3 %"),
        (words.amount(1.7283, "steps/s"), "1.73 steps/s"),
        (words.amount(100.0, ""), "100"),
        (words.amount(None, "s"), "–"),
        (words.share(1, 0), "–"),
        (words.span(23.6, 31.2), "24–31 %"),
        (words.span(23.6, 24.4), "24 %"),
    ],
)
def test_counts_shares_and_ranges(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(min_value=1e-8, max_value=1e9))
def test_a_duration_never_reads_as_a_full_unit_of_the_next(seconds: float) -> None:
    text = words.duration(seconds)
    assert not re.search(r"(?<![.\d])(1000 (µs|ms)|60(\.0)? s|60 min|24 h|1 days)", text), text
    assert re.fullmatch(r"[\d.]+ (µs|ms|s)|\d+ min( \d\d s)?|\d+ h \d\d min|\d+ d \d\d h", text), text


UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400}
UNITS |= {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
UNITS |= {"J": 1, "kJ": 1e3, "kWh": 3.6e6, "%": 1, "$": 1}


def read(text: str) -> float:
    """The number that a text says, in the base unit."""
    text = re.sub(r"^\$(.*)", r"\1 $", text.replace(",", "").replace("less than $", "$").replace("< ", ""))
    parts = text.removeprefix("−").split()
    value = sum(float(number) * UNITS[unit] for number, unit in zip(parts[::2], parts[1::2], strict=True))
    return -value if text.startswith("−") else value


WRITERS = (words.duration, words.size, words.energy, words.money, words.percent)


@pytest.mark.parametrize("write", WRITERS)
@given(one=AMOUNTS, other=AMOUNTS)
def test_a_larger_amount_never_reads_as_a_smaller_one(
    write: Callable[[float], str], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert read(write(low)) <= read(write(high)) * (1 + 1e-12)


@pytest.mark.parametrize("write", WRITERS)
@given(amount=AMOUNTS)
def test_what_is_written_is_the_amount(write: Callable[[float], str], amount: float) -> None:
    assert read(write(amount)) == pytest.approx(amount, rel=0.051, abs=0.1 if write is words.percent else 1)


@pytest.mark.parametrize("write", [*WRITERS, words.rate, words.change])
@given(amount=st.floats(min_value=1.0, max_value=9.0))
def test_a_loss_is_the_gain_with_a_minus(write: Callable[[float], str], amount: float) -> None:
    assert write(-amount) == f"−{write(amount).removeprefix('+')}"


@pytest.mark.parametrize(
    ("percents", "said"),
    [
        ([], ""),
        ([3.0], "; the other rank: 3.0 %"),
        ([3.0, 3.0], "; the other ranks: 3.0 %"),
        ([40.0, 3.0, 7.0], "; the other ranks: 3.0 % to 40 %"),
    ],
)
def test_a_culprit_is_compared_with_the_others(percents: list[float], said: str) -> None:
    assert words.others(percents, "rank") == said


@pytest.mark.parametrize(
    ("amount", "whole", "said"),
    [(1, 2, "the other GPU"), (7, 8, "all 7 other GPUs"), (1, 8, "1 of 7 other GPUs")],
)
def test_what_is_like_the_one_that_was_named_is_told_from_what_is_not(
    amount: int, whole: int, said: str
) -> None:
    assert words.others_of(amount, whole, "GPU") == said
