"""The ledger directory is shared by people who do not know each other: a bad ledger costs only itself."""

import itertools
import logging
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from stepscope.exporter.ledgers import folder, run_totals
from stepscope.exporter.ledgers.note import LedgerNote
from stepscope.exporter.ledgers.reader import open_ledgers
from stepscope.exporter.sampling.limits import Limits
from stepscope.training import layout
from stepscope.training.ledger import create_ledger
from stepscope.training.ledger_checks import REASONS
from stepscope.training.ledger_files import open_directory
from stepscope.training.ranks import Ranks

from tests.exporter.collectors.test_training import Node
from tests.support.descriptors import open_below
from tests.support.processes import ran
from tests.support.training_process import LAUNCH, RESNET, TrainingProcess, label
from tests.support.training_script import EXPORTER

COPIED = label("copied")
NOBODY = 65534
BECOME_NOBODY = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def healthy(ledgers: Path) -> Iterator[TrainingProcess]:
    """A training process beside whatever a test puts into the directory."""
    with TrainingProcess(ledgers) as trainer:
        trainer.do("stepscope.start()")
        yield trainer


def patched(offset: int, kind: str, *values: float) -> Callable[[Path], None]:
    """Returns what writes a ledger with other values at an offset."""

    def write(path: Path) -> None:
        content = bytearray(recent())
        struct.pack_into(f"<{kind}", content, offset, *values)
        path.write_bytes(content)

    return write


@cache
def copied() -> bytes:
    """A ledger whose process has ended, after six training steps and one of the evaluation."""
    with TemporaryDirectory() as folder:
        with TrainingProcess(Path(folder), "copied", rank=1) as trainer:
            for number, phase in enumerate(["train"] * 5 + ["eval", "train"]):
                trainer.do(
                    f"stepscope.record_step({phase!r}, {number + 1.0}, {number + 1.25}, forward=0.125)"
                )
        (path,) = Path(folder).glob(f"*{layout.SUFFIX}")
        return path.read_bytes()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a look read all ledgers, however busy the machine is."""
    monkeypatch.setattr(folder, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(folder, "DEAD_SECONDS", 3600.0)


def recent() -> bytes:
    return ended(time.time())


def ended(moment: float) -> bytes:
    """A ledger whose process ended then, and began ten seconds before."""
    content = bytearray(copied())
    fields = list(layout.HEADER.unpack_from(content))
    fields[7:9] = moment - 10, moment - 10
    layout.HEADER.pack_into(content, 0, *fields)
    struct.pack_into("<d", content, layout.COUNTERS_AT + 8 * layout.COUNTER_ENDED, moment)
    return bytes(content)


def counter(index: int, value: float) -> Callable[[Path], None]:
    return patched(layout.COUNTERS_AT + 8 * index, "d", value)


def header(field: int, value: float) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = bytearray(recent())
        fields = list(layout.HEADER.unpack_from(content))
        fields[field] = value
        layout.HEADER.pack_into(content, 0, *fields)
        path.write_bytes(content)

    return write


def record(index: int, value: float) -> Callable[[Path], None]:
    newest = layout.RING_AT + 6 * layout.RECORD_BYTES
    return patched(newest + 8 * index, "d", value)


def named(raw: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = bytearray(recent())
        for at in (layout.RUN_AT, layout.NAME_AT):
            content[at : at + len(raw) + 1] = raw + bytes(1)
        path.write_bytes(content)

    return write


BAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an empty file": ("length", Path.touch),
    "half a ledger": ("length", lambda path: path.write_bytes(recent()[:500_000])),
    "a ledger with more behind it": ("length", lambda path: path.write_bytes(recent() + b"more")),
    "another length in the header": ("length", header(2, 4096)),
    "random bytes": ("magic", lambda path: path.write_bytes(os.urandom(layout.FILE_BYTES))),
    "a fifo": ("kind", os.mkfifo),
    "a directory": ("kind", Path.mkdir),
    "a symbolic link": ("kind", lambda path: path.symlink_to("/etc/passwd")),
    "a dangling link": ("kind", lambda path: path.symlink_to("nowhere")),
    "a version that never was": ("version", header(1, 0)),
    "a rank of 2^31": ("header", header(4, 2**31)),
    "a negative rank": ("header", header(4, -1)),
    "no process": ("header", header(3, 0)),
    "a world of nobody": ("header", header(6, 0)),
    "a start that is no number": ("header", header(7, float("nan"))),
    "an infinite clock": ("header", header(8, float("inf"))),
    "a run without a name": ("name", named(b"")),
    "a run of two lines": ("name", named(b"two\nlines")),
    "a run that is not UTF-8": ("name", named(b"\xff\xfe")),
    "infinite waits": ("counter", counter(layout.COUNTER_LOADERS + layout.LOADER_WAIT_SUM, float("inf"))),
    "a wait that is no number": ("counter", counter(layout.COUNTER_OUTSIDE, float("nan"))),
    "a negative total": ("counter", counter(layout.COUNTER_OUTSIDE, -1.0)),
    "more than can be added up": ("counter", counter(layout.COUNTER_OUTSIDE, 1e300)),
    "a negative number of steps": ("counter", counter(layout.COUNTER_RECORDED, -5)),
    "a fetch of a worker without end": ("counter", patched(layout.WORKERS_AT, "d", float("inf"))),
    "steps that are not in the ring": ("record", counter(layout.COUNTER_RECORDED, 5000)),
    "an open step without a phase": ("record", counter(layout.COUNTER_STEP_PHASE, 17)),
    "a step of no phase": ("record", record(3, 9)),
    "a step of half a phase": ("record", record(3, 0.5)),
    "an endless step": ("record", record(2, float("inf"))),
    "a step before time": ("record", record(2, -1.0)),
    "a step that is no number": ("record", record(1, float("nan"))),
    "components that fall": ("falling", record(8, 0.0)),
}


def test_every_kind_of_bad_ledger_is_refused_with_its_reason_and_costs_only_itself(
    ledgers: Path, healthy: TrainingProcess, caplog: pytest.LogCaptureFixture
) -> None:
    healthy.steps(0.25)
    for number, (_, make) in enumerate(BAD.values()):
        make(ledgers / f"bad-{number}.ledger")
    node = Node(ledgers)
    node.tick()
    node.tick()
    before = open_below(ledgers)
    for steps in range(2, 5):
        healthy.steps(0.25)
        node.tick()
        assert node.steps() == steps
    wanted = dict.fromkeys(REASONS, 0)
    for reason, _ in BAD.values():
        wanted[reason] += 1
    assert node.values("ledgers_refused_total") == {(reason,): count for reason, count in wanted.items()}
    assert node.collector.active_runs == {RESNET}
    assert open_below(ledgers) == before
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    refused = [message for message in warnings if "refused until it changes" in message]
    assert len({match for message in refused for match in re.findall(r"bad-\d+", message)}) == len(refused)
    assert len(refused) == 20  # and then one line that says that the rest is only counted
    assert sum("only counted" in message for message in caplog.messages) == 1
    assert not any("\n" in message for message in caplog.messages)


def test_a_refused_file_is_tried_again_when_it_changes_and_not_before(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.exporter.ledgers.folder.RESCAN_SECONDS", 0.0)
    ledgers.mkdir()
    path = ledgers / "copied.ledger"
    path.write_bytes(b"")
    node = Node(ledgers)
    for _ in range(3):
        node.tick()
    assert node.values("ledgers_refused_total")[("length",)] == 1
    path.write_bytes(recent())
    node.tick()
    assert node.values("ledgers_refused_total")[("length",)] == 1
    assert node.steps("1", run=COPIED) == 6


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (layout.COUNTERS_AT + 8 * (layout.COUNTER_LOADERS + layout.LOADER_WAIT_SUM), float("inf"), "counter"),
        (layout.COUNTERS_AT + 8 * layout.COUNTER_STEP_HISTOGRAM, -3.0, "counter"),
        (layout.COUNTERS_AT + 8 * layout.COUNTER_RECORDED, 1.0, "falling"),
        (layout.RING_AT + 3 * layout.RECORD_BYTES + 8 * 5, 0.25, "falling"),
        (layout.WORKERS_AT, float("nan"), "counter"),
        (layout.HEADER_BYTES - 8, 0.5, ""),  # nothing is there yet: a later version may use it
        (layout.HEADER.size - 16, 1e9, "header"),
    ],
)
def test_a_live_ledger_that_turns_bad_keeps_its_last_totals_and_stops_nobody(
    ledgers: Path, healthy: TrainingProcess, offset: int, value: float, reason: str
) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, "spoiled") as spoiled:
        spoiled.do("for _ in range(4): stepscope.record_step('train', 1.0, 1.5)")
        healthy.steps(0.25)
        node.tick()
        assert node.steps(run=label("spoiled")) == 4
        path = next(path for path in open_ledgers(ledgers) if path.name.startswith("spoiled"))
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(struct.pack("<d", value))
        for steps in range(2, 6):
            healthy.steps(0.25)
            node.tick()
            assert node.steps() == steps
        refused = {labels[0] for labels, count in node.values("ledgers_refused_total").items() if count}
        assert refused == ({reason} if reason else set())
        assert sum(node.values("ledgers_refused_total").values()) == len(refused)
        assert node.collector.active_runs == ({RESNET} if reason else {RESNET, label("spoiled")})


def test_dead_ledgers_need_no_descriptor_and_old_ones_are_removed_over_time(
    ledgers: Path, healthy: TrainingProcess
) -> None:
    for number in range(300):
        (ledgers / f"old-{number}.ledger").write_bytes(ended(1e9))  # ended long ago
    for number in range(50):
        (ledgers / f"recent-{number}.ledger").write_bytes(recent())
    node = Node(ledgers)
    for _ in range(20):
        healthy.steps(0.25)
        node.tick()
    assert node.steps() == 20
    assert len(open_below(ledgers)) <= 2  # the directory, and the live ledger
    assert node.steps("1", run=COPIED) == 50 * 6
    assert len(list(open_ledgers(ledgers))) == 51
    node.tick(301.0)
    assert len(list(open_ledgers(ledgers))) == 1
    node.collector.close()
    assert open_below(ledgers) == []


def test_above_the_limit_live_ledgers_go_first_and_the_choice_stays(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.exporter.ledgers.folder.RESCAN_SECONDS", 0.0)
    ledgers.mkdir()
    for number in range(3):
        (ledgers / f"recent-{number}.ledger").write_bytes(recent())
    node = Node(ledgers, limits=Limits(ledgers=2))
    node.tick()
    assert node.steps("1", run=COPIED) == 2 * 6
    with ExitStack() as running:
        for name in ("a", "b", "c"):
            trainer = running.enter_context(TrainingProcess(ledgers, name))
            trainer.steps(0.25)
            node.tick()
        assert node.collector.active_runs == {label("a"), label("b")}
        for _ in range(3):
            node.tick()
            assert node.collector.active_runs == {label("a"), label("b")}
        assert node.collector.folder.left_out()["ledgers"][label("c")] == 1
    node.tick()
    node.tick(301.0)
    node.tick(1.0)
    assert node.collector.folder.left_out()["ledgers"] == {}


def test_above_the_limit_of_ranks_a_run_keeps_those_that_came_first(ledgers: Path) -> None:
    node = Node(ledgers, limits=Limits(ranks=2))
    with ExitStack() as running:
        for rank in (0, 1):
            running.enter_context(TrainingProcess(ledgers, rank=rank)).steps(0.25)
        node.tick()
        third = running.enter_context(TrainingProcess(ledgers, "other", rank=1))
        third.do("stepscope.start(run='resnet', rank=2, world_size=3)")
        third.steps(0.25)
        node.tick()
        assert {rank for _, rank, _ in node.family("step_duration_seconds").histograms} == {"0", "1"}
        assert node.collector.folder.left_out()["ranks"] == {RESNET: 1}


def test_ranks_that_come_and_go_without_end_do_not_add_up(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_totals, "MOST_RETIRED", 2)
    node = Node(ledgers, retention=10.0)
    with TrainingProcess(ledgers, "copied") as trainer:
        trainer.steps(0.25)
        for rank in range(1, 6):
            content = bytearray(recent())
            fields = list(layout.HEADER.unpack_from(content))
            fields[4], fields[6] = rank, 6  # of six ranks
            layout.HEADER.pack_into(content, 0, *fields)
            (ledgers / f"{rank}{layout.SUFFIX}").write_bytes(content)
            node.tick()
            node.tick(11.0)
        ranks = {rank for _, rank, _ in node.family("step_duration_seconds").histograms}
    assert ranks == {"0", "4", "5"}


def test_counts_of_ever_new_names_do_not_add_up(ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_totals, "MOST_NAMES", 40)
    node = Node(ledgers, retention=10.0)
    with TrainingProcess(ledgers, rank=1) as other:
        other.steps(0.25)
        for attempt in range(4):
            with TrainingProcess(ledgers) as trainer:
                for number in range(16):
                    trainer.do(f"stepscope.count('{attempt}-{number}', 2)")
                node.tick()
            node.tick()
            node.tick(11.0)
    counted = node.values("run_counted_total")
    assert len(counted) == 40
    assert counted[RESNET, "0", "0-0"] == 2


def test_totals_never_fall_over_restarts_of_ranks_and_exporter_in_any_order(
    ledgers: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    done = 0
    node = Node(ledgers, retention=10.0, state=state)
    with TrainingProcess(ledgers, rank=1) as other:
        other.steps(0.25)
        for attempt in range(6):
            with TrainingProcess(ledgers) as trainer:
                trainer.steps(0.25, 0.25)
                done += 2
                if attempt % 2:
                    node.tick()
                trainer.kill()
            node.tick()
            node.tick(11.0 if attempt % 3 else 1.0)  # sometimes the dead ledger is removed, sometimes not yet
            assert node.steps("0") == done
            if attempt % 2 == 0:
                now, node = node.now, Node(ledgers, retention=10.0, state=state)
                node.now = now
            node.tick()
            assert (node.steps("0"), node.steps("1")) == (done, 1)
        node.tick(60.0)
        assert len(list(open_ledgers(ledgers))) == 1
        node = Node(ledgers, retention=10.0, state=state)
        node.tick()
        assert (node.steps("0"), node.steps("1")) == (done, 1)


def test_a_later_run_of_a_name_begins_at_0_if_the_one_before_ended_without_an_exporter(
    ledgers: Path, tmp_path: Path
) -> None:
    node = Node(ledgers, retention=10.0, state=tmp_path)
    with TrainingProcess(ledgers, "other") as trainer:
        trainer.steps(0.25, 0.25)
        trainer.kill()
        with TrainingProcess(ledgers, "other", rank=1) as other:
            other.steps(0.25)
            node.tick()
            node.tick(11.0)
            assert node.steps("0", run=label("other")) == 2
            other.kill()
    for path in ledgers.glob("other*"):
        path.unlink()
    node = Node(ledgers, retention=10.0, state=tmp_path)
    node.tick()
    with TrainingProcess(ledgers, "other") as trainer:
        trainer.steps(0.25)
        node.tick()
        assert node.steps("0", run=label("other")) == 1


def test_without_room_for_the_note_dead_ledgers_of_a_run_stay(
    ledgers: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(ledgers, retention=10.0, state=tmp_path / "missing")
    with TrainingProcess(ledgers, rank=1) as other:
        other.steps(0.25)
        with TrainingProcess(ledgers) as trainer:
            trainer.steps(0.25)
            trainer.kill()
        for _ in range(4):
            node.tick(11.0)
        assert node.steps("0") == 1
        assert len(list(open_ledgers(ledgers))) == 2
        assert sum("dead ledgers stay" in message for message in caplog.messages) == 1
        (tmp_path / "missing").mkdir()
        node.tick()
        assert node.steps("0") == 1
        assert len(list(open_ledgers(ledgers))) == 1


def test_a_note_that_was_replaced_by_a_link_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    LedgerNote(tmp_path).save({}, {})
    note, file = LedgerNote(tmp_path), tmp_path / "ledgers.state"
    file.unlink()
    file.symlink_to("/dev/null")
    assert not note.save({}, {})
    assert not note.save({}, {})
    (message,) = caplog.messages
    assert message.startswith("dead ledgers stay")


@pytest.mark.parametrize("content", [b"", b"garbage", os.urandom(9000), b"SSSTATE\n" + bytes(5000)])
def test_a_note_that_cannot_be_read_is_one_warning(
    ledgers: Path, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture, healthy: TrainingProcess
) -> None:
    (tmp_path / "ledgers.state").write_bytes(content)
    healthy.steps(0.25)
    node = Node(ledgers, state=tmp_path)
    node.tick()
    assert node.steps() == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "ledgers.state is ignored" in caplog.messages[0]


def test_a_ledger_removed_by_its_owner_is_read_on_while_its_process_lives(
    ledgers: Path, healthy: TrainingProcess
) -> None:
    node = Node(ledgers)
    healthy.steps(0.25)
    node.tick()
    next(open_ledgers(ledgers)).unlink()
    healthy.steps(0.25)
    node.tick()
    assert node.steps() == 2
    assert node.collector.active_runs == {RESNET}
    healthy.kill()
    node.tick()
    assert node.collector.active_runs == set()
    node.tick(301.0)
    assert node.family("step_duration_seconds").histograms == {}


# -- two users --------------------------------------------------------------------------------------


@contextmanager
def neighbour(code: str, *words: str, before: str = "", **environment: str) -> Iterator[list[str]]:
    """Another user, who has done something and printed these lines, and then waits.

    `before` is what is executed as root.
    """
    code = f"import fcntl, os, sys\n{before}\n{BECOME_NOBODY}\n{code}\nprint('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, **environment},
    )
    with process:
        try:
            assert process.stdout is not None
            printed: list[str] = []
            while (line := process.stdout.readline()) != "ready\n":
                assert line, "it has ended"
                printed.append(line)
            yield printed
        finally:
            process.kill()


def train_as_nobody(ledgers: Path, run: str, steps: int) -> AbstractContextManager[list[str]]:
    """A training process of another user that has the same run name, and waits."""
    return neighbour(
        f"for _ in range({steps}): stepscope.record_step('train', 1.0, 2.0)",
        before="import stepscope",
        PYTHONPATH=EXPORTER,
        STEPSCOPE_RUN=run,
        STEPSCOPE_LAUNCH=LAUNCH,
        STEPSCOPE_LEDGER_DIR=str(ledgers),
    )


@as_root
def test_a_user_who_takes_another_users_run_name_changes_none_of_its_figures(
    ledgers: Path, healthy: TrainingProcess
) -> None:
    ledgers.parent.chmod(0o755)
    healthy.steps(0.25)
    node = Node(ledgers)
    node.tick()
    with train_as_nobody(ledgers, "resnet", steps=7):
        healthy.steps(0.25)
        node.tick()
        assert node.steps() == 2
        assert node.steps(run=f"{RESNET}@nobody") == 7
        users = {labels[0]: labels[2] for labels in node.values("run_info")}
        assert users == {RESNET: "root", f"{RESNET}@nobody": "nobody"}
        assert node.collector.active_runs == {RESNET, f"{RESNET}@nobody"}
        os.close(create_ledger(str(ledgers), f"{RESNET}@nobody", Ranks(0, None, 1)).fd)  # nor that label
        node.tick()
        assert node.steps(run=f"{RESNET}@nobody") == 7
        assert (f"{RESNET}@nobody@root",) in node.values("run_start_time_seconds")
        again = Node(ledgers)  # a restarted exporter gives the same names
        again.tick()
        assert (again.steps(), again.steps(run=f"{RESNET}@nobody")) == (2, 7)


@as_root
def test_a_user_with_many_ledgers_crowds_out_no_other(ledgers: Path) -> None:
    ledgers.parent.chmod(0o755)
    os.close(open_directory(str(ledgers)))
    node = Node(ledgers, limits=Limits(ledgers=3))
    with ExitStack() as running:
        for number in range(5):
            running.enter_context(train_as_nobody(ledgers, f"flood-{number}", steps=1))
        node.tick()
        assert node.collector.active_runs == {label(f"flood-{number}") for number in range(3)}
        for name in ("first", "second"):
            running.enter_context(TrainingProcess(ledgers, name)).steps(0.25)
        for _ in range(3):
            node.tick()
            assert node.collector.active_runs == {label("flood-0"), label("flood-1"), label("first")}


@as_root
def test_the_ledgers_of_a_user_with_many_files_wait_and_nobody_elses(
    ledgers: Path, healthy: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy.steps(0.25)
    (own,) = ledgers.iterdir()
    for number in range(30):
        planted = ledgers / f"planted-{number}.{number:08x}.ledger"
        planted.write_bytes(b"planted")
        os.chown(planted, NOBODY, NOBODY)
    own.rename(ledgers / "last.00000000.ledger")  # its change is the newest
    looks = itertools.count()  # two files per look
    monkeypatch.setattr(folder, "monotonic", lambda: next(looks) / 3 * folder.LOOK_SECONDS)
    node = Node(ledgers)
    node.tick()
    assert node.collector.active_runs == {RESNET}


@as_root
def test_the_exporter_makes_a_shared_directory_safe_and_follows_no_foreign_link(
    ledgers: Path, healthy: TrainingProcess
) -> None:
    healthy.steps(0.25)
    os.chown(ledgers, NOBODY, NOBODY)
    os.chmod(ledgers, 0o777)
    node = Node(ledgers)
    node.tick()
    status = ledgers.stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o1777)
    link = ledgers.with_name("link")
    link.symlink_to(ledgers)
    node = Node(link)
    node.tick()  # root's own link
    assert node.steps() == 1
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(Exception, match="is a symbolic link of another user"):
        Node(link).tick()


@as_root
def test_dead_ledgers_that_may_not_be_removed_do_not_return_after_a_restart(ledgers: Path) -> None:
    with TrainingProcess(ledgers) as trainer:
        trainer.steps(0.25)
    os.chmod(ledgers.parent, 0o755)
    os.chmod(ledgers, 0o1777)
    state = ledgers.parent / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    code = f"""
import os, time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.sampling.sample import Sample
{BECOME_NOBODY}
for later in (0.0, 400.0):  # the second exporter believes the first one's note, not the file
    collector = TrainingCollector(Path({str(ledgers)!r}), retention=300.0)
    collector.remember_in(Path({str(state)!r}))
    now = time.time()
    seen = []
    for moment in (now, now + 1, now + later, now + later + 1):
        collector.collect(Sample(time=moment))
        seen.append(len(collector.ledgers))
    print(seen, flush=True)
    if not later:
        collector.collect(Sample(time=now + 301.0))
    collector.close()
"""
    ended = ran([sys.executable, "-c", code])
    assert ended.stdout == "[1, 1, 1, 1]\n[0, 0, 0, 0]\n", ended.stderr
    assert "may not be removed" in ended.stderr
    assert len(list(open_ledgers(ledgers))) == 1


def test_what_is_left_of_a_process_that_was_killed_while_it_made_its_ledger_is_removed(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    rename = os.replace

    def renamed(source: str, target: str, **folders: int) -> None:
        made.append(source)
        rename(source, target, **folders)

    monkeypatch.setattr(os, "replace", renamed)
    os.close(create_ledger(str(ledgers), "resnet", Ranks(0, None, 1)).fd)
    (ledgers / made[0]).touch()
    (ledgers / ".other.new").touch()
    node = Node(ledgers)
    node.tick()
    assert (ledgers / made[0]).exists(), "its process may still be at work"
    monkeypatch.setattr(folder, "UNFINISHED_SECONDS", -1.0)
    node.tick()
    assert not (ledgers / made[0]).exists()
    assert (ledgers / ".other.new").exists(), "not a ledger's name"
    node.collector.close()
