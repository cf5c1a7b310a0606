"""A small HTTP server that answers as Prometheus does, or with the limits and failures of servers like it.

It has the counter of samples of one run, its start and its name, and knows only queries that reading needs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.http_server import answering

START = 1_700_000_040.0
SCRAPES = 120
BETWEEN = 15.0
RUN = "resnet-1"
QUERY = re.compile(
    r"(?:(?P<count>count\()?(?P<function>\w+)_over_time\()?(?P<selector>.*?)\[(?P<window>[\d.]+)(?P<unit>m?s)\]\)*"
)


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, data: object, **more: object) -> "Answer":
        return cls(body=json.dumps({"status": "success", "data": data, **more}).encode())

    @classmethod
    def error(cls, status: int, kind: str, words: str) -> "Answer":
        return cls(status, json.dumps({"status": "error", "errorType": kind, "error": words}).encode())


@dataclass
class Asked:
    """A request: `path` is that below /api/v1/."""

    path: str
    parameters: dict[str, str]
    headers: Mapping[str, str]
    target: str

    @property
    def seconds(self) -> float:
        """How much time a query covers."""
        if self.path == "query_range":
            return float(self.parameters["end"]) - float(self.parameters["start"])
        found = QUERY.fullmatch(self.parameters.get("query", ""))
        return float(found["window"]) / (1000 if found["unit"] == "ms" else 1) if found else 0.0


Trouble = Callable[[Asked], Answer | None]  # None: the server answers as usual


class SmallPrometheus:
    """`trouble` comes before its own answers; `asked` are all requests."""

    def __init__(self, trouble: Trouble = lambda _: None) -> None:
        self.trouble = trouble
        self.asked: list[Asked] = []
        self.address = ""
        self.scrapes = [START + BETWEEN * number for number in range(SCRAPES)]

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self.trouble(asked) or self._usual(asked)

    def _usual(self, asked: Asked) -> Answer:
        query = asked.parameters.get("query", "")
        if asked.path == "label/run/values":
            return Answer.of([RUN])
        if query == "time()":
            return Answer.of({"resultType": "scalar", "result": [self.scrapes[-1] + 5, "0"]})
        found = QUERY.fullmatch(query)
        if found is None:
            return Answer.of({"resultType": "vector", "result": []})
        window = float(found["window"]) / (1000 if found["unit"] == "ms" else 1)
        if asked.path == "query_range":
            return Answer.of({"resultType": "matrix", "result": self._counts(asked.parameters, window)})
        end = float(asked.parameters["time"])
        series = []
        for labels, points in self._series(found["selector"], end - window, end):
            if found["function"]:
                values = [value for _, value in points]
                value = {"last": values[-1], "min": min(values), "max": max(values)}[found["function"]]
                series.append({"metric": labels, "value": [end, str(value)]})
            else:
                series.append({"metric": labels, "values": [[time, str(value)] for time, value in points]})
        return Answer.of({"resultType": "vector" if found["function"] else "matrix", "result": series})

    def _series(
        self, selector: str, start: float, end: float
    ) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        values: dict[str, Callable[[float], float]] = {
            "stepscope_samples_total": lambda time: 2 * (time - START) + 1,
            "stepscope_run_start_time_seconds": lambda _: START,
            "stepscope_run_info": lambda _: 1.0,
        }
        times = [time for time in self.scrapes if start < time <= end]
        pattern = re.search(r'__name__=~"([^"]*)"', selector)
        for name, value in values.items():
            wanted = re.fullmatch(pattern[1], name) if pattern else selector.partition("{")[0] == name
            if times and wanted:
                labels = {"__name__": name, "job": "stepscope", "instance": "node-a", "run": RUN}
                more = {"name": "resnet"} if name.endswith("_info") else {}
                yield {**labels, **more}, [(time, value(time)) for time in times]

    def _counts(self, parameters: Mapping[str, str], window: float) -> list[Any]:
        start, end, step = (float(parameters[name]) for name in ("start", "end", "step"))
        moments = [start + step * number for number in range(int((end - start) / step + 1e-6) + 1)]
        points = [
            [moment, "1"]
            for moment in moments
            if any(moment - window < time <= moment for time in self.scrapes)
        ]
        return [{"metric": {}, "values": points}] if points else []


@contextmanager
def small_prometheus(server: SmallPrometheus, tls: Any = None) -> Iterator[SmallPrometheus]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _answer(self, parameters: str) -> None:
            path = urlsplit(self.path).path.rpartition("/api/v1/")[2]
            asked = Asked(path, dict(parse_qsl(parameters)), dict(self.headers), self.path)
            answer = server.answer(asked)
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *words: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    with answering(http) as port:
        server.address = f"127.0.0.1:{port}"
        yield server
