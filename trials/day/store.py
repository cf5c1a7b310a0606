"""Writes what was scraped into Prometheus, in the order of time.

It uses remote write: the text that `promtool tsdb create-blocks-from openmetrics` reads cannot say that a
series has ended.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import requests
from numpy.typing import NDArray
from stepscope.common.errors import UserError
from stepscope.prometheus.crosscheck.offline.prometheus import HEADERS, STALE, LocalPrometheus, label, request
from stepscope.runs.prometheus.connection import TIMEOUT

from trials.day.node import Scraped, ScrapedNode

SPAN = 1_800_000  # milliseconds that are written at a time: Prometheus accepts what is an hour old in order
SAMPLES = 50_000  # in one request

Bytes = NDArray[np.uint8]


def write(store: LocalPrometheus, nodes: Sequence[ScrapedNode], progress: Callable[[int], None]) -> int:
    """Stores the series of all nodes, and returns the number of samples. `progress` gets the per cent done.

    Raises UserError if Prometheus refuses them.
    """
    series = [each for node in nodes for each in _encoded(node)]
    begin = min(int(node.times[0]) for node in nodes)
    end = max(int(node.times[-1]) for node in nodes)
    written = 0
    with requests.Session() as session:
        for since in range(begin, end + 1, SPAN):
            for body, count in _requests(series, since, since + SPAN):
                answer = session.post(
                    f"{store.url}/api/v1/write", data=body, headers=HEADERS, timeout=TIMEOUT
                )
                if answer.status_code // 100 != 2:
                    raise UserError(f"the local Prometheus refuses samples: {answer.text.strip()}")
                written += count
            progress(round(100 * (min(end, since + SPAN) - begin) / (end - begin)))
    return written


def _encoded(node: ScrapedNode) -> Iterator[tuple[bytes, NDArray[np.int64], Bytes]]:
    """Yields the labels of each series, the times of its samples, and the samples, encoded."""
    for each in node.series:
        times, values = _samples(node, each)
        if len(times):
            name = b"".join(label(name, value) for name, value in sorted(each.labels.items()))
            yield name, times, _encode(times, values)


def _samples(node: ScrapedNode, series: Scraped) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the samples of a series; NaN where it ends: in a failed scrape, or after its last value."""
    last = series.first + len(series.values)
    values = series.values
    if series.labels["__name__"] != "up":
        values = np.where(node.failed[series.first : last], np.nan, values)
    if last < len(node.times):
        values = np.append(values, np.nan)
    times = node.times[series.first : series.first + len(values)]
    absent = np.isnan(values)
    kept = ~absent
    kept[1:] |= ~absent[:-1]
    return times[kept], values[kept]


def _encode(times: NDArray[np.int64], values: NDArray[np.float64]) -> Bytes:
    """Returns a row of bytes per sample, as `remote_write.samples_of` would write it."""
    assert (times >> 35).all()
    assert not (times >> 42).any()  # six bytes of seven bits
    found = np.empty((len(times), 18), np.uint8)
    found[:, :3] = 0x12, 16, 0x09
    found[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    found[np.isnan(values), 3:11] = np.frombuffer(STALE, np.uint8)
    found[:, 11] = 0x10
    for place in range(6):
        found[:, 12 + place] = (times >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
    return found


def _requests(
    series: Sequence[tuple[bytes, NDArray[np.int64], Bytes]], since: int, until: int
) -> Iterator[tuple[bytes, int]]:
    """Yields requests with the samples of a span, and the number of these."""
    parts: list[bytes] = []
    count = 0
    for name, times, samples in series:
        if times[0] >= until or times[-1] < since:
            continue
        first, last = np.searchsorted(times, (since, until))
        if first < last:
            parts.append(name + samples[first:last].tobytes())
            count += int(last - first)
            if count >= SAMPLES:
                yield request(parts), count
                parts, count = [], 0
    if parts:
        yield request(parts), count
