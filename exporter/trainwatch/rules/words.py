"""How findings write amounts."""

from __future__ import annotations


def seconds(value: float) -> str:
    """ "12.3 ms", "1.23 s", "75 s" """
    if value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def ordinal(number: int) -> str:
    """ "1st", "12th", "23rd" """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def count(number: int, thing: str) -> str:
    """ "1 worker", "2 workers" """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(value: float) -> str:
    """Seconds as "45 s", "12 min", "3.4 h", "2.1 days" """
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.0f} {unit}" if value >= 10 * size else f"{value / size:.2g} {unit}"
    return f"{value:.0f} s"


def too_few(things: str, most: int, patience: float) -> str:
    """Why nothing was judged: there were at most `most`, and `patience` are not enough."""
    return f"Too few {things}: {most}, and a decision needs more than {patience}."
