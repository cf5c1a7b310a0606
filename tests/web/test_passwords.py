"""A flood of wrong passwords: clients whose password is known do not notice, and new ones get their turn."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence

import bcrypt
import pytest
from stepscope.web import passwords
from stepscope.web.messages import Request, RequestError
from stepscope.web.passwords import WAITING, WAITING_PER_CLIENT, BasicAuthentication, matches

from tests.support.waiting import SECONDS

SECRET, OTHER = (bcrypt.hashpw(password, bcrypt.gensalt(4)) for password in (b"secret", b"another"))
REFUSED = 429


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """As many checks of passwords end as it is released."""
    ends = threading.Semaphore(0)

    def check(*arguments: bytes) -> bool:
        assert ends.acquire(timeout=SECONDS)
        return matches(*arguments)

    monkeypatch.setattr(passwords, "matches", check)
    return ends


def asks(user: str, password: str, client: str = "10.0.0.1") -> Request:
    credentials = b64encode(f"{user}:{password}".encode()).decode()
    return Request("GET", "/metrics", {"authorization": f"Basic {credentials}"}, client)


def flood(
    authentication: BasicAuthentication, count: int, client: Callable[[int], str]
) -> list[asyncio.Task[bool | int]]:
    """Starts to try wrong passwords; a task gives whether it was let in, or the status of the refusal."""

    async def attempt(number: int) -> bool | int:
        try:
            return await authentication.allows(asks("prometheus", f"wrong {number}", client(number)))
        except RequestError as error:
            return int(error.status)

    return [asyncio.create_task(attempt(number)) for number in range(count)]


def run(scene: Callable[[BasicAuthentication], Awaitable[None]]) -> None:
    authentication = BasicAuthentication({"prometheus": SECRET, "other": OTHER})
    try:
        asyncio.run(scene(authentication))  # type: ignore[arg-type]
    finally:
        authentication.close()


def results(tasks: Sequence[asyncio.Task[bool | int]]) -> list[bool | int]:
    return [task.result() for task in tasks if task.done()]


def test_a_known_password_does_not_wait_for_wrong_ones(checks: threading.Semaphore) -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        checks.release()
        assert await authentication.allows(asks("prometheus", "secret"))
        tasks = flood(authentication, 100, lambda number: f"10.0.1.{number}")
        await asyncio.sleep(0)
        for _ in range(50):
            assert await authentication.allows(asks("prometheus", "secret"))
            await asyncio.sleep(0)
        assert results(tasks) == [REFUSED] * (100 - WAITING)
        checks.release(WAITING)
        assert set(await asyncio.gather(*tasks)) == {False, REFUSED}

    run(scene)


def test_a_client_that_floods_leaves_room_for_another_one_with_a_new_password() -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        tasks = flood(authentication, 100, lambda _: "10.0.0.66")
        await asyncio.sleep(0)
        assert await authentication.allows(asks("prometheus", "secret", "10.0.0.1"))
        assert results(tasks) == [False] * WAITING_PER_CLIENT + [REFUSED] * (100 - WAITING_PER_CLIENT)
        assert await asyncio.gather(*flood(authentication, 1, lambda _: "10.0.0.66")) == [False]

    run(scene)


def test_a_password_that_is_sent_many_times_at_once_is_checked_once() -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        asked = [authentication.allows(asks("prometheus", "secret")) for _ in range(20)]
        assert await asyncio.gather(*asked) == [True] * 20

    run(scene)


def test_a_client_that_leaves_does_not_end_the_check_for_others() -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        leaves, stays = (
            asyncio.create_task(authentication.allows(asks("prometheus", "secret"))) for _ in range(2)
        )
        await asyncio.sleep(0)
        leaves.cancel()
        assert await stays

    run(scene)


def test_an_unknown_user_waits_for_a_check_as_a_known_one_does(checks: threading.Semaphore) -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        checks.release()
        unknown = asyncio.create_task(authentication.allows(asks("nobody", "secret")))
        known = asyncio.create_task(authentication.allows(asks("prometheus", "wrong")))
        done, _ = await asyncio.wait([unknown, known], return_when=asyncio.FIRST_COMPLETED)
        assert done == {unknown}  # the first in the queue, and it was in the queue
        assert not unknown.result()
        checks.release()
        assert not await known

    run(scene)


def test_a_password_that_was_replaced_is_no_longer_accepted() -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        assert await authentication.allows(asks("prometheus", "secret"))
        assert b"secret" not in repr(vars(authentication)).encode()
        authentication.users = {"prometheus": OTHER}
        assert not await authentication.allows(asks("prometheus", "secret"))
        assert await authentication.allows(asks("prometheus", "another"))

    run(scene)


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!!", "Basic \xe4", "Bearer secret", "Basic cHJvbWV0aGV1cw=="]
)
def test_what_is_no_password_is_refused_without_a_check(header: str) -> None:
    async def scene(authentication: BasicAuthentication) -> None:
        assert not await authentication.allows(Request("GET", "/", {"authorization": header}))

    run(scene)
