"""What Trainwatch costs, measured against the budgets: `make bench`, or `python -m benchmarks`.

Each module has `rows()`, which measures and returns (what, value, unit, budget) for each line of the
table. A budget is words like "<= 1.5" or ">= 10" in the row's unit, or "" where the row only informs.
"""

Row = tuple[str, float, str, str]
