"""docs/accuracy.md: its figures are those of the tables in trials/README.md; `make golden` renews them."""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.page import RESULTS, markdown, read_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- rendered: results -->\n", "\n<!-- end -->"


def results() -> str:
    """Returns the last result of each trial, as a Markdown table."""
    rows = [
        ("fault matrix", *matrix_row(what, last, goal))
        for what, goal, _, last in read_table(RESULTS, "matrix")
    ]
    rows += [
        (trial, *slow_ranks(table, which), goal)
        for trial, table in (
            ("slow rank", "truth"),
            ("slow rank, trainers", "others"),
            ("slow rank, TraceML", "rival"),
        )
        for which, goal in (("all faults", "95 %"), ("all without a fault", "100 %"))
    ]
    sets = [row[3:] for row in read_table(RESULTS, "everyday") if row[0].endswith(" set**")]
    rows_of = {
        "cause first": "90 %",
        "its line": "90 %",
        "its seconds": "90 %",
        "advice: the twin is faster, by no more than said": "80 %",
        "healthy twin without a finding": "90 %",
    }
    for (what, goal), results in zip(rows_of.items(), zip(*sets, strict=True), strict=True):
        right, all_of_them = zip(*(map(int, result.split(" of ")) for result in results), strict=True)
        rows.append(("everyday", what, f"{sum(right)} of {sum(all_of_them)}", goal))
    *_, (_, planted, near, found, silent, false, *_) = read_table(RESULTS, "table")
    rows += [
        (
            "shared cluster",
            f"faults found by alerts, {near} near their threshold",
            f"{found} of {planted}",
            "100 %",
        ),
        ("shared cluster", "near misses silent; false alerts", f"{silent}; {false}", "all; 0"),
    ]
    days = [row for row in read_table(RESULTS, "day") if row[0].isdigit()]
    notified = ", ".join(row[5] for row in days)
    rows.append(
        ("days", f"notifications in {len(days)} healthy days", notified, "1 to owners per 100 GPU-days")
    )
    faults = read_table(RESULTS, "planted")
    missed = sum(row[2] == "**missed**" for row in faults)
    rows.append(("days", "faults found by alerts", f"{len(faults) - missed} of {len(faults)}", "100 %"))
    return "\n".join(markdown(("trial", "what", "result", "goal"), rows))


def matrix_row(what: str, result: str, goal: str) -> tuple[str, str, str]:
    """Returns the words, result and goal of a row; false findings are turned into right silences."""
    if "healthy runs accused" not in what:
        return what, result, goal
    false, runs = map(int, re.findall(r"\d+", result)[:2])
    right = what.replace("accused by the report", "without a finding").replace(
        "accused by an alert", "without an alert"
    )
    return right.replace("accused", "without an alert"), f"{runs - false} of {runs}", goal and "99 %"


def slow_ranks(table: str, which: str) -> tuple[str, str]:
    """Returns what a row of sums counts, and how many runs of it were right."""
    (row,) = [row for row in read_table(RESULTS, table) if row[1] == f"**{which}**"]
    return (
        "rank and cause right" if which == "all faults" else "healthy: nobody named"
    ), f"{row[3]} of {row[2]}"


def test_the_golden_results_are_those_of_the_trials(golden: Callable[[Path, str], None]) -> None:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    golden(PAGE, before + begin + "\n" + results() + "\n" + end + after)


def test_the_readme_quotes_these_results() -> None:
    trials = (ROOT / "README.md").read_text().partition("| trial | right | misses |")[2].partition("\n\n")[0]
    quoted = re.findall(r"\d+ of \d+", trials)
    assert len(quoted) > 5
    assert [each for each in quoted if each not in results()] == []
    assert ", ".join(re.findall(r"\| (\d+), (\d+) and (\d+) \|", trials)[0]) in results()
