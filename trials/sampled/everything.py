"""Does what moves frames and threads: as many kinds of it as Python has without a library.

usage: python -m trials.sampled.everything SECONDS SEED
"""

import asyncio
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from trials.sampled import sampling

C_THREADS = 4


def recursion() -> None:
    def deeper(depth: int) -> int:
        return 0 if depth == 0 else 1 + deeper(depth - 1)

    deeper(300)
    with suppress(RecursionError):
        deeper(10**6)


def exceptions() -> None:
    def fails(depth: int) -> None:
        try:
            if depth == 0:
                raise ValueError
            fails(depth - 1)
        except ValueError as error:
            raise ValueError from error

    for _ in range(20):
        with suppress(ValueError):
            fails(20)


def generators() -> None:
    def numbers(depth: int) -> Iterator[int]:
        if depth:
            yield from numbers(depth - 1)
        yield depth

    for _ in range(20):
        sum(numbers(20))
        next(numbers(20))  # which is then closed half-way


def coroutines() -> None:
    async def ticks() -> AsyncIterator[int]:
        for number in range(5):
            yield number
            await asyncio.sleep(0)

    async def work() -> None:
        async for _ in ticks():
            pass

    async def all_work() -> None:
        await asyncio.gather(*(work() for _ in range(10)))

    asyncio.run(all_work())


def code_that_was_just_made() -> None:
    for number in range(20):
        names: dict[str, Callable[[], int]] = {}
        exec(f"def made_{number}():\n    return sum(i * i for i in range(500))", names)
        names[f"made_{number}"]()


class Finalized:
    """A member of a cycle whose end runs Python code and gives up the interpreter lock."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        finalizer()


def finalizer() -> None:
    time.sleep(0)
    sum(range(50))


def garbage() -> None:
    for _ in range(100):
        Finalized()
    gc.collect()


def threads() -> None:
    started = [threading.Thread(target=generators) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def called_by_c(_: int | None) -> None:
    sum(range(50))


CALLED_BY_C = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(called_by_c)


def threads_of_c_code() -> None:
    """Starts threads that Python does not know before they call it: each one makes itself known, and ends."""
    library, idents = ctypes.CDLL(None), (ctypes.c_ulong * C_THREADS)()
    for _ in range(20):
        for number in range(C_THREADS):
            library.pthread_create(ctypes.byref(idents, 8 * number), None, CALLED_BY_C, None)
        for ident in idents:
            library.pthread_join(ctypes.c_ulong(ident), None)


def forks() -> None:
    pid = os.fork()
    if pid == 0:
        generators()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "a forked process died"


def interpreters() -> None:
    module = __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    other = module.create()
    (getattr(module, "exec", None) or module.run_string)(other, "sum(i * i for i in range(1000))")
    module.destroy(other)


KINDS: list[Callable[[], None]] = [
    recursion, exceptions, generators, coroutines, code_that_was_just_made, garbage, threads,
    threads_of_c_code, forks,
]  # fmt: skip
if sys.version_info >= (3, 12):  # from then on each one has a lock of its own
    KINDS.append(interpreters)


if __name__ == "__main__":
    seconds, chosen = float(sys.argv[1]), random.Random(sys.argv[2])
    sampling.start()
    rounds, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline or rounds < len(KINDS):
        for kind in chosen.sample(KINDS, len(KINDS)):
            kind()
            rounds += 1
    sampling.end(rounds)
