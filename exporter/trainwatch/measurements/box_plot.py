"""A box plot as SageMaker Debugger's details hold it."""

from __future__ import annotations

from trainwatch.measurements.sketch import RatioSketch


def box_plot(readings: RatioSketch, *more: int) -> dict[str, float]:
    """Quartiles, the 95th and `more` percentiles, and whiskers, in percent to four digits.

    Whiskers ("upper", "lower") reach 1.5 interquartile ranges beyond the box, and never beyond the data.
    """
    box = {f"p{percent:02}": 100 * readings.percentile(percent) for percent in (*more, 25, 50, 75, 95)}
    reach = 1.5 * (box["p75"] - box["p25"])
    box["upper"] = min(box["p75"] + reach, 100 * readings.max)
    box["lower"] = max(box["p25"] - reach, 100 * readings.min)
    return {name: round(value, 4) for name, value in box.items()}
