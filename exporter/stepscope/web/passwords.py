"""Checks passwords against bcrypt hashes, which are slow by design."""

import asyncio
import base64
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from http import HTTPStatus

from stepscope.web.messages import Request, RequestError

WAITING = 16  # passwords that wait for their check, of all clients
WAITING_PER_CLIENT = 2
LOWER_PRIORITY = 10  # of the thread that checks, as `nice` counts


class BasicAuthentication:
    """Lets in users with the correct password; everybody while there are no users.

    The digest of a correct password is kept, so each client pays for bcrypt once. Other passwords are
    checked one after another on a thread of low priority, and few clients may wait for it. So a flood of
    wrong passwords delays neither clients whose password is known nor the samples.
    """

    def __init__(self, users: Mapping[str, bytes] | None = None) -> None:
        self.users: Mapping[str, bytes] = users or {}  # hash by name; may be replaced at any time
        self._key = os.urandom(32)  # the digests are useless outside of this process
        self._correct: dict[str, bytes] = {}  # digest by name
        self._checks: dict[bytes, asyncio.Future[bool]] = {}  # by digest
        self._waiting: Counter[str] = Counter()  # checks by client
        self._thread = ThreadPoolExecutor(1, "bcrypt", _lower_priority)

    async def allows(self, request: Request) -> bool:
        """Returns whether the request has a user with the correct password. Raises RequestError."""
        users = self.users
        if not users:
            return True
        given = _credentials(request.headers.get("authorization", ""))
        if given is None:
            return False
        user, password = given
        # An unknown user costs the same time as a wrong password, so that names cannot be guessed.
        hashed = users.get(user) or next(iter(users.values()))
        digest = blake2b(b"\0".join((user.encode(), hashed, password)), key=self._key).digest()
        if self._correct.get(user) == digest:
            return True
        if not await self._check(digest, password, hashed, request.client) or user not in users:
            return False
        self._correct[user] = digest
        return True

    async def _check(self, digest: bytes, password: bytes, hashed: bytes, client: str) -> bool:
        check = self._checks.get(digest)  # a client may ask twice at once
        if check is None:
            if len(self._checks) >= WAITING or self._waiting[client] >= WAITING_PER_CLIENT:
                raise RequestError(
                    HTTPStatus.TOO_MANY_REQUESTS, "Too many passwords to check: try again", "passwords"
                )
            loop = asyncio.get_running_loop()
            check = asyncio.ensure_future(loop.run_in_executor(self._thread, matches, password, hashed))
            self._checks[digest] = check
            self._waiting[client] += 1
            check.add_done_callback(lambda _: self._forget(digest, client))
        return await asyncio.shield(check)  # a client that leaves does not end it for others

    def _forget(self, digest: bytes, client: str) -> None:
        del self._checks[digest]
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def matches(password: bytes, hashed: bytes) -> bool:
    """Returns whether a bcrypt hash is this password's."""
    import bcrypt

    try:
        return bool(bcrypt.checkpw(password, hashed))
    except ValueError:  # longer than 72 bytes, or with a NUL: never a password
        return False


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    """Returns the user and the password of an `Authorization` header; None if it has none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # not base64, or not ASCII
        return None
    return (user.decode("utf-8", "replace"), password) if separator else None


def _lower_priority() -> None:
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(LOWER_PRIORITY)  # on Linux only of the calling thread
