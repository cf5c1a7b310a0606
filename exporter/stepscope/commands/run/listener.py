"""The port of the live pages: bound once by `stepscope run` and inherited by every exporter it starts.

A port that is only found free here, and bound later by the exporter, may be taken by another run meanwhile.
"""

import socket
from dataclasses import dataclass, replace

from stepscope.common.errors import UserError
from stepscope.web.server import bind, parse_address

DEFAULT_ADDRESS = "127.0.0.1:9870"


@dataclass(frozen=True)
class Listener:
    """A listening socket, and its address with the port that it really has."""

    socket: socket.socket
    address: str  # [HOST]:PORT
    note: str = ""  # if it is not the usual one

    @property
    def reachable(self) -> str:
        """Returns the HOST:PORT at which this machine reaches the pages."""
        host, _, port = self.address.rpartition(":")
        return f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else self.address.replace("[::]", "[::1]")


def listen(given: str | None) -> Listener:
    """Listens on the given address, otherwise on the default one, or on a free port if that is taken.

    Raises UserError if the given address is taken or wrong.
    """
    if given is not None:
        try:
            return _listen(given)
        except UserError as error:
            raise UserError(str(error).replace("--web.listen-address", "--listen")) from None
    try:
        return _listen(DEFAULT_ADDRESS)
    except UserError:
        host, _, port = DEFAULT_ADDRESS.rpartition(":")
        listener = _listen(f"{host}:0")
        return replace(listener, note=f"port {port} is taken; serving on {listener.address} instead")


def _listen(address: str) -> Listener:
    listening = bind(parse_address(address))
    return Listener(listening, f"{address.rpartition(':')[0]}:{listening.getsockname()[1]}")
