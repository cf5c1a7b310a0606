"""Ports for servers that cannot be told to let the kernel choose one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Yields a port of 127.0.0.1 that the kernel gives to nobody else, but a server that asks for it gets it.

    The port stays bound here, and nobody listens. Linux lets another socket bind a port by its number if both
    sockets have SO_REUSEADDR, as those of servers have. A port that was only free a moment ago may be taken.
    """
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        yield holding.getsockname()[1]
