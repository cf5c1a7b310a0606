"""Prometheus's HTTP API, as far as reading a run needs it. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import requests

from trainwatch.errors import UserError
from trainwatch.runs.model import Times
from trainwatch.runs.prometheus.address import Address

TIMEOUT = 120.0  # seconds for one answer: Prometheus itself gives up after 2 minutes


@dataclass(frozen=True)
class Series:
    name: str
    labels: Mapping[str, str]
    times: Times
    values: Times


class Api:
    """Raises UserError where the server does not answer, or refuses."""

    def __init__(self, address: Address) -> None:
        self._url = address.url
        self._session = requests.Session()
        if address.user is not None:
            self._session.auth = (address.user, address.password)
        elif address.token is not None:
            self._session.headers["Authorization"] = f"Bearer {address.token}"

    def close(self) -> None:
        self._session.close()

    def now(self) -> float:
        """The server's time."""
        return float(self.get("query", query="time()")["result"][0])

    def samples(self, selector: str, start: float, end: float) -> list[Series]:
        """The samples of series as they were stored after `start`, until `end`."""
        milliseconds = max(1, round(1000 * (end - start)))
        data = self.get("query", query=f"{selector}[{milliseconds}ms]", time=f"{end:.3f}")
        found = [_series(one, one["values"]) for one in data["result"]]
        # Whether a range has the value on its left end differs between versions.
        return [_after(one, start) for one in found]

    def values(self, expression: str, time: float) -> list[Series]:
        """What an expression gives at one moment."""
        data = self.get("query", query=expression, time=f"{time:.3f}")
        return [_series(one, [one["value"]]) for one in data["result"]]

    def ranges(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """What an expression gives at each step."""
        data = self.get(
            "query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}"
        )
        return [_series(one, one["values"]) for one in data["result"]]

    def runs(self) -> list[str]:
        """The names of all runs of which samples are stored."""
        found = self.get("label/run/values", **{"match[]": "trainwatch_samples_total"})
        return sorted(found)

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Labels may only be asked for by GET; queries are too long for it."""
        url = f"{self._url}/api/v1/{path}"

        def ask() -> requests.Response:
            if path.startswith("label/"):
                return self._session.get(url, params=parameters, timeout=TIMEOUT)
            return self._session.post(url, data=parameters, timeout=TIMEOUT)

        return answered(ask, self._url, "read less of the run with &start= and &end=")


def answered(ask: Callable[[], requests.Response], server: str, shorter: str) -> Any:
    """The data of the answer. Raises UserError where there is none; `shorter` says how to ask for less."""
    try:
        response = ask()
    except requests.Timeout:
        raise UserError(f"{server}: gave no answer within {TIMEOUT:g} s; {shorter}") from None
    except requests.RequestException:
        raise UserError(f"{server}: cannot be reached; is it the address of Prometheus?") from None
    if response.status_code in (401, 403):
        raise UserError(f"{server}: wants to know who asks; put USER:PASSWORD@ before the host")
    try:
        answer = response.json()
        status = answer["status"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{server}: does not answer as Prometheus does (HTTP status {response.status_code})"
        ) from None
    if status != "success":
        reason = " ".join(str(answer.get("error", "no reason given")).split())
        raise UserError(f"{server}: refused a query ({reason})")
    return answer["data"]


def quoted(text: str) -> str:
    """A text as PromQL writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _series(one: Any, points: Any) -> Series:
    labels = dict(one["metric"])
    columns = np.array([(float(time), float(value)) for time, value in points]).reshape(-1, 2)
    return Series(labels.pop("__name__", ""), labels, columns[:, 0], columns[:, 1])


def _after(series: Series, start: float) -> Series:
    kept = series.times > start + 0.0005
    return Series(series.name, series.labels, series.times[kept], series.values[kept])
