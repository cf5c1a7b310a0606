"""A server closes at once, whatever arrives at that moment."""

import asyncio
from http import HTTPStatus

import pytest
from stepscope.web.limits import Limits
from stepscope.web.messages import Request, Response
from stepscope.web.server import Address, Server, bind

from tests.support.waiting import SECONDS

HOUR = 3600.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(_: Request) -> Response:
    return Response(HTTPStatus.OK, b"answered\n")


async def closed_while_a_request_arrives(turns: int) -> None:
    server = Server(answer, limits=Limits(idle_seconds=HOUR, read_seconds=HOUR))
    listening = bind(Address("127.0.0.1", 0))
    address = listening.getsockname()
    server.start([listening])
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(REQUEST)
        await reader.readuntil(b"answered\n")
        writer.write(REQUEST[:1])
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
    finally:
        writer.close()


# In one of these turns of the loop, `wait_for` returns what was read although its task is cancelled.
@pytest.mark.parametrize("turns", range(10))
def test_a_server_closes_while_a_request_arrives(turns: int) -> None:
    asyncio.run(asyncio.wait_for(closed_while_a_request_arrives(turns), SECONDS))
