"""What others can put into shared directories is opened, removed and locked by shared_files.py alone."""

import ast
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stepscope.common.shared_files import (
    UntrustedError,
    create_locked,
    is_locked,
    open_file,
    read_file,
    remove,
)

from tests.support.descriptors import open_below

EXPORTER = Path(__file__).parents[2] / "exporter"
SHARED_FILES = "stepscope/common/shared_files.py"

# Modules, or packages that end in "/", whose files no other user of the machine can plant, and why.
OTHER_FILES = {
    "stepscope/analysis/starting.py": "a new file in a folder that it has just made",
    "stepscope/commands/alertmanager.py": "files of this package",
    "stepscope/commands/cli.py": "/dev/null",
    "stepscope/commands/actions.py": "the file of the token, which the user names",
    "stepscope/alertmanager/actions/processes.py": "procfs",
    "stepscope/exporter/collectors/": "procfs and sysfs, or the modules of this package",
    "stepscope/compare/predicted.py": "the run that the user names",
    "stepscope/prometheus/crosscheck/": "rule files that the user names, and a temporary directory",
    "stepscope/commands/dashboards.py": "the folder that the user names",
    "stepscope/demo/": "a temporary directory of its own, and the folder that the user names",
    "stepscope/commands/demo.py": "the folder that the user names",
    "stepscope/commands/doctor/checks.py": "procfs and cgroups",
    "stepscope/evaluation/settings.py": "the file that the user names",
    "stepscope/commands/hooks.py": "site-packages of the Python that the user names",
    "stepscope/exporter/processes/cgroup.py": "procfs and cgroups",
    "stepscope/exporter/processes/neighbours.py": "procfs",
    "stepscope/exporter/processes/stacks.py": "procfs",
    "stepscope/exporter/processes/tree.py": "procfs",
    "stepscope/exporter/processes/used.py": "procfs",
    "stepscope/common/rendered.py": "the files that the user names",
    "stepscope/common/whole_file.py": "devices, which only root can plant",
    "stepscope/report/page.py": "templates of this package",
    "stepscope/report/price_list.py": "the file that the user names",
    "stepscope/rules/parts/registry.py": "the folders of STEPSCOPE_RULES_PATH",
    "stepscope/commands/run/hooks.py": "procfs",
    "stepscope/commands/run/plan.py": "the directories of PATH",
    "stepscope/commands/run/profiler_config.py": "the file that the user names",
    "stepscope/commands/run/ending.py": "procfs, the working directory, and scripts that the user names",
    "stepscope/runs/debugger/": "the directory that the user names",
    "stepscope/runs/flight_recorder/": "the directory that the user names",
    "stepscope/runs/open.py": "the directory that the user names",
    "stepscope/runs/prometheus/address.py": "the file of the password, which the user names",
    "stepscope/runs/remote.py": "a temporary directory of its own",
    "stepscope/runs/traces/": "the traces that the user names",
    "stepscope/training/frameworks/xla_profilers.py": "a temporary directory of its own",
    "stepscope/training/launch.py": "procfs",
    "stepscope/training/main_stack.py": "the number of a descriptor of its own",
    "stepscope/web/": "the web configuration and the report, which the user names",
    "stepscope/training/stack_request.py": "/dev/null",
    "stepscope/training/startup/sitecustomize.py": "runs in any Python, where this package may not be",
    "stepscope_startup.py": "runs before this package may be imported",
}

FUNCTIONS = {
    *("open", "io.open", "gzip.open", "os.open", "os.scandir", "os.listdir", "os.walk", "os.truncate"),
    *("os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.rename", "os.renames", "os.replace"),
    *("os.link", "os.symlink", "os.mkfifo", "os.mknod", "os.chmod", "os.chown"),
    *("shutil.rmtree", "shutil.move", "shutil.copy", "shutil.copyfile", "shutil.copytree", "rmtree"),
}
METHODS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "walk"),
    *("unlink", "rmdir", "rename", "touch", "chmod", "symlink_to", "hardlink_to"),
}
NOT_OF_PATHS = {"os.fdopen", "webbrowser.open", "analysis.open", "self._writer.rename"}


def calls(source: str) -> Iterator[tuple[int, str]]:
    """Yields the calls that open, list, remove, rename or lock something by its name, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("fcntl", "os", "shutil", "glob"):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in ("fcntl", "glob"))
        if not isinstance(node, ast.Call) or _is_of_kernel(node):
            continue
        name = ast.unparse(node.func)
        method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        # Path.replace has one argument, and str.replace has two.
        moved = isinstance(node.func, ast.Attribute) and node.func.attr == "replace" and len(node.args) == 1
        if name in FUNCTIONS or ((method or moved) and name not in NOT_OF_PATHS):
            yield node.lineno, name


def _is_of_kernel(call: ast.Call) -> bool:
    """Returns whether the call is about a constant path in /proc or /sys."""
    constants = [each.value for each in ast.walk(call) if isinstance(each, ast.Constant)]
    return any(isinstance(each, str) and each.startswith(("/proc/", "/sys/")) for each in constants)


def sources() -> dict[str, str]:
    return {str(path.relative_to(EXPORTER)): path.read_text() for path in sorted(EXPORTER.rglob("*.py"))}


def test_nothing_else_opens_lists_removes_renames_or_locks_what_others_can_plant() -> None:
    found = {module: list(calls(source)) for module, source in sources().items()}
    listed = {module for module in found for known in OTHER_FILES if module.startswith(known)}
    assert {module: there for module, there in found.items() if there and module not in listed} == {
        SHARED_FILES: found[SHARED_FILES]
    }
    needed = [known for known in OTHER_FILES if any(found[each] for each in found if each.startswith(known))]
    assert needed == list(OTHER_FILES), "a module that needs no exception has one"


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "os.open(path, os.O_RDONLY)",
        "path.read_text()",
        "(directory / name).unlink()",
        "unfinished.replace(path)",
        "os.remove(path)",
        "import fcntl",
        "from os import unlink",
    ],
)
def test_a_call_that_somebody_adds_to_a_reader_of_shared_names_is_found(line: str) -> None:
    source = sources()["stepscope/exporter/ledgers/presence.py"]
    assert list(calls(source)) == []
    assert len(list(calls(f"{source}\n{line}\n"))) == 1


# -- the module ----------------------------------------------------------------------------------------


PLANTED: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_what_is_no_plain_file_is_refused_without_waiting_and_leaves_no_descriptor(
    tmp_path: Path, kind: str, flags: int
) -> None:
    PLANTED[kind](tmp_path / "name")
    with pytest.raises(UntrustedError) as refused:
        open_file(tmp_path / "name", flags=flags)
    assert refused.value.reason == "kind"
    assert open_below(tmp_path, "/etc/passwd") == []


def test_owner_and_size_are_checked_before_a_byte_is_read(tmp_path: Path) -> None:
    file = tmp_path / "name"
    file.write_bytes(b"12345")
    me = os.geteuid()
    for owners, most, reason in (({me + 1}, 5, "owner"), ({me}, 4, "size")):
        with pytest.raises(UntrustedError) as refused:
            read_file(file, most, owners)
        assert refused.value.reason == reason
    assert read_file(file, 5, {me, 0}) == b"12345"
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("kind", PLANTED)
def test_whatever_has_a_name_is_removed_and_what_it_leads_to_stays(tmp_path: Path, kind: str) -> None:
    PLANTED[kind](tmp_path / "name")
    assert remove(tmp_path / "name") == ""
    assert not os.path.lexists(tmp_path / "name")
    assert Path("/etc/passwd").exists()
    assert remove(tmp_path / "name") == "", "it is gone"


def test_a_directory_with_something_in_it_stays_and_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / "name" / "more").mkdir(parents=True)
    assert remove(tmp_path / "name") == "Directory not empty"
    assert (tmp_path / "name" / "more").exists()


def test_a_file_has_its_name_when_it_is_complete_and_locked_and_not_before(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)

    def fill(_: object) -> None:
        assert os.listdir(tmp_path) == [".hidden"]
        assert (tmp_path / ".hidden").stat().st_mode & 0o777 == 0o600

    fd, _ = create_locked(folder, "name", ".hidden", 4096, 0, fill)
    os.close(folder)
    assert os.listdir(tmp_path) == ["name"]
    pid = os.fork()
    if pid == 0:  # its own lock does not show to a process
        os._exit(0 if is_locked(fd, 0) and not is_locked(fd, 1) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    fcntl.lockf(fd, fcntl.LOCK_SH, 1, 0)
    pid = os.fork()
    if pid == 0:
        os._exit(1 if is_locked(fd, 0) else 0)
    assert os.waitpid(pid, 0)[1] == 0, "a lock for reading shows no writer"
    os.close(fd)
