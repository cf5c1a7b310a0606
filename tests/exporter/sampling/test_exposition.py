"""The exposition: what Prometheus's own parsers make of it, in both formats."""

import logging
import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from stepscope.exporter.ledgers.run_totals import Histogram
from stepscope.exporter.sampling.exposition import Exposition, Format
from stepscope.exporter.sampling.families import Exemplar, Family, HistogramValue
from stepscope.exporter.sampling.limits import Limits, ReachedLimits
from stepscope.exporter.sampling.series_limit import series_of
from stepscope.web.messages import accepts_gzip
from stepscope.web.pages import negotiate

from tests.support.prometheus import needs_prometheus

PROMETHEUS_ACCEPT = (  # of Prometheus 2.42, scrape/scrape.go
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def write(family: Family, format: Format = "text") -> str:
    return Exposition().write([family], format).decode()


def parse(text: str, format: Format) -> list[Metric]:
    return list(parse_text(text) if format == "text" else parse_openmetrics(text))  # type: ignore[no-untyped-call]


def counter() -> Family:
    family = Family("stepscope_busy_seconds_total", "counter", "Busy.", ("gpu",))
    family.publish({("0",): 1.5})
    return family


def histogram(exemplar: Exemplar | None = None) -> Family:
    family = Family("stepscope_wait_seconds", "histogram", "Waits.", ("rank",), (0.1, 1.0))
    exemplars = {1: exemplar} if exemplar else None
    family.publish_histograms({("0",): HistogramValue((2, 3, 4), 7.25, exemplars)})
    return family


@pytest.mark.parametrize(
    ("counts", "written"),
    [
        ([3, 1, 0, 2], {"1.0": 3, "2.0": 4, "3.0": 4, "+Inf": 6}),
        ([0, 1, 0, 2], {"1.0": 0, "2.0": 1, "3.0": 1, "+Inf": 3}),
        ([0, 0, 5, 0], {"2.0": 0, "3.0": 5, "+Inf": 5}),
        ([0, 0, 0, 7], {"3.0": 0, "+Inf": 7}),
        ([0, 0, 0, 0], {"1.0": 0, "2.0": 0, "3.0": 0, "+Inf": 0}),
    ],
)
def test_a_histogram_of_a_rank_has_one_empty_bucket_before_its_counts(
    counts: list[int], written: dict[str, int]
) -> None:
    family = Family("stepscope_wait_seconds", "histogram", "Waits.", ("rank",), (1.0, 2.0, 3.0))
    family.publish_histograms({("0",): Histogram(counts, 2.5).value()})
    (metric,) = parse(write(family), "text")
    buckets = {each.labels["le"]: each.value for each in metric.samples if each.name.endswith("_bucket")}
    assert buckets == written
    assert series_of([family]) == len(metric.samples)


def test_a_counter_keeps_its_total_in_text_and_loses_it_in_the_family_name_of_openmetrics() -> None:
    assert write(counter()) == (
        "# HELP stepscope_busy_seconds_total Busy.\n"
        "# TYPE stepscope_busy_seconds_total counter\n"
        'stepscope_busy_seconds_total{gpu="0"} 1.5\n'
    )
    assert write(counter(), "openmetrics") == (
        "# TYPE stepscope_busy_seconds counter\n"
        "# HELP stepscope_busy_seconds Busy.\n"
        'stepscope_busy_seconds_total{gpu="0"} 1.5\n'
        "# EOF\n"
    )


def test_an_info_metric_is_a_gauge_in_text_and_an_info_in_openmetrics() -> None:
    family = Family("stepscope_gpu_info", "info", "Which GPU.", ("gpu", "model"))
    family.publish({("0", "H100"): 1})
    assert "# TYPE stepscope_gpu_info gauge\n" in write(family)
    assert "# TYPE stepscope_gpu info\n" in write(family, "openmetrics")
    assert 'stepscope_gpu_info{gpu="0",model="H100"} 1\n' in write(family)
    assert 'stepscope_gpu_info{gpu="0",model="H100"} 1\n' in write(family, "openmetrics")


def test_an_unknown_metric_is_untyped_in_text() -> None:
    family = Family("stepscope_bound_seconds", "unknown", "Bounds.", ("le",))
    family.publish({("1.0",): 1.0})
    assert "# TYPE stepscope_bound_seconds untyped\n" in write(family)
    assert "# TYPE stepscope_bound_seconds unknown\n" in write(family, "openmetrics")


def test_a_histogram_is_cumulative_with_the_same_bounds_in_both_formats() -> None:
    lines = (
        'stepscope_wait_seconds_bucket{rank="0",le="0.1"} 2\n'
        'stepscope_wait_seconds_bucket{rank="0",le="1.0"} 5\n'
        'stepscope_wait_seconds_bucket{rank="0",le="+Inf"} 9\n'
        'stepscope_wait_seconds_sum{rank="0"} 7.25\n'
        'stepscope_wait_seconds_count{rank="0"} 9\n'
    )
    assert write(histogram()).endswith(lines)
    assert write(histogram(), "openmetrics").endswith(lines + "# EOF\n")


def test_exemplars_are_written_in_openmetrics_only() -> None:
    family = histogram(Exemplar({"step": "17"}, 0.5, 1790000000.25))
    assert " # " not in write(family).replace("# HELP", "").replace("# TYPE", "")
    text = write(family, "openmetrics")
    assert 'le="1.0"} 5 # {step="17"} 0.5 1790000000.250\n' in text
    (metric,) = parse(text, "openmetrics")
    (exemplar,) = [sample.exemplar for sample in metric.samples if sample.exemplar]
    assert (exemplar.labels, exemplar.value) == ({"step": "17"}, 0.5)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (3, "3"),
        (3.0, "3.0"),
        (0.1, "0.1"),
        (1e-9, "1e-09"),
        (2**63, "9223372036854775808"),
        (True, "1"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_integers_are_written_as_integers_and_floats_with_every_digit(value: float, written: str) -> None:
    family = Family("x", "gauge", "X.")
    family.publish({(): value})
    assert write(family).endswith(f"\nx {written}\n")


def test_a_family_without_samples_is_left_out() -> None:
    family = Family("x", "gauge", "X.", ("gpu",))
    assert write(family) == ""
    family.publish({("0",): 1})
    family.clear()
    assert write(family, "openmetrics") == "# EOF\n"


def test_series_that_come_and_go_are_followed_from_scrape_to_scrape() -> None:
    family, exposition = Family("x", "gauge", "X.", ("gpu",)), Exposition()
    written = []
    for gpus in ("01", "1", "012", "210"):
        family.publish({(gpu,): int(gpu) * 10 for gpu in gpus})
        lines = exposition.write([family], "text").decode().splitlines()
        written.append([line for line in lines if not line.startswith("#")])
    assert written == [
        [f'x{{gpu="{gpu}"}} {gpu}0'.replace(" 00", " 0") for gpu in gpus]
        for gpus in ("01", "1", "012", "210")
    ]


def test_help_and_labels_are_escaped_as_each_format_wants_it() -> None:
    family = Family("x", "gauge", 'a "quoted"\nback\\slash', ("label",))
    family.publish({('"\\\n',): 1})
    assert '# HELP x a "quoted"\\nback\\\\slash\n' in write(family)
    assert '# HELP x a \\"quoted\\"\\nback\\\\slash\n' in write(family, "openmetrics")
    assert 'x{label="\\"\\\\\\n"} 1\n' in write(family)


def test_a_name_that_is_not_unicode_costs_a_question_mark_and_not_the_scrape() -> None:
    family = Family("x", "gauge", "X.", ("run",))
    names = [b"bad%cname" % byte for byte in (0xFE, 0xFF)]
    family.publish({(name.decode("utf-8", "surrogateescape"),): 1 for name in names})
    labels = [sample.labels["run"] for metric in parse(write(family), "text") for sample in metric.samples]
    assert [label[:9] for label in labels] == ["bad?name…"] * 2
    assert len(set(labels)) == 2


def test_a_series_that_cannot_be_written_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    bad: dict[tuple[object, ...], object] = {
        ("huge",): 10**400,
        ("none",): None,
        (7,): 1,
        ("two", "labels"): 1,
    }
    family, exposition = Family("x", "gauge", "X.", ("run",)), Exposition()
    family.publish({("a",): 1, **bad, ("b",): 2.5})  # type: ignore[dict-item]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            text = exposition.write([family, counter()], "text").decode()
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'x{run="a"} 1',
        'x{run="b"} 2.5',
        'stepscope_busy_seconds_total{gpu="0"} 1.5',
    ]
    assert len(caplog.messages) == 1


def test_a_histogram_that_cannot_be_written_costs_itself_alone() -> None:
    family = histogram()
    good = family.histograms["0",]
    family.publish_histograms({("0",): good, ("1",): HistogramValue((1,), 1.0), ("2",): good})
    text = write(family)
    assert text.count("_count{") == 2
    assert 'rank="1"' not in text


def test_a_family_of_which_nothing_can_be_written_has_no_metadata_either() -> None:
    family = Family("x", "gauge", "X.")
    family.publish({(): 10**400})
    assert write(family) == ""


@pytest.mark.parametrize(("value", "time"), [(math.inf, 1.0), (0.5, math.nan), (0.5, math.inf)])
def test_an_exemplar_that_prometheus_could_not_parse_is_left_out(value: float, time: float) -> None:
    text = write(histogram(Exemplar({"step": "17"}, value, time)), "openmetrics")
    assert text == write(histogram(), "openmetrics")


def test_of_two_families_with_one_name_the_first_is_written() -> None:
    other = Family("stepscope_busy_seconds_total", "counter", "Busy.", ("gpu",))
    other.publish({("0",): 7})
    assert Exposition().write([counter(), other], "text", own=[other]).decode() == write(counter())


def test_labels_are_cut_at_the_limit_and_stay_two() -> None:
    reached = ReachedLimits(Limits(label_length=32))
    family = Family("x", "gauge", "X.", ("run",))
    family.publish({("a" * 500 + end,): 1 for end in "12"})
    exposition = Exposition(reached)
    for _ in range(3):
        text = exposition.write([family], "text").decode()
    (metric,) = parse(text, "text")
    labels = {sample.labels["run"] for sample in metric.samples}
    assert len(labels) == 2
    assert all(label.startswith("a" * 21 + "…") for label in labels)
    assert reached.families[0].samples["label-length",] == 2  # counted once per series, not per scrape


WITHIN_THE_LIMIT = st.text(st.characters(exclude_categories=["Cs"]), max_size=Limits().label_length // 4)


@given(
    labels=st.lists(WITHIN_THE_LIMIT, min_size=1, max_size=3, unique=True),
    values=st.lists(st.floats() | st.integers(-(2**53), 2**53), min_size=3, max_size=3),
    format=st.sampled_from(["text", "openmetrics"]),
)
def test_any_label_and_any_value_survive_the_parser(
    labels: list[str], values: list[float], format: Format
) -> None:
    family = Family("stepscope_x", "gauge", "X.", ("name",))
    published = dict(zip(labels, values, strict=False))
    family.publish({(label,): value for label, value in published.items()})
    (metric,) = parse(write(family, format), format)
    read = {sample.labels["name"]: sample.value for sample in metric.samples}
    assert read.keys() == published.keys()
    for label, value in published.items():
        assert read[label] == value or (math.isnan(read[label]) and math.isnan(value))


@given(
    counts=st.lists(st.integers(0, 2**50), min_size=4, max_size=4),
    total=st.floats(0, 1e300),
    format=st.sampled_from(["text", "openmetrics"]),
)
def test_any_histogram_survives_the_parser(counts: list[int], total: float, format: Format) -> None:
    family = Family("stepscope_h", "histogram", "H.", (), (0.02, 0.5, 1.0))
    family.publish_histograms({(): HistogramValue(counts, total)})
    (metric,) = parse(write(family, format), format)
    buckets = [sample.value for sample in metric.samples if sample.name.endswith("_bucket")]
    assert buckets == [sum(counts[: end + 1]) for end in range(4)]
    values = {sample.name: sample.value for sample in metric.samples}
    assert values["stepscope_h_sum"] == total
    assert values["stepscope_h_count"] == sum(counts)


@pytest.mark.parametrize(
    ("accept", "format"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text"),
        ("text/plain", "text"),
        ("application/openmetrics-text", "openmetrics"),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", "openmetrics"),
        ('Application/OpenMetrics-Text; version="1.0.0"', "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "text"),
        ("application/openmetrics-text;q=0", "text"),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.9", "text"),
        ("application/openmetrics-text;q=0.3,text/plain;version=1.0.0;q=0.9", "openmetrics"),
        ("application/openmetrics-text;q=0.3,*/*;q=0.1", "openmetrics"),
        ("text/plain;version=0.0.4;q=0.2,text/*,application/openmetrics-text;q=0.5", "openmetrics"),
        ("application/openmetrics-text;q=nonsense", "text"),
        (";;,,=;q", "text"),
        (PROMETHEUS_ACCEPT, "openmetrics"),
    ],
)
def test_the_format_is_the_one_that_the_client_likes_best(accept: str, format: Format) -> None:
    assert negotiate(accept) == format


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("*", True),
        ("*;q=1, gzip;q=0", False),
    ],
)
def test_gzip_is_used_only_where_the_client_accepts_it(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


@needs_prometheus
def test_promtool_has_no_complaint_about_any_kind() -> None:
    info = Family("stepscope_gpu_info", "info", "Which GPU.", ("gpu",))
    info.publish({("0",): 1})
    bounds = Family("stepscope_bound_seconds", "unknown", "Bounds.", ("le",))
    bounds.publish({("1.0",): 1.0})
    text = Exposition().write([counter(), histogram(), info, bounds], "text")
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
