"""Reads and writes lists of cores as the kernel does: "0-3,8" (cpuset(7), "List format")."""

from __future__ import annotations

from collections.abc import Iterable


def parse_cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers of the cores. Raises ValueError if the text is not a list."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def cpu_list(cores: Iterable[int]) -> str:
    """Returns the list with the fewest characters."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][1] == core - 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
