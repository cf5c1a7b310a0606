"""The HTTP handler of `trainwatch actions`."""

from __future__ import annotations

import hmac
import json
import logging
from http import HTTPStatus

from trainwatch.actions.notification import NotificationError, read_notification
from trainwatch.actions.stopping import Stopping
from trainwatch.web.server import Limits, Request, RequestError, Response
from trainwatch.web.web_config import BasicAuthentication

logger = logging.getLogger(__name__)

# An alert with its annotations has about 2 kB, so this is enough for 4,000 alerts in one notification.
LIMITS = Limits(body_bytes=8 * 1024 * 1024, connections=16)

PATH = "/alerts"


class Receiver:
    """The handler of the server: POST /alerts, and /-/healthy for health checks."""

    def __init__(
        self, stopping: Stopping, token: str | None, authentication: BasicAuthentication | None
    ) -> None:
        self._stopping = stopping
        self._authorization = f"Bearer {token}".encode() if token else None
        self._authentication = authentication

    async def answer(self, request: Request) -> Response:
        """Returns the response to one request. Raises RequestError with the reason."""
        if request.path == "/-/healthy":
            return Response(HTTPStatus.OK, b"Healthy\n")
        if request.path != PATH:
            raise RequestError(HTTPStatus.NOT_FOUND, f"Not found: notifications are posted to {PATH}")
        if not await self._allows(request.headers.get("authorization", "")):
            headers = {"WWW-Authenticate": "Bearer" if self._authorization else "Basic"}
            return Response(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", headers=headers)
        if request.method != "POST":
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"Only POST\n", headers={"Allow": "POST"})
        return self._take(await request.body())

    async def _allows(self, authorization: str) -> bool:
        """Returns whether a client has the token or a user's password, or whether neither is required."""
        if self._authorization and hmac.compare_digest(authorization.encode("latin-1"), self._authorization):
            return True
        if self._authentication:
            return await self._authentication.allows(authorization)
        return self._authorization is None

    def _take(self, body: bytes) -> Response:
        try:
            notification = read_notification(body)
        except NotificationError as error:
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"not a notification of Alertmanager: {error}"
            ) from None
        if notification.truncated:
            logger.warning("%d alerts are not in the notification: unset max_alerts", notification.truncated)
        try:
            decisions = self._stopping.answer(notification.alerts)
        except OSError as error:  # Alertmanager retries after a 503
            logger.error("nothing was done: %s", error)
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the audit or the ledgers cannot be used: see the log"
            ) from None
        text = json.dumps({"decisions": decisions})
        return Response(HTTPStatus.OK, f"{text}\n".encode(), "application/json")
