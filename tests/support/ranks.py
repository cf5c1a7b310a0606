"""Starts ranks of a script as torchrun does, but imports no PyTorch for it: `python ranks.py 2 SCRIPT ...`.

Importing PyTorch takes two CPU seconds. tests/training/test_launch.py and others have the real torchrun.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence


def launcher(ranks: int) -> list[str]:
    """Returns the command whose next words are the script and its arguments."""
    return [sys.executable, __file__, str(ranks)]


def main(ranks: int, words: Sequence[str]) -> int:
    """Returns 1 as soon as a rank has failed: the others are ended then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            number = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen([sys.executable, *words], env={**os.environ, **launch, **number}))
        while any(each.poll() is None for each in started):
            if any(each.returncode for each in started):
                return 1
            time.sleep(0.02)
        return int(any(each.returncode for each in started))
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
