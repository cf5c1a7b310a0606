"""Requests to servers with Prometheus's HTTP API: retried, and with errors in one line."""

import time
from typing import Any

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.exceptions import ChunkedEncodingError, ProxyError, SSLError

from stepscope.common.errors import UserError
from stepscope.runs.prometheus.address import Access

TIMEOUT = 120.0  # seconds per answer: Prometheus itself gives up after 2 minutes
BUSY = (429, 502, 503, 504)  # HTTP statuses that may be over soon
TOO_LARGE = (413, 422)  # a query that was too long, or that exceeded a limit while it ran
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each retry
LONGEST_PAUSE = 30.0  # seconds that a server may ask for with Retry-After
LONGEST_REASON = 300  # characters of a server's error
# VictoriaMetrics rounds times to steps and leaves out the last 30 s otherwise. Others ignore these.
EXACT = {"nocache": "1", "latency_offset": "1ms"}


def quoted(text: str) -> str:
    """Returns a text as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class TooMuchError(UserError):
    """The server does not answer as much at once; it may answer for a part of the time."""


class Connection:
    """A server's API under `/api/v1/`. Raises UserError if the server does not answer, or refuses.

    Proxies are those of the environment: HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
    """

    def __init__(self, access: Access, timeout: float = TIMEOUT, patient: bool = True) -> None:
        """Prepares requests. `timeout`: seconds per answer; `patient`: sends again what may succeed later."""
        self.url = access.url
        self._timeout, self._patient = timeout, patient
        self.warnings: dict[str, None] = {}  # of answers that may lack something, each once
        self._session = requests.Session()
        self._session.auth = _authentication(access)
        if access.tenant:
            self._session.headers["X-Scope-OrgID"] = access.tenant
        certificate = (access.cert_file, access.key_file) if access.key_file else access.cert_file
        # Given with each request, because REQUESTS_CA_BUNDLE would override what a session has.
        self._tls: dict[str, Any] = {"verify": access.ca_file or True, "cert": certificate}
        self._has_answered = False

    def close(self) -> None:
        self._session.close()

    def find(self, path: str) -> Any:
        """Returns the data of an answer; None if the server does not know the path."""
        response = self._response("GET", path, {})
        return None if response.status_code in (400, 404, 405, 501) else self._data(response)

    def get(self, path: str, **parameters: str) -> Any:
        return self._data(self._response("GET", path, parameters))

    def post(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer. Queries are too long for GET."""
        return self._data(self._response("POST", path, parameters))

    def _response(self, method: str, path: str, parameters: dict[str, str]) -> requests.Response:
        sent = {**parameters, **EXACT}
        params, data = (sent, None) if method == "GET" else (None, sent)
        url = f"{self.url}/api/v1/{path}"
        try:
            for retry, pause in enumerate((*(PAUSES if self._patient else ()), None)):
                asked_for = 0.0
                try:
                    response = self._session.request(
                        method, url, params=params, data=data, timeout=self._timeout, **self._tls
                    )
                except requests.RequestException as error:
                    if pause is None or not self._may_pass(error, retry):
                        raise
                else:
                    self._has_answered = True
                    if pause is None or response.status_code not in BUSY or _kind(response) == "timeout":
                        return response
                    text = response.headers.get("Retry-After", "")
                    asked_for = float(text) if text.isdecimal() else 0.0
                time.sleep(min(max(pause, asked_for), LONGEST_PAUSE))
        except OSError as error:  # requests' own errors, and files that TLS cannot use
            raise self._described(error) from None
        raise AssertionError  # the last attempt returned or raised

    def _may_pass(self, error: requests.RequestException, retry: int) -> bool:
        """Returns whether a failure may be over soon: not that of a wrong address or configuration."""
        if isinstance(error, requests.Timeout):
            return retry == 0  # each takes minutes
        if isinstance(error, (SSLError, ProxyError)):
            return False
        return self._interrupted(error)

    def _interrupted(self, error: OSError) -> bool:
        lost = isinstance(error, requests.ConnectionError) and self._has_answered
        return lost or isinstance(error, ChunkedEncodingError)

    def _described(self, error: OSError) -> UserError:
        if isinstance(error, requests.Timeout):
            remedy = "; choose a shorter time" if self._patient else ""
            return TooMuchError(f"{self.url}: gave no answer within {self._timeout:g} s{remedy}")
        if isinstance(error, ProxyError):
            return UserError(
                f"{self.url}: the proxy cannot be reached; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            )
        if isinstance(error, SSLError) or not isinstance(error, requests.RequestException):
            return UserError(
                f"{self.url}: TLS fails ({_root(error)}); name the server's CA with &ca_file=FILE, or your "
                "certificate with &cert_file=FILE&key_file=FILE"
            )
        if isinstance(error, requests.TooManyRedirects):
            return UserError(f"{self.url}: does not answer as Prometheus does (it redirects without end)")
        if self._interrupted(error):
            return UserError(f"{self.url}: stopped answering; run the command again when it is back")
        return UserError(f"{self.url}: cannot be reached; is it the address of Prometheus?")

    def _data(self, response: requests.Response) -> Any:
        status = response.status_code
        if status in (401, 403):
            raise UserError(
                f"{self.url}: requires authentication; put USER:PASSWORD@ before the host, or name a token "
                "with &token_file=FILE, or a tenant with &tenant=NAME"
            )
        try:
            answer = response.json()
            succeeded = answer["status"] == "success"
            data = answer["data"] if succeeded else None
            warnings = [*map(str, answer.get("warnings") or ())]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._no_prometheus(status) from None
        if not succeeded:
            reason = _shortened(answer.get("error") or "no reason given")
            too_much = status in TOO_LARGE or _kind(response) == "timeout" or "maximum resolution" in reason
            raise (TooMuchError if too_much else UserError)(f"{self.url}: refused a query ({reason})")
        if answer.get("isPartial"):  # VictoriaMetrics; Thanos warns
            warnings.append("some storage nodes did not answer")
        self.warnings.update(dict.fromkeys(map(_shortened, warnings)))
        return data

    def _no_prometheus(self, status: int) -> UserError:
        if status in BUSY:
            error = TooMuchError if status == 504 else UserError
            return error(
                f"{self.url}: is busy (HTTP status {status}), also after {len(PAUSES)} retries; try later"
            )
        if status in TOO_LARGE:
            return TooMuchError(f"{self.url}: refused a query (HTTP status {status}); choose a shorter time")
        path = "; is a path missing, such as /prometheus?" if status == 404 else ""
        return UserError(f"{self.url}: does not answer as Prometheus does (HTTP status {status}){path}")


class _Bearer(AuthBase):
    """Sends a token. As authentication of the session, it is not replaced by ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _authentication(access: Access) -> AuthBase | None:
    if access.user is not None:  # bytes: requests would not take every character
        return HTTPBasicAuth(access.user.encode(), access.password.encode())
    return _Bearer(access.token) if access.token else None


def _kind(response: requests.Response) -> str:
    """Returns the type of error that Prometheus names; "" without one."""
    try:
        return str(response.json().get("errorType", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


def _root(error: BaseException) -> str:
    """Returns what was first wrong, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return _shortened(getattr(error, "verify_message", "") or getattr(error, "strerror", "") or error)


def _shortened(reason: object) -> str:
    words = " ".join(str(reason).split())
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]} ..."
