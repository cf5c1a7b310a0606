"""Finds the files of a Debugger profiler-output directory, and identifies each by its name.

system/incremental/[<hour>/]<epoch>.<node>.json                        readings of one node
framework/pevents/[<hour>/]<end in us>_<process>_<kind>timeline.json   events of one process
framework/tensorflow/detailed_profiling/.../<host>.trace.json.gz       TensorFlow's own traces
framework/training_job_end.ts                                          written when the job is over
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from stepscope.common.errors import UserError

OUTPUT = "profiler-output"
JOB_END = "training_job_end.ts"
_SYSTEM = re.compile(r"(?P<epoch>\d+)\.(?P<node>.+)\.json")
_EVENTS = re.compile(
    r"(?P<end>\d+)_(?P<process>.+?)_(?P<kind>python|model|horovod|smdataparallel|merged)_?timeline\.json"
)
_PROCESS = re.compile(r"(?P<pid>\d+)-(?P<host>.+)")


@dataclass(frozen=True)
class EventFile:
    """The events of one process; `host` is "" if the file's name does not contain it."""

    path: Path
    kind: str  # python, model, horovod, smdataparallel, tensorflow
    host: str
    pid: int


@dataclass(frozen=True)
class DebuggerFiles:
    """The files to read, in the order in which they were written."""

    root: Path
    system: dict[str, list[Path]]  # by node
    events: list[EventFile]
    ended: bool  # the job reported its end
    unknowns: tuple[str, ...]  # sentences about files that are not read

    def bytes(self) -> int:
        """Returns the size of all files that are read."""
        paths = chain(*self.system.values(), (file.path for file in self.events))
        return sum(path.stat().st_size for path in paths)


def holds_debugger_output(directory: Path) -> bool:
    """Returns whether the directory, or the profiler-output/ in it, looks like Debugger's."""
    return any((_root(directory) / name).is_dir() for name in ("system", "framework"))


def find(directory: Path) -> DebuggerFiles:
    """Returns all files of the directory. Raises UserError if there is nothing to read."""
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
        unknowns.append(f"{JOB_END} is missing: it is not known whether the job had ended.")
    return DebuggerFiles(root, system, events, ended, tuple(unknowns))


def job_name(root: Path) -> str:
    """Returns the training job's name: SageMaker stores its output under <job>/profiler-output."""
    root = root.absolute()
    return root.parent.name if root.name == OUTPUT and root.parent.name else root.name


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Returns a sort key that puts algo-10 after algo-2."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def _root(directory: Path) -> Path:
    inner = directory / OUTPUT
    return inner if inner.is_dir() else directory


def _system(root: Path, unknowns: list[str]) -> dict[str, list[Path]]:
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in _once(sorted((root / "system").rglob("*.json")), root, unknowns):
        match = _SYSTEM.fullmatch(path.name)
        if match is None:
            unknowns.append(f"{path.relative_to(root)} was not read: its name is not <epoch>.<node>.json.")
        else:
            found.setdefault(match["node"], []).append((int(match["epoch"]), path))
    return {node: [path for _, path in sorted(found[node])] for node in sorted(found, key=natural)}


def _events(root: Path, unknowns: list[str]) -> list[EventFile]:
    found: list[tuple[int, EventFile]] = []
    for path in _once(sorted((root / "framework").rglob("*timeline.json")), root, unknowns):
        match = _EVENTS.fullmatch(path.name)
        if match is None:
            unknowns.append(
                f"{path.relative_to(root)} was not read: its name is not <end>_<process>_<kind>timeline.json."
            )
        elif match["kind"] != "merged":  # a copy of the others for a viewer, which would count twice
            host, pid = _process(match["process"])
            found.append((int(match["end"]), EventFile(path, match["kind"], host, pid)))
    found.sort(key=lambda item: (item[0], item[1].path.name))
    unfinished = sum(1 for _ in (root / "framework").rglob("*timeline.json.tmp"))
    if unfinished:
        unknowns.append(f"{unfinished} event files (*.tmp) were still being written and were not read.")
    return [file for _, file in found] + list(_tensorflow(root, unknowns))


def _tensorflow(root: Path, unknowns: list[str]) -> Iterator[EventFile]:
    for path in _plain_files(sorted((root / "framework").rglob("*.trace.json.gz")), root, unknowns):
        # Each process leaves <process>_<start>_<end>.metadata next to the folder of the TensorFlow traces.
        found = (each for folder in path.parents[3:4] for each in folder.glob("*.metadata"))
        processes = {_process(metadata.stem.rsplit("_", 2)[0]) for metadata in found}
        host, pid = processes.pop() if len(processes) == 1 else (path.name.removesuffix(".trace.json.gz"), 0)
        yield EventFile(path, "tensorflow", host, pid)


def _process(name: str) -> tuple[str, int]:
    """Returns host and process of "151-algo-1"; a name such as "0001" contains no host."""
    match = _PROCESS.fullmatch(name)
    if match is not None:
        return match["host"], int(match["pid"])
    number = name.partition("_")[0]
    return ("", int(number)) if number.isdecimal() else (name, 0)


def _plain_files(paths: Iterable[Path], root: Path, unknowns: list[str]) -> Iterator[Path]:
    """Yields what can be read. A pipe, for example, would never end."""
    for path in paths:
        if path.is_file():
            yield path
        else:
            unknowns.append(f"{path.relative_to(root)} was not read: it is not a plain file.")


def _once(paths: Iterable[Path], root: Path, unknowns: list[str]) -> list[Path]:
    """Returns each file once by its name: it may be both in its hour's folder and outside of it."""
    found = list(_plain_files(paths, root, unknowns))
    first = {path.name: path for path in reversed(found)}
    unknowns += [
        f"{path.name} exists twice and was read once." for path in found if first[path.name] is not path
    ]
    return list(dict.fromkeys(first[path.name] for path in found))
