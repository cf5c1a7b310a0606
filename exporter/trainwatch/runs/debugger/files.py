"""Finds the files of a Debugger profiler-output directory, and tells what each is by its name.

system/incremental/[<hour>/]<epoch>.<node>.json                        readings of one node
framework/pevents/[<hour>/]<end in us>_<process>_<kind>timeline.json   events of one process
framework/tensorflow/detailed_profiling/.../<host>.trace.json.gz       TensorFlow's own traces
framework/training_job_end.ts                                          written when the job is over
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwatch.errors import UserError

OUTPUT = "profiler-output"
JOB_END = "training_job_end.ts"
_SYSTEM = re.compile(r"(?P<epoch>\d+)\.(?P<node>.+)\.json")
_EVENTS = re.compile(
    r"(?P<end>\d+)_(?P<process>.+?)_(?P<kind>python|model|horovod|smdataparallel|merged)_?timeline\.json"
)
_TENSORFLOW = re.compile(r"(?P<host>.+)\.trace\.json\.gz")
_PROCESS = re.compile(r"(?P<pid>\d+)-(?P<host>.+)")


@dataclass(frozen=True)
class EventFile:
    """The events of one process. `host` is "" where the file's name does not tell it."""

    path: Path
    kind: str  # python, model, horovod, smdataparallel, tensorflow
    host: str
    pid: int


@dataclass(frozen=True)
class DebuggerFiles:
    """What there is to read, in the order in which it was written."""

    root: Path
    system: dict[str, list[Path]]  # by node
    events: list[EventFile]
    ended: bool  # the job said that it was over
    unknowns: tuple[str, ...]  # sentences about files that are not read

    def bytes(self) -> int:
        """The size of all files that are read."""
        paths = [path for paths in self.system.values() for path in paths]
        paths += [file.path for file in self.events]
        return sum(path.stat().st_size for path in paths)


def holds_debugger_output(directory: Path) -> bool:
    """Whether the directory looks like Debugger's, or holds the one that does."""
    return any((_root(directory) / name).is_dir() for name in ("system", "framework"))


def find(directory: Path) -> DebuggerFiles:
    """All files of the directory. Raises UserError where there is nothing to read."""
    root = _root(directory)
    if not holds_debugger_output(directory):
        raise UserError(
            f"{directory} is not Debugger's (no system/ and no framework/ in it): "
            f"give the {OUTPUT}/ directory of a training job"
        )
    unknowns: list[str] = []
    system = _system(root, unknowns)
    events = _events(root, unknowns)
    if not system and not events:
        raise UserError(
            f"{directory} holds no file of Debugger's: copy the job's {OUTPUT}/ with its folders "
            "system/incremental/ and framework/pevents/"
        )
    ended = any((root / place / JOB_END).exists() for place in ("framework", "system", ""))
    if not ended:
        unknowns.append(f"{JOB_END} is not there: whether the job was over is not known.")
    return DebuggerFiles(root, system, events, ended, tuple(unknowns))


def job_name(root: Path) -> str:
    """The training job's name: SageMaker keeps its output under <job>/profiler-output."""
    root = root.absolute()
    return root.parent.name if root.name == OUTPUT and root.parent.name else root.name


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts algo-10 behind algo-2."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _root(directory: Path) -> Path:
    inner = directory / OUTPUT
    return inner if inner.is_dir() else directory


def _system(root: Path, unknowns: list[str]) -> dict[str, list[Path]]:
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in _once(sorted((root / "system").rglob("*.json")), unknowns):
        match = _SYSTEM.fullmatch(path.name)
        if match is None:
            unknowns.append(f"{path.relative_to(root)} was not read: its name is not <epoch>.<node>.json.")
        else:
            found.setdefault(match["node"], []).append((int(match["epoch"]), path))
    return {node: [path for _, path in sorted(found[node])] for node in sorted(found, key=natural)}


def _events(root: Path, unknowns: list[str]) -> list[EventFile]:
    found: list[tuple[int, EventFile]] = []
    for path in _once(sorted((root / "framework").rglob("*timeline.json")), unknowns):
        match = _EVENTS.fullmatch(path.name)
        if match is None:
            unknowns.append(
                f"{path.relative_to(root)} was not read: its name is not <end>_<process>_<kind>timeline.json."
            )
        elif match["kind"] != "merged":  # made from the others for a viewer: it would count them twice
            host, pid = _process(match["process"])
            found.append((int(match["end"]), EventFile(path, match["kind"], host, pid)))
    found.sort(key=lambda item: (item[0], item[1].path.name))
    unfinished = sum(1 for _ in (root / "framework").rglob("*timeline.json.tmp"))
    if unfinished:
        unknowns.append(f"{unfinished} event files (*.tmp) were still being written and were not read.")
    return [file for _, file in found] + list(_tensorflow(root))


def _tensorflow(root: Path) -> Iterator[EventFile]:
    for path in sorted((root / "framework").rglob("*.trace.json.gz")):
        match = _TENSORFLOW.fullmatch(path.name)
        assert match is not None  # the pattern is that of rglob
        named = next((_metadata_process(item) for item in path.parents[3].glob("*.metadata")), None)
        host, pid = named or (match["host"], 0)
        yield EventFile(path, "tensorflow", host, pid)


def _metadata_process(path: Path) -> tuple[str, int]:
    """Debugger leaves <process>_<start>_<end>.metadata beside the folder of a TensorFlow trace."""
    return _process(path.stem.rsplit("_", 2)[0])


def _process(name: str) -> tuple[str, int]:
    """Host and process of "151-algo-1"; "0001" and the like name no host."""
    match = _PROCESS.fullmatch(name)
    if match is not None:
        return match["host"], int(match["pid"])
    number = name.partition("_")[0]
    return ("", int(number)) if number.isdigit() else (name, 0)


def _once(paths: Iterable[Path], unknowns: list[str]) -> list[Path]:
    """Each name once: a file may lie in its hour's folder and outside of it."""
    seen: dict[str, Path] = {}
    for path in paths:
        if path.name in seen:
            unknowns.append(f"{path.name} is there twice and was read once.")
        seen.setdefault(path.name, path)
    return list(seen.values())
