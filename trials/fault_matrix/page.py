"""The tables of trials/README.md, from stored results."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.page import RESULTS, markdown, replace_part
from trials.fault_matrix.faults import FAULTS
from trials.fault_matrix.healthy import HEALTHY
from trials.fault_matrix.score import NOTHING_SAID, Result, Share, share
from trials.fault_matrix.store import FOLDER, Stored, read
from trials.fault_matrix.training import Training

PAGE = RESULTS
FIRST, LAST = FOLDER / "first.json", FOLDER / "last.json"
NO_RULE = "no rule can"
CLEAR = 0.2  # the severity from which the goals hold


def printed(results: Sequence[Result]) -> list[str]:
    """Returns all tables of some results, for the terminal."""
    summary = markdown(
        ("", "goal", "result"), [(what, goal, str(value)) for what, goal, value in scores(results)]
    )
    return [*summary, "", *faults_table(results), "", *wrong_table(results), "", *healthy_table(results)]


def write_page() -> None:
    """Writes the tables of the stored results into the page."""
    for name, lines in tables(stored()).items():
        replace_part(PAGE, name, lines)


def stored() -> dict[str, Stored]:
    """Returns the first matrix, and the last one if it was measured since then."""
    return {file.stem: read(file) for file in (FIRST, LAST) if file.exists()}


def tables(matrices: Mapping[str, Stored]) -> dict[str, list[str]]:
    """Returns the lines between the markers of the page, by their name. Details are of the last matrix."""
    scored = [scores(matrix.results) for matrix in matrices.values()]
    rows = [
        (what, goal, *(str(each) for _, _, each in row))
        for row in zip(*scored, strict=True)
        for what, goal, _ in row[:1]
    ]
    results = list(matrices.values())[-1].results
    return {
        "matrix": [
            *(line for name, matrix in matrices.items() for line in _circumstances(name, matrix)),
            *markdown(("what", "goal", *matrices), rows),
        ],
        "catalogue": catalogue(),
        "faults": faults_table(results),
        "wrong": wrong_table(results),
        "healthy": healthy_table(results),
    }


def catalogue() -> list[str]:
    """Returns what each fault and each healthy run is, and the rules that name the cause."""
    rows = [
        (fault.name, _docstring(fault), ", ".join(f"`{rule}`" for rule in fault.rules) or NO_RULE, fault.of)
        for fault in FAULTS
    ]
    rows += [(healthy.name, _docstring(healthy), "none", "-") for healthy in HEALTHY]
    return markdown(("run", "simulation", "rules that name the cause", "severity is a share of the"), rows)


def _docstring(kind: type[Training]) -> str:
    return " ".join((kind.__doc__ or "").split()).rstrip(".")


def _circumstances(which: str, stored: Stored) -> list[str]:
    seeds = ", ".join(map(str, stored.seeds))
    faults = sum(result.is_fault for result in stored.results)
    known = {result.case.kind for result in stored.results}
    later = [fault.name for fault in FAULTS if fault.name not in known]
    return [
        f"The {which} matrix was measured on {stored.date} with Stepscope {stored.version}, seed {seeds}. "
        f"It has {faults} faulty and {len(stored.results) - faults} healthy runs, in random order."
        + (f" It is older than these faults: {', '.join(later)}." if later else "")
        + f" Machine: {stored.machine}.",
        "",
    ]


def scores(results: Sequence[Result]) -> list[tuple[str, str, Share]]:
    """Returns each score with its name and its goal."""
    faults = [result for result in results if result.is_fault]
    clear = [result for result in faults if result.case.severity >= CLEAR]
    healthy = [result for result in results if not result.is_fault]
    by_severity = [
        (f"cause right at {100 * severity:.0f} %", "", share(_of(faults, severity), is_right))
        for severity in sorted({result.case.severity for result in faults})
    ]
    return [
        *by_severity,
        ("cause right at 20 % and above", "95 %", share(clear, is_right)),
        (
            "rank or GPU right, where the cause is named",
            "98 %",
            share(clear, lambda each: each.place_is_right),
        ),
        ("seconds lost within 20 %", "100 %", share(clear, lambda each: each.has_estimate_within)),
        ("alert with the cause, while the run lasts", "", share(clear, lambda each: each.alert is not None)),
        ("alert of a wrong rank or GPU", "0 %", share(clear, lambda each: each.false_alert)),
        ("healthy runs accused by the report", "1 %", share(healthy, lambda each: each.outcome == "accused")),
        ("healthy runs accused by an alert", "1 %", share(healthy, lambda each: each.false_alert)),
        ("thresholds by hand: faults noticed", "", share(clear, lambda each: each.noticed_by_hand)),
        ("thresholds by hand: healthy runs accused", "", share(healthy, lambda each: each.noticed_by_hand)),
    ]


def is_right(result: Result) -> bool:
    """Returns whether the report's first finding and the terminal name the cause."""
    return result.outcome == "right"


def _of(results: Iterable[Result], severity: float) -> list[Result]:
    return [result for result in results if result.case.severity == severity]


def faults_table(results: Sequence[Result]) -> list[str]:
    """Returns what the report said about each fault, by severity, and the first right alert."""
    faults = [result for result in results if result.is_fault]
    severities = sorted({result.case.severity for result in faults})
    head = (
        "fault",
        *(f"{100 * severity:.0f} %" for severity in severities),
        "seconds lost",
        "alert after (min)",
    )
    rows = []
    for kind in dict.fromkeys(result.case.kind for result in faults):
        own = [result for result in faults if result.case.kind == kind]
        said = (_counted(result.outcome for result in _of(own, severity)) for severity in severities)
        within = share(own, lambda each: each.has_estimate_within)
        cost = f"{within.hits} of {within.runs}" if within.runs else "-"
        rows.append((kind, *said, cost, _delays(own)))
    return markdown(head, rows)


def _counted(outcomes: Iterable[str]) -> str:
    counts = Counter(outcomes)
    only = len(counts) == 1
    return ", ".join(name if only else f"{count} {name}" for name, count in counts.most_common())


def _delays(results: Sequence[Result]) -> str:
    minutes = [f"{result.alert.begin / 60:.0f}" if result.alert else "-" for result in results]
    return ", ".join(minutes)


def wrong_table(results: Sequence[Result]) -> list[str]:
    """Returns the confusion: what the first finding of a report was where it is not the planted cause."""
    wrong = [result for result in results if result.outcome not in ("right", "silent")]
    counts = Counter((result.case.kind, result.outcome, result.first_named) for result in wrong)
    rows = [
        (kind, outcome, named if named == NOTHING_SAID else f"`{named}`", str(count))
        for (kind, outcome, named), count in sorted(counts.items())
    ]
    return markdown(("planted", "outcome", "first finding", "runs"), rows)


def healthy_table(results: Sequence[Result]) -> list[str]:
    """Returns the accusations in healthy runs, by shape."""
    healthy = [result for result in results if not result.is_fault]
    rows = []
    for kind in dict.fromkeys(result.case.kind for result in healthy):
        own = [result for result in healthy if result.case.kind == kind]
        by_report = Counter(finding.rules[0] for result in own for finding in result.seen.findings)
        by_alert = Counter(rule for result in own for rule in {alert.rule for alert in result.own_alerts})
        by_hand = sum(result.noticed_by_hand for result in own)
        rows.append((kind, str(len(own)), _rules(by_report), _rules(by_alert), str(by_hand)))
    return markdown(("healthy run", "runs", "accused by the report", "by alerts", "by hand"), rows)


def _rules(counts: Counter[str]) -> str:
    return ", ".join(f"{count} `{rule}`" for rule, count in sorted(counts.items())) or "0"
