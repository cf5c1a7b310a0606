"""Services of docker-compose.yml as processes of this machine: their commands, mounts and names only.

Run as a program by `unshare`, in namespaces of its own for network and mounts, so that every port is free and
names can be answered as Docker answers them. It reads from stdin

    {"services": {NAME: {"command": [...], "address": "127.0.1.1"}}, "expressions": {KEY: PROMQL},
     "urls": {KEY: URL}}

and writes as JSON what Prometheus says to each expression and what each URL gives, once nothing is empty.
"""

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from tests.support.processes import ran
from tests.support.waiting import SECONDS

PROGRAMS = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}  # as Debian calls them
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
DNS = "127.0.0.53"


def possible() -> bool:
    """Whether this machine lets a process have namespaces of its own, and has the servers."""
    if any(shutil.which(program) is None for program in ("unshare", *PROGRAMS.values())):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


def as_process(name: str, service: Mapping[str, Any], folder: Path) -> list[str]:
    """The service's command with the paths of its mounts as they are outside of a container."""
    words = [PROGRAMS[name]] if name in PROGRAMS else [sys.executable, "-m", "stepscope"]
    for word in service["command"]:
        for mount in service.get("volumes", ()):
            source = mount["source"]
            if mount["type"] == "volume":
                source = str(folder / source)
                Path(source).mkdir(exist_ok=True)
            word = word.replace(f"={mount['target']}", f"={source}")
        words.append(word)
    return words


def run(
    services: Mapping[str, Mapping[str, Any]],
    expressions: Mapping[str, str],
    urls: Mapping[str, str],
) -> dict[str, Any]:
    """What is said once every expression and URL says something."""
    told = ran(
        [*UNSHARE, sys.executable, "-m", "tests.support.services_as_processes"],
        input=json.dumps({"services": services, "expressions": expressions, "urls": urls}),
        cwd=Path(__file__).parents[2],
    )
    assert told.returncode == 0, told.stderr[-4000:]
    said: dict[str, Any] = json.loads(told.stdout)
    return said


def _main() -> None:
    wanted = json.load(sys.stdin)
    _loopback_up()
    names = {name: service["address"] for name, service in wanted["services"].items()}
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        _answer_names(names)
        for service in wanted["services"].values():
            process = stack.enter_context(subprocess.Popen(service["command"], stdout=log, stderr=log))
            stack.callback(process.terminate)
        said = _said(wanted["expressions"], wanted["urls"])
        if said is None:
            log.seek(0)
            sys.exit(log.read()[-4000:])
        print(json.dumps(said))


def _said(expressions: Mapping[str, str], urls: Mapping[str, str]) -> dict[str, Any] | None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = {key: _query(expression) for key, expression in expressions.items()}
        said |= {key: _get(url) for key, url in urls.items()}
        if all(said.values()):
            return said
        time.sleep(0.5)
    print(f"still empty: {[key for key, value in said.items() if not value]}", file=sys.stderr)
    return None


def _query(expression: str) -> Any:
    answer = _get(f"http://127.0.0.1:9090/api/v1/query?query={quote(expression)}")
    return answer["data"]["result"] if answer else None


def _get(url: str) -> Any:
    try:
        with urlopen(url, timeout=SECONDS) as response:
            return json.load(response)
    except (URLError, OSError):
        return None


def _loopback_up() -> None:
    """`ip link set lo up`: a new network has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up, set_flags = 0x1, 0x8914  # IFF_UP, SIOCSIFFLAGS
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))


def _answer_names(names: Mapping[str, str]) -> None:
    """A DNS server that knows these names and no others, and /etc/resolv.conf that points at it."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((DNS, 53))

    def serve() -> None:
        while True:
            asked, client = server.recvfrom(4096)
            server.sendto(_answer(asked, names), client)

    threading.Thread(target=serve, daemon=True).start()
    with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
        file.write(f"nameserver {DNS}\n")
    subprocess.run(["mount", "--bind", file.name, os.path.realpath("/etc/resolv.conf")], check=True)
    os.unlink(file.name)


def _answer(asked: bytes, names: Mapping[str, str]) -> bytes:
    """RFC 1035: an A record; nothing for other types; NXDOMAIN for other names."""
    name = ".".join(_labels(asked))
    end = 12 + len(name) + 2
    question = asked[12 : end + 4]
    (kind,) = struct.unpack(">H", asked[end : end + 2])
    address = names.get(name)
    if address is None:
        return asked[:2] + struct.pack(">HHHHH", 0x8183, 1, 0, 0, 0) + question
    records = b""
    if kind == 1:
        records = struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(address)
    return asked[:2] + struct.pack(">HHHHH", 0x8180, 1, 1 if records else 0, 0, 0) + question + records


def _labels(asked: bytes) -> Iterable[str]:
    position = 12
    while length := asked[position]:
        yield asked[position + 1 : position + 1 + length].decode()
        position += 1 + length


if __name__ == "__main__":
    _main()
