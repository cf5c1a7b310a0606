"""Expressions have the value that a real Prometheus computes from their PromQL."""

import os
from collections.abc import Iterator
from math import nan

import pytest
from stepscope.measurements.scraped import SAMPLES, Window
from stepscope.prometheus.crosscheck.compare import same
from stepscope.prometheus.crosscheck.offline import prometheus
from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus
from stepscope.prometheus.crosscheck.readings import Readings
from stepscope.prometheus.crosscheck.server import Grid, Series, Server
from stepscope.rules.parts.expressions import Expression, Gain, LastValues, Record, Shared

from tests.support.prometheus import needs_prometheus

pytestmark = needs_prometheus

SECOND, START = 1000, 1_700_000_000_000
GRID = Grid(START + 60 * SECOND, 60 * SECOND, 12)
WINDOW = Window(seconds=240, hold=80, sample_interval=0.5)
Values = dict[int, float | None]  # by second; None ends the series


def rising(per_second: float, start: int = 0, end: int = 720) -> Values:
    return {**{second: per_second * (second - start) for second in range(start, end, 15)}, end: None}


# By node: one from the beginning, one that begins later, one that ends, one whose exporter lost its counts.
COUNTED = {"a": rising(2), "late": rising(2, 330), "ends": rising(2, 0, 300), "lost": rising(2)}
COUNTED["lost"] |= {second: 2.0 * (second - 400) for second in range(405, 720, 15)}
STORED: dict[str, dict[str, Values]] = {
    SAMPLES: COUNTED,
    'one_total{kind="x"}': {**COUNTED, "still": rising(0), "not-run": rising(1)},
    'one_total{kind="y"}': {"a": rising(3), "late": rising(1, 450)},
    'two_total{other="z"}': {"a": rising(1), "still": rising(0), "only": rising(1), "ends": rising(-1)},
    "gauge": {"a": {0: -5.0, 300: nan, 600: 0.0, 660: 2.0}, "still": {0: 1.0}, "ends": rising(1, 0, 300)},
    "level:record:sum": {"a": rising(5, 60), "ends": rising(1, 0, 200), "only": rising(1)},
}


def series() -> Iterator[Series]:
    for selector, nodes in STORED.items():
        name, _, matchers = selector.removesuffix("}").partition("{")
        label, _, value = matchers.partition("=")
        for node, values in nodes.items():
            labels = {"__name__": name, "instance": node, "run": "r"}
            points = [(START + second * SECOND, each) for second, each in sorted(values.items())]
            yield labels | ({label: value.strip('"')} if label else {}), points


def last(selector: str, ago: float = 0.0) -> LastValues:
    return LastValues(selector, WINDOW.hold, ago)


def of_kinds(values: Expression) -> Expression:
    return values.sum_without("kind")


ONE, TWO, BOTH = last('one_total{kind="x"}'), last('two_total{other="z"}'), last("one_total")
GAUGE, MISSING, RECORD = last("gauge"), last("missing"), Record("level:record:sum", "text")
EXPRESSIONS: list[Expression] = [
    ONE,
    last("gauge", 120),
    RECORD,
    ONE + TWO,
    ONE - TWO - GAUGE,
    ONE - (TWO - GAUGE),
    ONE * GAUGE,
    TWO / GAUGE,
    GAUGE / TWO,  # by 0, and NaN
    ONE / (TWO / TWO * 3) - RECORD,
    (ONE + TWO) * 0.1234567890123,
    GAUGE > 0,
    GAUGE >= 0,
    (GAUGE >= 0) > 1,
    ONE & TWO,
    (ONE | TWO) & RECORD,
    ONE | TWO & RECORD,
    GAUGE | RECORD,
    MISSING | ONE,
    ONE.unless(TWO),
    TWO.unless(ONE & RECORD),
    ONE.unless(MISSING),
    BOTH.sum_without("kind"),
    BOTH.max_without("kind", "instance"),
    (BOTH | GAUGE).max_without("instance") | ONE.max_without("instance"),
    GAUGE.max_without("instance"),  # NaN only if all are
    GAUGE.min_without("instance"),
    BOTH.over_run("max"),
    BOTH - BOTH.over_run("median"),
    (last("one_total") <= BOTH.over_run("median")) & Shared(RECORD),
    ONE.max_without("kind") > TWO.max_without("other") * 0.5,
    BOTH * 2 - Shared(TWO, ignoring=("kind", "other")),
    (last("one_total") >= Shared(TWO, ignoring=("kind", "other"))).sum_without("kind"),
    (TWO + ONE**2).function("sqrt"),
    (TWO - ONE.max_without("kind")).function("clamp_min", -99.5),
    BOTH.sum_without("kind") / TWO,
    (TWO / GAUGE).on_one_line() & RECORD,
    *(
        gain
        for selector in (SAMPLES, "one_total", 'two_total{other="z"}')
        for gain in (Gain(selector, WINDOW), Gain(selector, WINDOW, whole=True))
    ),
    Gain("one_total", WINDOW, of_kinds),
    Gain("one_total", WINDOW, of_kinds, whole=True) / TWO,
    Gain("one_total", WINDOW, lambda values: values > 100),
    Gain('one_total{kind="x"}', WINDOW, joined=True) / Gain(SAMPLES, WINDOW),
    Gain('one_total{kind="x"}', WINDOW, joined=True) & Gain(SAMPLES, WINDOW),
    (Gain("one_total", WINDOW, whole=True) > 400) / (Gain("one_total", WINDOW, whole=True) > 0),
    Gain("one_total", WINDOW, whole=True).max_without("kind") / WINDOW.seconds,
]


# Without a value at any time.
# Without a value at any time.
EMPTY: list[Expression] = [
    last("missing"),
    ONE & last("missing"),
    Gain("missing", WINDOW),
    ONE / last("missing"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with local_prometheus() as store, Server(store.url) as server:
        store.write(series())
        yield server


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *EMPTY], ids=str)
def test_values_are_those_of_prometheus(server: Server, expression: Expression) -> None:
    readings, recorded = Readings(server, "r", GRID), server.instants(f"{expression}", GRID)
    assert any(recorded) == (expression not in EMPTY)
    for index, theirs in enumerate(recorded):
        ours = expression.value(readings.at(index))
        assert ours.keys() == theirs.keys()
        assert all(same(ours[labels], value) for labels, value in theirs.items()), (ours, theirs)


@pytest.mark.parametrize("others", ["", "example.test"])
def test_the_local_server_is_asked_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    monkeypatch.setattr(prometheus, "STARTING", 20)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("no_proxy", others)
    with local_prometheus() as store, Server(store.url) as server:
        store.write(series())
        assert server.now() > 0
    assert os.environ["no_proxy"] == others
