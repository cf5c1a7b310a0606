"""Measures what Stepscope costs and compares it with budgets: `make bench`, or `python -m benchmarks`.

Each module has `rows()`, which measures and returns the table's rows: (what, value, unit, budget). A budget
is text such as "<= 1.5" or ">= 10" in the row's unit, or "" if the row has none.
"""

Row = tuple[str, float, str, str]
