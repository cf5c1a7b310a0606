"""How a comparison writes amounts and changes."""

from __future__ import annotations

from trainwatch.compare.figures import Figure
from trainwatch.report import cost
from trainwatch.report.wording import NO_NUMBER, amount, duration
from trainwatch.report.wording import number as count_of

JOULES_A_KWH = 3.6e6


def value(number: float | None, unit: str) -> str:
    """A figure with its unit, as Figure names it."""
    if number is None:
        return NO_NUMBER
    if unit == "s":
        return duration(number)
    if unit == "$":
        return money(number)
    if unit == "J":
        return energy(number)
    if unit in ("%", "B/s"):
        return amount(number, unit)
    return f"{three_digits(number)} {unit}".rstrip()


def money(dollars: float) -> str:
    """As on a bill; what is less than a dollar to three digits, since short runs are compared, too."""
    if 0 < abs(dollars) < 0.995:
        return f"{'−' if dollars < 0 else ''}${abs(dollars):.3g}"
    return cost.money(dollars)


def saved(before: float, after: float) -> float:
    """The share that is saved: of amounts as they are written, so that a reader gets the same from them."""
    return cost.saving(before, after) if before >= 0.995 else (before - after) / before if before else 0.0


def energy(joules: float) -> str:
    """Joules for a step, kWh for a run."""
    if abs(joules) < 0.01 * JOULES_A_KWH:
        return f"{three_digits(joules)} J"
    return f"{three_digits(joules / JOULES_A_KWH)} kWh"


def three_digits(number: float) -> str:
    """A number that is no whole one to three digits; 1234 as it is."""
    if number == round(number) or abs(number) >= 999.5:
        return count_of(round(number))
    return f"{number:.3g}"


def signed_percent(ratio: float) -> str:
    """ "+3.4 %", "−12 %"; what is far off as a multiple: "× 12"."""
    if ratio >= 9.995:
        return f"× {three_digits(1 + ratio)}"
    percent = 100 * ratio
    digits = f"{abs(percent):.1f}" if abs(percent) < 99.95 else f"{abs(percent):.0f}"
    return f"{'−' if percent < 0 else '+'}{digits} %" if float(digits) else "0 %"


def change_of(figure: Figure) -> str:
    """The change, with the interval where there is one; "no difference seen" where it contains zero."""
    if figure.change is None:
        return NO_NUMBER
    if figure.interval is None:
        return change_in_percent(figure)
    between = f"{signed_percent(figure.interval.low)} to {signed_percent(figure.interval.high)}"
    if not figure.interval.seen:
        return f"no difference seen ({between})"
    return f"{change_in_percent(figure)} ({between})"


def change_in_percent(figure: Figure) -> str:
    """Of money as it is written, so that a reader gets the same from the two amounts."""
    if figure.unit == "$" and figure.a and figure.b is not None:
        return signed_percent(-saved(figure.a, figure.b))
    return NO_NUMBER if figure.change is None else signed_percent(figure.change)
