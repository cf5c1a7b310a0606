"""How the report writes numbers: durations, shares, amounts, moments. Always UTC, always a unit."""

from __future__ import annotations

import math
from datetime import datetime, timezone

UNKNOWN = "not known"
NO_NUMBER = "–"


def duration(seconds: float | None) -> str:
    """Three digits of a short time ("12.3 ms"), two units of a long one ("2 h 05 min")."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    for unit, factor in (("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        amount = seconds * factor
        if amount < (59.5 if unit == "s" else 999.5):
            return f"{_three_digits(amount)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"


def share(part: float, whole: float) -> str:
    """`part` of `whole` in percent, with a digit after the point where the share is small."""
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return NO_NUMBER
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def amount(value: float, unit: str) -> str:
    """A value in percent or in bytes a second, as UsageRow gives it."""
    if not math.isfinite(value):
        return NO_NUMBER
    if unit != "B/s":
        return f"{value:.1f} {unit}"
    if abs(value) < 999.5:
        return f"{value:.0f} B/s"
    prefixes = "kMGT"
    power = min(int(math.log10(abs(value) * 1000 / 999.5)) // 3, len(prefixes))
    return f"{_three_digits(value / 1000**power)} {prefixes[power - 1]}B/s"


def energy_amount(joules: float) -> str:
    """ "1.25 kWh"; less than 0.01 kWh in joules."""
    if joules >= 36_000:
        return f"{_three_digits(joules / 3.6e6)} kWh"
    return f"{_three_digits(joules / 1000)} kJ" if joules >= 999.5 else f"{_three_digits(joules)} J"


def moment(time: float | None) -> str:
    """Date and time of day, in UTC."""
    return UNKNOWN if time is None else f"{_utc(time):%Y-%m-%d %H:%M:%S} UTC"


def time_of_day(time: float) -> str:
    return f"{_utc(time):%H:%M:%S} UTC"


def machine_time(time: float) -> str:
    """For the `datetime` attribute of a <time> element."""
    return f"{_utc(time):%Y-%m-%dT%H:%M:%SZ}"


def number(value: int) -> str:
    """1234567 as 1 234 567, with spaces that do not break."""
    return f"{value:,}".replace(",", "\u202f")


def in_words(value: int) -> str:
    """Small numbers as a sentence writes them."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[value] if 0 <= value < len(words) else number(value)


def count(value: int, singular: str, plural: str | None = None) -> str:
    """ "1 step", "2 steps"."""
    return f"{number(value)} {singular if value == 1 else plural or singular + 's'}"


def listing(words: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, timezone.utc)
