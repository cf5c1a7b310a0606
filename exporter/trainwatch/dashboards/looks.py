"""Colours, thresholds and words that all panels share.

Colours are Okabe and Ito's, which people tell apart whatever their eyes, and which show on a dark page as on
a light one (https://jfly.uni-koeln.de/color/; its black and yellow, which do not, are left out). Meaning is
never in the colour alone: states are words, lines have legends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainwatch.dashboards.queries import THRESHOLD

Override = dict[str, Any]

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE, GREY = "#E69F00", "#D55E00", "#CC79A7", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#B9A44C", GREY, "#7F6BB3")

SEVERITY = {"critical": VERMILION, "warning": ORANGE, "info": SKY}


def by_name(name: str, **properties: Any) -> Override:
    """What one series or column looks like; properties by their id, with `__` for a dot."""
    return _override("byName", name, properties)


def by_pattern(pattern: str, **properties: Any) -> Override:
    """The same for all whose name matches a regular expression."""
    return _override("byRegexp", f"/{pattern}/", properties)


def coloured(names: Iterable[str]) -> list[Override]:
    """Each of the names in a colour of its own."""
    return [by_name(name, color=fixed(PALETTE[number % len(PALETTE)])) for number, name in enumerate(names)]


def numbered(word: str, count: int = 8) -> list[Override]:
    """`GPU 0`, `GPU 1`, ...: each number in a colour of its own, on whatever node it is."""
    return [
        by_pattern(rf"\b{word} 0*{number}\b", color=fixed(PALETTE[number % len(PALETTE)]))
        for number in range(count)
    ]


def wrapped(name: str) -> Override:
    """A column of sentences: over several lines where Grafana can (10.4), and to be looked at as a whole."""
    return by_name(name, custom__cellOptions={"type": "auto", "wrapText": True}, custom__inspect=True)


def dashed_thresholds() -> Override:
    """The lines of rule parameters: dashed, in the colour of text, never filled."""
    return by_pattern(
        f"^{THRESHOLD} ",
        color=fixed("text"),
        custom__lineStyle={"fill": "dash", "dash": [8, 8]},
        custom__lineWidth=1,
        custom__fillOpacity=0,
        custom__stacking={"mode": "none", "group": "thresholds"},
    )


def fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def steps(base: str, *above: tuple[float, str]) -> dict[str, Any]:
    """Thresholds of Grafana's: the colour from the lowest value on, then the colours above others."""
    return {
        "mode": "absolute",
        "steps": [
            {"color": base, "value": None},
            *({"color": colour, "value": value} for value, colour in above),
        ],
    }


def words(texts: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Value mappings: for each value its word and colour."""
    return [
        {
            "type": "value",
            "options": {
                value: {"text": text, "color": colour, "index": index}
                for index, (value, (text, colour)) in enumerate(texts.items())
            },
        }
    ]


def _override(matcher: str, wanted: str, properties: Mapping[str, Any]) -> Override:
    return {
        "matcher": {"id": matcher, "options": wanted},
        "properties": [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()],
    }
