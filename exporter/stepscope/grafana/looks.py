"""Colours, thresholds and words that all panels share.

Colours are Okabe and Ito's, which colour-blind people can distinguish (https://jfly.uni-koeln.de/color/).
Black and yellow are left out: they are hard to see on dark or light pages. Meaning is never in the colour
alone: states are words, lines have legends.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.grafana.queries import THRESHOLD

Override = dict[str, Any]

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE, GREY = "#E69F00", "#D55E00", "#CC79A7", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#B9A44C", GREY, "#7F6BB3")

# Not Grafana's unit "h": 400 hours of GPUs would read as 2.4 weeks.
GPU_HOURS = "suffix:h"

# Short names of properties of columns.
OF_COLUMNS = {"width": "custom.width", "least_width": "custom.minWidth", "mode": "custom.displayMode"}

SEVERITY = {"critical": VERMILION, "warning": ORANGE, "info": SKY}


def by_name(name: str, **properties: Any) -> Override:
    """Sets properties of one series or column, by their id, with `__` for a dot."""
    return _override("byName", name, properties)


def by_pattern(pattern: str, **properties: Any) -> Override:
    """Sets properties of all series or columns whose name matches a regular expression."""
    return _override("byRegexp", f"/{pattern}/", properties)


def coloured(names: Iterable[str]) -> list[Override]:
    """Gives each name its own colour."""
    return [by_name(name, color=fixed(PALETTE[number % len(PALETTE)])) for number, name in enumerate(names)]


def numbered(word: str) -> list[Override]:
    """Gives each number its own colour, the same on all nodes: `GPU 0`, `GPU 1`, ..."""
    return [
        by_pattern(rf"\b{word} 0*{number}\b", color=fixed(PALETTE[number % len(PALETTE)]))
        for number in range(8)
    ]


def wrapped(width: int) -> dict[str, Any]:
    """Wraps a column of sentences, which Grafana can since 10.4; before, `width` holds most sentences."""
    cell = {"type": "auto", "wrapText": True}
    return {"custom__cellOptions": cell, "custom__inspect": True, "least_width": width}


def dashed_thresholds(in_legend: bool) -> Override:
    """Draws the lines of rule parameters dashed, in the colour of text, never filled."""
    return by_pattern(
        f"^{THRESHOLD} ",
        color=fixed("text"),
        custom__lineStyle={"fill": "dash", "dash": [8, 8]},
        custom__lineWidth=1,
        custom__fillOpacity=0,
        custom__stacking={"mode": "none", "group": "thresholds"},
        **({} if in_legend else {"custom__hideFrom": {"tooltip": False, "viz": False, "legend": True}}),
    )


def dashed(pattern: str) -> Override:
    """Draws the lines whose name matches dashed, where the colour has another meaning."""
    return by_pattern(pattern, custom__lineStyle={"fill": "dash", "dash": [10, 5]})


def dotted(pattern: str) -> Override:
    """Draws such lines dotted."""
    return by_pattern(pattern, custom__lineStyle={"fill": "dot", "dash": [2, 4]})


def fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def steps(base: str, *above: tuple[float, str]) -> dict[str, Any]:
    """Returns Grafana's thresholds: the base colour, then (value, colour) from that value upwards."""
    return {
        "mode": "absolute",
        "steps": [
            {"color": base, "value": None},
            *({"color": colour, "value": value} for value, colour in above),
        ],
    }


def words(texts: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Returns value mappings: the word and colour of each value."""
    return [
        {
            "type": "value",
            "options": {
                value: {"text": text, "color": colour, "index": index}
                for index, (value, (text, colour)) in enumerate(texts.items())
            },
        }
    ]


def _override(matcher: str, name: str, properties: Mapping[str, Any]) -> Override:
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [
            {"id": OF_COLUMNS.get(key, key.replace("__", ".")), "value": value}
            for key, value in properties.items()
        ],
    }
