"""The HTTP handler of `stepscope actions`."""

import hmac
import json
import logging
from collections.abc import Sequence
from http import HTTPStatus

from stepscope.alertmanager.actions.notification import NotificationError, read_notification
from stepscope.alertmanager.actions.policy import Action
from stepscope.web.limits import Limits
from stepscope.web.messages import Request, RequestError, Response
from stepscope.web.passwords import BasicAuthentication

logger = logging.getLogger(__name__)

# An alert with its annotations has about 2 kB, so this is enough for 4,000 alerts in one notification.
LIMITS = Limits(body_bytes=8 * 1024 * 1024, connections=16)

PATH = "/alerts"


class Receiver:
    """The handler of the server: POST /alerts, and /-/healthy for health checks."""

    def __init__(
        self,
        actions: Sequence[Action],
        token: str | None,
        authentication: BasicAuthentication,
    ) -> None:
        self._actions = actions
        self._authorization = f"Bearer {token}".encode() if token else None
        self._authentication = authentication

    async def answer(self, request: Request) -> Response:
        """Returns the response to one request. Raises RequestError with the reason."""
        if request.path == "/-/healthy":
            return Response(HTTPStatus.OK, b"Healthy\n")
        if request.path != PATH:
            raise RequestError(HTTPStatus.NOT_FOUND, f"Not found: notifications are posted to {PATH}")
        if not await self._allows(request):
            headers = {"WWW-Authenticate": "Bearer" if self._authorization else "Basic"}
            return Response(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", headers=headers)
        if request.method != "POST":
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"Only POST\n", headers={"Allow": "POST"})
        return self._take(await request.body())

    async def _allows(self, request: Request) -> bool:
        """Returns whether a client has the token or a user's password, or whether neither is required."""
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._authorization and hmac.compare_digest(given, self._authorization):
            return True
        if self._authorization and not self._authentication.users:
            return False
        return await self._authentication.allows(request)

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
            decisions = [each for action in self._actions for each in action.answer(notification.alerts)]
        except OSError as error:  # Alertmanager retries after a 503
            logger.error("nothing was done: %s", error)
            raise RequestError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the audit or the ledgers cannot be used: see the log"
            ) from None
        text = json.dumps({"decisions": decisions})
        return Response(HTTPStatus.OK, f"{text}\n".encode(), "application/json")
