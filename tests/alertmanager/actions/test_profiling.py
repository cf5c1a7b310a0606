"""`stepscope actions --profile-on` and real processes: which ranks are asked for a window, and when."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from stepscope.alertmanager.actions.audit import Audit
from stepscope.alertmanager.actions.notification import read_notification
from stepscope.alertmanager.actions.owners import Owners
from stepscope.alertmanager.actions.policy import Policy
from stepscope.alertmanager.actions.profiling import Profiling
from stepscope.exporter.ledgers.asked_windows import TrainingRank
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.training import layout
from stepscope.training.window_request import REFUSED, Answer, read_answer

from tests.support.actions_process import a_notification, acting, actions, an_alert_of_it, audit
from tests.support.training_process import LAUNCH
from tests.support.training_script import training, wait_for_line
from tests.support.waiting import wait_until

# Without a framework, a rank answers that it cannot record operators. Each computes so much longer than the
# one before it that an earlier start makes no difference.
STEPS = """
stepscope.start()
for number in range(5):
    begin = 1000.0 * number
    stepscope.record_step("train", begin, begin + 1 + 100 * int(os.environ["RANK"]))
say()
while True:
    with stepscope.step("train"):
        time.sleep(0.01)
"""


@contextmanager
def four_ranks(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        ranks = []
        for rank in range(4):
            environment = {"STEPSCOPE_RUN": "resnet", "STEPSCOPE_LAUNCH": LAUNCH, "RANK": str(rank)}
            script = f"import os\n{STEPS}"
            process = stack.enter_context(training(script, folder / "ledgers", environment))
            wait_for_line(process)
            ranks.append(process)
        yield ranks


def straggler(rank: int, **changes: Any) -> dict[str, Any]:
    return an_alert_of_it(labels={"rule": "Straggler", "rank": str(rank)}, **changes)


def answers(folder: Path) -> dict[int, Answer]:
    """Returns the latest answer of each rank that has given one."""
    found = {}
    for path in open_ledgers(folder / "ledgers"):
        with LedgerReader(path) as reader, open(path, "rb") as file:
            if (answer := read_answer(file.fileno())).number:
                found[reader.header.rank] = answer
    return found


def requests(folder: Path) -> set[int]:
    """Returns the ranks that are asked, or were."""
    found = set()
    for path in open_ledgers(folder / "ledgers"):
        with LedgerReader(path) as reader:
            if any(path.read_bytes()[layout.WINDOW_AT :][: layout.WINDOW_REQUEST.size]):
                found.add(reader.header.rank)
    return found


def test_an_alert_has_the_accused_rank_and_a_median_peer_record_a_window_unless_in_a_dry_run(
    tmp_path: Path,
) -> None:
    dry_run = actions(f"--ledger-dir={tmp_path / 'ledgers'}", "--profile-on=Straggler")
    node_of_it = acting(tmp_path, "--profile-on=Straggler")
    with four_ranks(tmp_path) as ranks, dry_run as dry, node_of_it as node:
        (decision,) = dry.decisions(a_notification(straggler(3)))
        assert decision["decision"] == "would profile"
        assert answers(tmp_path) == {}
        (decision,) = node.decisions(a_notification(straggler(3)))
        assert (decision["decision"], decision["ranks"]) == ("profile", [3, 1])
        wait_until(lambda: set(answers(tmp_path)) == {3, 1})
        assert {answer.state for answer in answers(tmp_path).values()} == {REFUSED}  # no operators here
        assert node.decisions(a_notification(straggler(3))) == []  # the same alert
        (again,) = node.decisions(a_notification(straggler(0, fingerprint="2")))
        assert (again["decision"], again["reason"]) == (
            "refused",
            "the run had a request less than 300 s ago",
        )
        assert {answer.number for answer in answers(tmp_path).values()} == {1}
        assert all(process.poll() is None for process in ranks)
    lines = [(line["event"], line.get("decision"), line.get("rank")) for line in audit(tmp_path)]
    requests = [("request", None, 3), ("request", None, 1)]
    assert lines == [("decision", "profile", None), *requests, ("decision", "refused", None)]
    assert {line["result"] for line in audit(tmp_path) if line["event"] == "request"} == {"sent"}


def test_nobody_is_asked_while_the_audit_cannot_be_written(tmp_path: Path) -> None:
    with acting(tmp_path, "--profile-on=Straggler") as node, four_ranks(tmp_path):
        (tmp_path / "audit").unlink()
        (tmp_path / "audit").mkdir()
        assert node.post(a_notification(straggler(3))).status_code == 503
        assert requests(tmp_path) == set()
        (tmp_path / "audit").rmdir()
        (decision,) = node.decisions(a_notification(straggler(3)))  # Alertmanager tries again
        assert decision["decision"] == "profile"
        wait_until(lambda: set(answers(tmp_path)) == {3, 1})


def test_on_a_full_disk_nobody_is_asked_before_the_decision_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the decision finds no place, or those of the requests find none."""
    policy = Policy("gpu-node-1", (), True, tmp_path / "ledgers", ("Straggler",))
    alerts = read_notification(json.dumps(a_notification(straggler(3))).encode()).alerts
    with four_ranks(tmp_path):
        audited = Audit(tmp_path / "audit")
        profiling = Profiling(policy, audited, Owners(policy.ledger_directory))
        monkeypatch.setattr(Profiling, "_wake", lambda _: None)  # it needs a loop
        written = Audit.write

        def full(event: str) -> None:
            def write(self: Audit, of: str, entry: Any) -> None:
                if of == event:
                    raise OSError(28, "No space left on device")
                written(self, of, entry)

            monkeypatch.setattr(Audit, "write", write)

        full("decision")
        with pytest.raises(OSError, match="No space"):
            profiling.answer(alerts)
        assert requests(tmp_path) == set()
        full("request")
        (decision,) = profiling.answer(alerts)
        assert decision["decision"] == "profile"
        assert requests(tmp_path) == {3, 1}
    assert [(line["event"], line["ranks"]) for line in audit(tmp_path)] == [("decision", [3, 1])]


def test_without_an_accused_rank_the_slowest_is_asked_and_none_that_is_elsewhere(tmp_path: Path) -> None:
    flags = "--profile-on=LowGPUUtilization", "--profile-on=Straggler"
    with acting(tmp_path, *flags) as node, four_ranks(tmp_path):
        (elsewhere,) = node.decisions(a_notification(straggler(9)))
        assert (elsewhere["decision"], elsewhere["ranks"]) == ("nothing to profile", [])
        idle = an_alert_of_it(labels={"rule": "LowGPUUtilization", "gpu": "0"}, fingerprint="2")
        (decision,) = node.decisions(a_notification(idle))
        assert (decision["decision"], decision["ranks"]) == ("profile", [3, 1])


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e-30, 1e30])
def test_a_rank_can_be_asked_whatever_its_ledger_says_of_its_steps(seconds: float) -> None:
    """An alert of another run is in the same notification: it must be answered."""
    rank = TrainingRank(0, Path("a.ledger"), 0, steps=1000, seconds=seconds, own=seconds)
    assert 1000 < rank.next_step <= 1_001_000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_user_who_is_not_the_owner_asks_nobody_and_the_audit_says_why(open_path: Path) -> None:
    """The owner's file opens for writing for the owner and root only."""
    from stepscope.exporter.ledgers.asked_windows import AskedWindows, with_a_peer

    with four_ranks(open_path):
        windows = AskedWindows(open_path / "ledgers")
        chosen = with_a_peer(windows.ranks(), 3)
        os.seteuid(65534)
        try:
            asked = windows.ask(chosen)
        finally:
            os.seteuid(0)
        assert set(asked) == {3, 1}
        assert all("ermission denied" in reason for reason in asked.values())
        assert answers(open_path) == {}
