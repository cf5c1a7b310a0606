"""Starts ranks of a script as torchrun does: `python ranks.py 2 SCRIPT ...`. All share one import of PyTorch.

PyTorch, and Dynamo that its optimizers import, take several CPU seconds. So the ranks are forks of a process
that has imported them. tests/training/test_launch.py and others have the real torchrun.
"""

import os
import runpy
import signal
import socket
import sys
import uuid
from collections.abc import Sequence


def launcher(ranks: int) -> list[str]:
    """Returns the command whose next words are the script and its arguments."""
    return [sys.executable, __file__, str(ranks)]


def main(ranks: int, words: Sequence[str]) -> int:
    """Returns 1 as soon as a rank has failed: the others are ended then."""
    with socket.socket() as holding:  # the port for rank 0, as tests/support/ports.py does
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        return _train(ranks, words, holding.getsockname()[1])


def _train(ranks: int, words: Sequence[str], port: int) -> int:
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
    started: set[int] = set()
    for rank in range(ranks):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(launch, RANK=str(rank), LOCAL_RANK=str(rank))
            sys.argv = [*words]
            runpy.run_path(words[0], run_name="__main__")
            return 0
        started.add(child)
    try:
        while started:
            child, status = os.wait()
            started.discard(child)
            if status:
                return 1
        return 0
    finally:
        for child in started:
            os.kill(child, signal.SIGTERM)
        for child in started:
            os.waitpid(child, 0)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
