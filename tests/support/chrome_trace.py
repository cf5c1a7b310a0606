"""Reads a Chrome trace and checks it against the Trace Event Format, as Perfetto imports it.

Perfetto drops a slice that begins in another slice of its thread and ends after it.
"""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

US = 1e6


@dataclass(frozen=True)
class Slice:
    process: str
    track: str
    name: str
    start: float  # seconds since the start of the timeline
    end: float
    about: dict[str, Any]


@dataclass(frozen=True)
class ChromeTrace:
    slices: list[Slice]
    counters: dict[tuple[str, str], list[tuple[float, float]]]  # by process and name: time and value
    about: dict[str, Any]
    bytes: int

    def track(self, process: str, track: str) -> list[Slice]:
        return [each for each in self.slices if (each.process, each.track) == (process, track)]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def read_chrome_trace(path: Path) -> ChromeTrace:
    """Returns the trace. Asserts that each event is as documented, and can be drawn."""
    data = gzip.decompress(path.read_bytes())
    document = json.loads(data, parse_constant=_refuse)
    assert set(document) == {"displayTimeUnit", "traceEvents", "otherData"}
    names: dict[tuple[str, int, int], str] = {}
    open_slices: dict[tuple[int, int], list[int]] = defaultdict(list)
    slices: list[Slice] = []
    counters: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        kind, pid, tid = event["ph"], event["pid"], event.get("tid", 0)
        assert isinstance(event["name"], str)
        assert event["name"]
        if kind == "M":
            assert event["name"] in {
                f"{what}_{of}" for what in ("process", "thread") for of in ("name", "sort_index")
            }
            if event["name"].endswith("_name"):
                names[event["name"], pid, tid] = event["args"]["name"]
            continue
        process = names["process_name", pid, 0]
        assert isfinite(event["ts"])
        if kind == "C":
            (value,) = event["args"].values()
            assert isfinite(value)
            known = counters[process, event["name"]]
            assert not known or known[-1][0] < event["ts"] / US
            known.append((event["ts"] / US, value))
            continue
        assert kind == "X"
        begin = round(1000 * event["ts"])
        end = begin + round(1000 * event["dur"])
        assert end >= begin
        within = open_slices[pid, tid]
        while within and within[-1] <= begin:
            within.pop()
        assert not within or end <= within[-1], event
        within.append(end)
        track = names["thread_name", pid, tid]
        slices.append(Slice(process, track, event["name"], begin / 1e9, end / 1e9, event.get("args", {})))
    return ChromeTrace(slices, dict(counters), document["otherData"], len(data))
