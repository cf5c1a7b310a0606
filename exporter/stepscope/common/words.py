"""The one place that turns a number into text, for terminal, report, comparison, cross-check and rules alike.

The same thing is always spelt the same way, to the same precision. Units follow the SI: number, space, unit.
Moments are in UTC.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

UNKNOWN = "not known"
NO_NUMBER = "–"
JOULES_PER_KWH = 3.6e6
ALIKE_POINTS, ALIKE = 2.0, 0.1  # ranks are similar if their percentages differ less: points, share


def duration(seconds: float | None) -> str:
    """Returns three digits of a short time ("12.3 ms") and two units of a long one ("2 h 05 min")."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return _minus(duration(-seconds))
    if seconds == 0:
        return "0 s"
    for unit, factor in (("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        amount = seconds * factor
        if amount < (59.95 if unit == "s" else 999.5):
            return f"{three_digits(amount)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"


def signed_duration(seconds: float) -> str:
    """Returns the same with a sign: "+38.0 ms"."""
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)


def rough_duration(seconds: float) -> str:
    """Returns two digits of a predicted time: "340 ms", "5 min 20 s", "2 h 10 min"."""
    for step in (3600, 600, 60, 10):
        if seconds >= 10 * step:
            return duration(step * round(seconds / step))
    rounded = duration(float(f"{seconds:.2g}"))
    return re.sub(r"\.(\d*?)0+ ", lambda tail: f".{tail[1]} " if tail[1] else " ", rounded)


def percent(value: float) -> str:
    """Returns a percentage as sentences say it: "71 %"; a small one with a digit more: "9.4 %"."""
    if not math.isfinite(value):
        return NO_NUMBER
    if value < 0:
        return _minus(percent(-value)) if value <= -0.1 else "0 %"
    if 0 < value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def exact_percent(value: float) -> str:
    """Returns a percentage for a table or next to a threshold: "70.5 %"."""
    return f"{value:.1f} %" if math.isfinite(value) else NO_NUMBER


def share(part: float, whole: float) -> str:
    """Returns `part` of `whole` in percent."""
    return percent(100 * part / whole) if whole > 0 else NO_NUMBER


def change(ratio: float) -> str:
    """Returns a relative change: "+3.4 %", "−12.0 %"; a large one as a multiple: "× 12.0"."""
    if not math.isfinite(ratio):
        return NO_NUMBER
    if ratio >= 9.995:
        return f"× {number(1 + ratio)}"
    size = 100 * abs(ratio)
    if size < 0.05:
        return "0 %"
    return f"{'−' if ratio < 0 else '+'}{f'{size:.1f}' if size < 99.95 else f'{size:.0f}'} %"


def points(difference: float) -> str:
    """Returns how much a percentage changed: "+4.2 points", "−46.3 points"."""
    if not math.isfinite(difference):
        return NO_NUMBER
    size = f"{abs(difference):.1f}"
    return "0 points" if size == "0.0" else f"{'−' if difference < 0 else '+'}{size} points"


def span(low: float, high: float) -> str:
    """Returns a range of percentages: "24–31 %", or one of them where both read the same."""
    least, most = percent(low), percent(high)
    return most if least == most else f"{least.removesuffix(' %')}–{most}"


def size(amount: float) -> str:
    """Returns bytes with an SI prefix: "512 B", "1.50 GB"."""
    if not math.isfinite(amount):
        return NO_NUMBER
    if amount < 0:
        return _minus(size(-amount))
    if amount < 999.5:
        return f"{amount:.0f} B"
    prefixes = "kMGTPE"
    power = 1
    while power < len(prefixes) and amount / 1000**power >= 999.5:
        power += 1
    return f"{three_digits(amount / 1000**power)} {prefixes[power - 1]}B"


def rate(bytes_per_second: float) -> str:
    """Returns bytes per second with an SI prefix: "1.50 GB/s"."""
    text = size(bytes_per_second)
    return text if text == NO_NUMBER else f"{text}/s"


def pace(steps_per_second: float) -> str:
    """Returns "12.3 steps/s", or "4.20 s per step" if it is less than one."""
    if steps_per_second >= 1:
        return f"{number(steps_per_second)} steps/s"
    return f"{duration(1 / steps_per_second)} per step"


def energy(joules: float) -> str:
    """Returns "0.209 kWh"; less than 0.01 kWh in joules: "12.3 kJ"."""
    if not math.isfinite(joules):
        return NO_NUMBER
    if joules < 0:
        return _minus(energy(-joules))
    if joules >= 0.01 * JOULES_PER_KWH:
        return f"{three_digits(joules / JOULES_PER_KWH)} kWh"
    return f"{three_digits(joules / 1000)} kJ" if joules >= 999.5 else f"{three_digits(joules)} J"


def rough_energy(joules: float) -> str:
    """Returns two digits of what is only derived from a mean: "0.18 kWh"."""
    kwh = joules / JOULES_PER_KWH
    return f"{number(float(f'{kwh:.2g}'))} kWh" if kwh >= 0.01 else energy(joules)


def money(dollars: float) -> str:
    """Returns dollars as on a bill: "$6.16"; less than a dollar to three digits if need be: "$0.0209"."""
    if dollars < 0:
        return _minus(money(-dollars)) if dollars <= -0.0001 else "$0.00"
    if 0 < dollars < 0.0001:
        return "less than $0.0001"
    if 0 < dollars < 0.995:
        return "$" + re.sub(r"(\.\d\d.*?)0+$", r"\1", three_digits(dollars))
    return f"${dollars:,.2f}"


def rough_money(dollars: float) -> str:
    """Returns two digits of predicted dollars: "$1.30", "$410.00"."""
    return money(float(f"{dollars:.2g}"))


def number(value: float) -> str:
    """Returns 1234567 as 1 234 567, grouped from five digits on, and a fraction to three digits."""
    if not math.isfinite(value):
        return NO_NUMBER
    if value < 0:
        return _minus(number(-value))
    if value != round(value) and value < 999.5:
        text = three_digits(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.0f}" if value < 9999.5 else f"{value:,.0f}".replace(",", "\u202f")


def gauge(value: float) -> str:
    """Returns a number that a training published: "0.209", "NaN", "infinite"."""
    return number(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def three_digits(value: float) -> str:
    """Returns a positive number to three significant digits: "0.209", "12.3"; from 1000 on, all of them."""
    power = int(f"{value:.2e}".partition("e")[2])  # of ten, once rounded
    return f"{value:.{max(0, 2 - power)}f}"


def amount(value: float | None, unit: str) -> str:
    """Returns a figure in its unit: s, $, J, %, B, B/s, or any unit that follows a number."""
    if value is None:
        return NO_NUMBER
    if unit in _WRITERS:
        return _WRITERS[unit](value)
    return f"{number(value)} {unit}".rstrip()


def in_words(value: int) -> str:
    """Returns small numbers as a sentence writes them: "two"."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[value] if 0 <= value < len(words) else number(value)


def ordinal(value: int) -> str:
    """Returns "1st", "12th", "23rd"."""
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{ending}"


def count(value: int, singular: str, plural: str | None = None) -> str:
    """Returns "1 step", "2 steps"."""
    return f"{number(value)} {singular if value == 1 else plural or singular + 's'}"


def listing(words: list[str]) -> str:
    """Returns "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def in_columns(rows: Sequence[Sequence[str]], words: int) -> Iterator[str]:
    """Yields the rows of a table; all but the first columns, which hold `words`, are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def uncapitalised(sentence: str) -> str:
    """Returns the sentence for after a colon; an abbreviation stays."""
    return sentence if sentence[:3].isupper() else sentence[:1].lower() + sentence[1:]


def others(percents: Sequence[float], thing: str) -> str:
    """Writes "; the other ranks: 1 % to 3 %", which a culprit is compared with; "" without others."""
    if not percents:
        return ""
    least, most = percent(min(percents)), percent(max(percents))
    several = "s" if len(percents) > 1 else ""
    return f"; the other {thing}{several}: {least if least == most else f'{least} to {most}'}"


def all_of(amount: int, thing: str) -> str:
    """Returns "both ranks", "all 8 ranks"."""
    return f"{'both' if amount == 2 else f'all {number(amount)}'} {thing}s"


def others_of(amount: int, whole: int, thing: str) -> str:
    """Returns "all 7 other GPUs", "the other GPU", "3 of 7 other GPUs", with one of `whole` named."""
    if amount < whole - 1:
        return f"{number(amount)} of {number(whole - 1)} other {thing}s"
    return f"the other {thing}" if amount == 1 else f"all {number(amount)} other {thing}s"


def ranks_spent(rank: int, mine: float, peers: Sequence[float], did: str, of: str, seconds: float) -> str:
    """Writes "Rank 5 waited for data for 47 % of its step time (4 min 35 s); the other ranks: 1 % to 3 %".

    Similar ranks are named together, and a single process is no rank. Shares are in percent.
    """
    most, least = max((mine, *peers)), min((mine, *peers))
    if peers and most - least <= max(ALIKE_POINTS, ALIKE * most):
        who = capitalised(all_of(len(peers) + 1, "rank"))
        return f"{who} {did} for {span(least, most)} of their {of} (up to {duration(seconds)} each)"
    who = f"Rank {rank}" if peers else "The training process"
    return f"{who} {did} for {percent(mine)} of its {of} ({duration(seconds)}){others(peers, 'rank')}"


def too_few(things: str, most: float, patience: float) -> str:
    """Says why nothing was judged: there were at most `most`, and `patience` are not enough."""
    return f"Too few {things}: {number(most)}, and a decision needs more than {number(patience)}."


def moment(time: float | None) -> str:
    """Returns date and time of day."""
    return UNKNOWN if time is None else f"{_utc(time):%Y-%m-%d %H:%M:%S} UTC"


def day(time: float) -> str:
    return f"{_utc(time):%Y-%m-%d}"


def time_of_day(time: float) -> str:
    return f"{_utc(time):%H:%M:%S} UTC"


def day_and_time(time: float) -> str:
    """Returns a moment on an axis of days: "11-20 13:27"."""
    return f"{_utc(time):%m-%d %H:%M}"


def machine_time(time: float, precision: str = "seconds") -> str:
    """Returns a moment for programs, as RFC 3339 has it."""
    return _utc(time).isoformat(timespec=precision).replace("+00:00", "Z")


_WRITERS: dict[str, Callable[[float], str]] = {
    "s": duration,
    "$": money,
    "J": energy,
    "%": exact_percent,
    "B": size,
    "B/s": rate,
}


def _minus(text: str) -> str:
    return f"−{text}"


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
