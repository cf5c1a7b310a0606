"""`stepscope actions` and real training processes: who is asked to stop, who is not, and what is written."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from stepscope.common.users import user_name
from stepscope.exporter.ledgers.reader import open_ledgers
from stepscope.training import layout

from tests.support.actions_process import (
    TOKEN,
    a_notification,
    acting,
    actions,
    an_alert_of_it,
    audit,
)
from tests.support.alertmanager import (
    STOPPING,
    alertmanager,
    an_alert,
    configured,
    needs_alertmanager,
    now,
)
from tests.support.prometheus import needs_prometheus, serving
from tests.support.training_process import LAUNCH, RESNET, label
from tests.support.training_script import only_ledger, training, wait_for_line
from tests.support.waiting import SECONDS, wait_until

# Does what a good script does on SIGTERM: finishes its step, writes a checkpoint, ends in good order.
CHECKPOINTING = """
import signal
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
stepscope.start()
say()
while not asked:
    with stepscope.step("train"):
        time.sleep(0.01)
time.sleep(0.5)   # a second signal would come now
say(f"checkpoint after {len(asked)}")
"""


@contextmanager
def trainer(
    folder: Path, script: str = CHECKPOINTING, run: str = "resnet", rank: int = 0, **more: str
) -> Iterator[subprocess.Popen[str]]:
    environment = {
        "STEPSCOPE_RUN": run,
        "STEPSCOPE_LAUNCH": LAUNCH,
        "RANK": str(rank),
        "WORLD_SIZE": "8",
        **more,
    }
    with training(script, folder / "ledgers", environment) as process:
        wait_for_line(process)
        yield process


def checkpointed(process: subprocess.Popen[str]) -> None:
    """The process was asked once, and ended in good order."""
    wait_for_line(process, "checkpoint after 1")
    assert process.wait(SECONDS) == 0


def alive(*processes: subprocess.Popen[str]) -> bool:
    return all(process.poll() is None for process in processes)


def test_all_ranks_of_the_run_are_asked_once_whatever_the_number_of_its_alerts(tmp_path: Path) -> None:
    """And whatever else is in the directory of ledgers."""
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "ledgers" / "a.ledger").write_bytes(b"rubbish")
    os.mkfifo(tmp_path / "ledgers" / "b.ledger")
    (tmp_path / "ledgers" / "c.ledger").symlink_to("/etc/passwd")
    with (
        acting(tmp_path) as node,
        trainer(tmp_path) as first,
        trainer(tmp_path, rank=1) as second,
        trainer(tmp_path, run="bert") as other,
    ):
        alerts = [an_alert_of_it(fingerprint=str(number)) for number in range(3)]
        one, *rest = node.decisions(a_notification(*alerts))
        assert one["decision"] == "stop"
        assert [(process["pid"], process["rank"]) for process in one["processes"]] == [
            (first.pid, 0),
            (second.pid, 1),
        ]
        for decision in rest:
            assert decision["decision"] == "nothing to stop"
            assert {process["reason"] for process in decision["processes"]} == {
                "has been asked to stop before"
            }
        checkpointed(first)
        checkpointed(second)
        assert alive(other)
    lines = audit(tmp_path)
    assert [line["event"] for line in lines] == ["decision", "signal", "signal", "decision", "decision"]
    assert [(line["pid"], line["result"]) for line in lines[1:3]] == [
        (first.pid, "sent"),
        (second.pid, "sent"),
    ]
    assert {line["run"] for line in lines} == {RESNET}
    assert lines[0]["rule"] == "TrainingStalled"
    assert lines[0]["node"] == "gpu-node-1"
    assert lines[0]["starts_at"] == "2100-01-02T03:04:05.123456+00:00"


IN_A_CHECKPOINT = """
import signal
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
with stepscope.step("train"): pass
with stepscope.component("checkpoint"):
    hold()
say("written")
while not asked: time.sleep(0.01)
say(f"checkpoint after {len(asked)}")
"""


def test_a_run_that_trains_again_is_not_stopped_for_its_standstill(tmp_path: Path) -> None:
    with acting(tmp_path) as node, trainer(tmp_path) as process:
        began = datetime.now(UTC)

        def trains_on() -> bool:
            with only_ledger(tmp_path / "ledgers") as reader:
                return (reader.totals().last_step_end or 0.0) > began.timestamp()

        wait_until(trains_on)
        stalled = an_alert_of_it(labels={"standstill": "symptom"}, startsAt=began.isoformat())
        (decision,) = node.decisions(a_notification(stalled))
        assert (decision["decision"], decision["reason"]) == (
            "refused",
            "a rank has finished a step since the alert began",
        )
        assert alive(process)
        (again,) = node.decisions(a_notification({**stalled, "startsAt": "2100-01-01T00:00:00Z"}))
        assert again["decision"] == "stop"
        checkpointed(process)


def test_a_run_is_not_stopped_during_a_checkpoint_but_by_a_repeated_notification(tmp_path: Path) -> None:
    with acting(tmp_path) as node, trainer(tmp_path, IN_A_CHECKPOINT) as process:
        alert = an_alert_of_it()
        (decision,) = node.decisions(a_notification(alert))
        assert (decision["decision"], decision["reason"]) == ("refused", "a rank writes a checkpoint")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wait_for_line(process, "written")
        (again,) = node.decisions(a_notification(alert))
        assert again["decision"] == "stop"
        checkpointed(process)


ALERTING = """
groups:
  - name: of-a-test
    interval: 200ms
    rules:
      - alert: StepscopeTrainingStalled
        expr: vector(1)
        labels: {{rule: TrainingStalled, run: '{run}', instance: gpu-node-1, rank: "3"}}
"""


@needs_prometheus
def test_a_run_is_stopped_only_if_prometheus_still_has_the_alert(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(ALERTING.format(run=RESNET))
    (tmp_path / "prometheus.yml").write_text("rule_files: [rules.yml]")
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "prometheus.yml", tmp_path / "data"))
        server.wait_for('ALERTS{alertstate="firing"}')
        node = stack.enter_context(acting(tmp_path, f"--prometheus={server.url}"))
        process = stack.enter_context(trainer(tmp_path))
        over = an_alert_of_it(labels={"rank": "2"}, fingerprint="2")
        (decision,) = node.decisions(a_notification(over))
        assert (decision["decision"], decision["reason"]) == (
            "refused",
            "the alert no longer fires in Prometheus",
        )
        assert alive(process)
        lasts = an_alert_of_it(labels={"rank": "3", "cluster": "of Alertmanager only"})
        (again,) = node.decisions(a_notification(lasts))
        assert again["decision"] == "stop"
        checkpointed(process)


def test_nothing_is_stopped_while_prometheus_cannot_be_asked(tmp_path: Path) -> None:
    with socket.socket() as closed:  # it does not listen
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with acting(tmp_path, f"--prometheus={url}") as node, trainer(tmp_path) as process:
            (decision,) = node.decisions(a_notification(an_alert_of_it()))
            assert (decision["decision"], decision["reason"]) == (
                "refused",
                "Prometheus does not say whether the alert still fires: "
                f"{url}: cannot be reached; is it the address of Prometheus?",
            )
            assert alive(process)


def test_an_alert_is_answered_once_even_by_a_new_process(tmp_path: Path) -> None:
    notification = a_notification(an_alert_of_it())
    with acting(tmp_path) as node:
        with trainer(tmp_path) as process:
            assert len(node.decisions(notification)) == 1
            checkpointed(process)
        assert node.decisions(notification) == []
    before = audit(tmp_path)
    with (tmp_path / "audit").open("a") as file:
        file.write('{"event": "decision", "deci')  # a crash in the middle of a line
    with acting(tmp_path) as node, trainer(tmp_path) as again:
        assert node.decisions(notification) == []
        later = a_notification(an_alert_of_it(startsAt="2100-01-02T03:04:06Z"))
        assert [decision["decision"] for decision in node.decisions(later)] == ["stop"]
        checkpointed(again)
        assert any("line 3 is not a line of an audit" in line for line in node.log)
    text = (tmp_path / "audit").read_text().splitlines()
    assert len(text) == len(before) + 1 + 2  # the torn line, a decision, a signal


def test_a_dry_run_tells_what_it_would_do_and_binds_nobody(tmp_path: Path) -> None:
    ledgers = f"--ledger-dir={tmp_path / 'ledgers'}"
    with trainer(tmp_path) as process:
        with actions(ledgers, "--stop-on=TrainingStalled", f"--audit-file={tmp_path / 'audit'}") as node:
            (decision,) = node.decisions(a_notification(an_alert_of_it()))
            assert decision["decision"] == "would stop"
            assert decision["processes"][0]["pid"] == process.pid
        assert [line["event"] for line in audit(tmp_path)] == ["decision"]
        assert alive(process)
        with acting(tmp_path) as node:
            (decision,) = node.decisions(a_notification(an_alert_of_it()))
            assert decision["decision"] == "stop"
            checkpointed(process)


def test_without_a_file_the_audit_is_on_stderr(tmp_path: Path) -> None:
    with actions(f"--ledger-dir={tmp_path}", "--stop-on=TrainingStalled") as node:
        node.decisions(a_notification(an_alert_of_it()))
        node.wait_for(lambda: any('"event": "decision"' in line for line in node.log))


def test_only_allowed_rules_that_fire_on_this_node_for_a_live_run_have_effect(tmp_path: Path) -> None:
    """An alert about the name of a run, instead of the run, is about none."""
    with acting(tmp_path) as node, trainer(tmp_path) as process:
        decisions = node.decisions(
            a_notification(
                an_alert_of_it(labels={"instance": "gpu-node-2"}),
                an_alert_of_it(labels={"instance": "gpu-node-1:9870"}),
                an_alert_of_it(status="resolved"),
                an_alert_of_it(labels={"rule": "CPUBottleneck"}, fingerprint="1"),
                an_alert_of_it(labels={"rule": "trainingstalled\n"}, fingerprint="2"),
                an_alert_of_it(labels={"run": ""}, fingerprint="3"),
                an_alert_of_it(labels={"run": "*"}, fingerprint="4"),
                an_alert_of_it(labels={"run": "../resnet"}, fingerprint="5"),
                an_alert_of_it(labels={"run": "resnet"}, fingerprint="6"),
                an_alert_of_it(startsAt="2020-01-01T00:00:00Z", fingerprint="7"),
            )
        )
        assert [(decision["decision"], decision["reason"]) for decision in decisions] == [
            ("refused", "the rule is not one of --stop-on"),
            ("refused", "the rule is not one of --stop-on"),
            ("refused", "the alert names no run"),
            *[("nothing to stop", "the run has no live process on this node")] * 3,
            ("nothing to stop", "all were spared"),
        ]
        assert decisions[-1]["processes"][0]["reason"] == "began after the alert did"
        assert alive(process)
    assert [line["event"] for line in audit(tmp_path)] == ["decision"] * 7


def test_only_runs_with_an_allowed_beginning_of_their_name_are_stopped(tmp_path: Path) -> None:
    with acting(tmp_path, "--stop-runs=bert", "--stop-runs=gpt") as node, trainer(tmp_path) as process:
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        refused = ("refused", "the run's name does not begin as --stop-runs says")
        assert (decision["decision"], decision["reason"]) == refused
        assert alive(process)
    with acting(tmp_path, "--stop-runs=bert", "--stop-runs=resn") as node, trainer(tmp_path) as process:
        (decision,) = node.decisions(a_notification(an_alert_of_it(fingerprint="2")))
        assert decision["decision"] == "stop"
        checkpointed(process)


def test_a_killed_process_and_one_that_has_finished_are_not_looked_for(tmp_path: Path) -> None:
    finishing = "stepscope.start()\nstepscope.finish()\nhold()\n"
    with acting(tmp_path) as node, trainer(tmp_path) as killed, trainer(tmp_path, finishing) as finished:
        killed.kill()
        killed.wait(SECONDS)
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert decision["decision"] == "nothing to stop"
        assert decision["processes"] == []
        assert alive(finished)


def test_a_ledger_that_names_another_process_does_not_have_that_stopped(tmp_path: Path) -> None:
    with acting(tmp_path) as node, trainer(tmp_path) as forger, trainer(tmp_path, run="bert") as victim:
        (ledger,) = (path for path in open_ledgers(tmp_path / "ledgers") if path.name.startswith("resnet"))
        header = bytearray(ledger.read_bytes()[: layout.HEADER.size])
        fields = list(layout.HEADER.unpack(header))
        fields[fields.index(forger.pid)] = victim.pid
        with ledger.open("r+b") as file:
            file.write(layout.HEADER.pack(*fields))
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert decision["decision"] == "nothing to stop"
        (process,) = decision["processes"]
        assert process["pid"] == forger.pid
        assert process["reason"] == f"is not the process {victim.pid} that the ledger names"
        assert alive(forger, victim)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_a_process_whose_ledger_is_of_another_user_is_spared(tmp_path: Path) -> None:
    with trainer(tmp_path) as process:
        with only_ledger(tmp_path / "ledgers") as reader:
            os.chown(reader.path, 65534, 65534)
        with acting(tmp_path) as node:
            (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert (
            decision["processes"][0]["reason"]
            == f"runs as user root, but its ledger is of {user_name(65534)}"
        )
        assert alive(process)


def as_user(number: int) -> tuple[str, ...]:
    """The launcher that runs a process as another user."""
    return ("setpriv", f"--reuid={number}", "--regid=65534", "--clear-groups")


@contextmanager
def two_users(folder: Path) -> Iterator[Callable[..., AbstractContextManager[subprocess.Popen[str]]]]:
    """Gives a function that runs the training script as a user, with ledgers in the folder that all share."""
    (folder / "ledgers").mkdir()
    (folder / "ledgers").chmod(0o1777)

    @contextmanager
    def trainer_of(user: int, script: str = CHECKPOINTING) -> Iterator[subprocess.Popen[str]]:
        environment = {"STEPSCOPE_RUN": "resnet", "STEPSCOPE_LAUNCH": LAUNCH}
        with training(script, folder / "ledgers", environment, as_user(user)) as process:
            wait_for_line(process)
            yield process

    yield trainer_of


needs_two_users = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to run processes as two users"
)


@needs_two_users
def test_no_process_is_stopped_if_two_users_have_or_had_ledgers_of_the_run(open_path: Path) -> None:
    with acting(open_path) as node, two_users(open_path) as of, of(1001) as alice, of(1002) as bob:
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert (decision["decision"], decision["reason"]) == (
            "refused",
            f"users {user_name(1001)} and {user_name(1002)} have or had ledgers of this run, "
            "and the alert has no label `user`",
        )
        assert alive(alice, bob)
        # It is decided at every notification, until only one user has had ledgers of the run for an hour.
        (again,) = node.decisions(a_notification(an_alert_of_it()))
        assert again == decision
        bob.kill()
        bob.wait(SECONDS)
        for path in open_ledgers(open_path / "ledgers"):
            if path.stat().st_uid == 1002:
                path.unlink()
        (later,) = node.decisions(a_notification(an_alert_of_it(fingerprint="1")))
        assert later["decision"] == "refused"
        assert alive(alice)
    assert [line["event"] for line in audit(open_path)] == ["decision"] * 3


@needs_two_users
@pytest.mark.parametrize("labels", [{"user": "1002"}, {"run": f"{RESNET}@1002"}], ids=["user", "run"])
def test_an_alert_that_names_the_user_stops_the_run_of_that_user_only(
    open_path: Path, labels: dict[str, str]
) -> None:
    """In a label of its own, or in the name that the exporter gives to a second user's run."""
    with acting(open_path) as node, two_users(open_path) as of, of(1001) as alice, of(1002) as bob:
        about_nobody = an_alert_of_it(labels={"user": "nobody"}, fingerprint="0")
        (decision,) = node.decisions(a_notification(about_nobody))
        assert decision["decision"] == "nothing to stop"
        (decision,) = node.decisions(a_notification(an_alert_of_it(labels=labels)))
        assert [(each["pid"], each["user"]) for each in decision["processes"]] == [(bob.pid, 1002)]
        checkpointed(bob)
        assert alive(alice)


@needs_two_users
def test_a_program_that_runs_with_the_rights_of_another_user_is_spared(open_path: Path) -> None:
    """As a set-user-ID program of the ledger's owner does, started by somebody else."""
    script = CHECKPOINTING.replace("stepscope.start()", "os.setresuid(1001, 1002, 1001); stepscope.start()")
    with acting(open_path) as node, two_users(open_path) as of, of(0, script) as process:
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert (
            decision["processes"][0]["reason"]
            == f"runs as user {user_name(1001)}, but its ledger is of {user_name(1002)}"
        )
        assert alive(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process as somebody else")
def test_a_process_of_another_pid_namespace_is_found_by_the_kernels_word(tmp_path: Path) -> None:
    script = CHECKPOINTING.replace("say()\n", "say(f'pid {os.getpid()}')\n", 1)
    environment = {"STEPSCOPE_RUN": "resnet", "STEPSCOPE_LAUNCH": LAUNCH}
    launcher = ("unshare", "--pid", "--fork", "--kill-child")
    with acting(tmp_path) as node, training(script, tmp_path / "ledgers", environment, launcher) as process:
        wait_for_line(process, "pid 1")
        (decision,) = node.decisions(a_notification(an_alert_of_it()))
        assert decision["decision"] == "stop"
        assert decision["processes"][0]["pid"] > 1
        checkpointed(process)


def test_what_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    with acting(tmp_path) as node, trainer(tmp_path) as process:
        (tmp_path / "audit").unlink()
        (tmp_path / "audit").mkdir()
        response = node.post(a_notification(an_alert_of_it()))
        assert (response.status_code, response.text.count("\n")) == (503, 1)
        assert alive(process)
        (tmp_path / "audit").rmdir()
        (decision,) = node.decisions(a_notification(an_alert_of_it()))  # Alertmanager comes again
        assert decision["decision"] == "stop"
        checkpointed(process)


def test_who_does_not_know_the_token_learns_nothing_and_a_wrong_body_is_refused(tmp_path: Path) -> None:
    with acting(tmp_path) as node, trainer(tmp_path) as process:
        for token in (None, "wrong", TOKEN + "0", TOKEN[:-1], "\u00e4"):
            response = node.post(a_notification(an_alert_of_it()), token)
            assert (response.status_code, response.text) == (401, "Unauthorized\n")
        assert node.post(b"0" * 3_000_000, None).status_code == 401
        response = node.post({"version": "3"})
        assert (response.status_code, response.text) == (
            400,
            'not a notification of Alertmanager: version: must be "4", not "3"\n',
        )
        assert node.post(b"[" + b"0," * 4_200_000 + b"0]").status_code == 413, "it is not read"
        assert node.decisions(a_notification()) == []
        assert alive(process)
        assert not audit(tmp_path)


@needs_alertmanager
def test_alertmanager_stops_a_stalled_run_which_checkpoints(tmp_path: Path) -> None:
    stalls = CHECKPOINTING.replace("while not asked:", "while not asked: time.sleep(0.01)\nwhile not asked:")
    with (
        acting(tmp_path) as node,
        trainer(tmp_path, stalls) as process,
        trainer(tmp_path, run="bert") as other,
    ):
        changes = {**STOPPING, "http://localhost:9871": node.url}
        config = configured(tmp_path, "platform", changes, {"actions-token": TOKEN})
        with alertmanager(config) as server:
            server.post(
                an_alert("TrainingStalled", RESNET, severity="critical", starts_at=now()),
                an_alert("TrainingStalled", RESNET, severity="critical", instance="gpu-node-2"),
                an_alert("CPUBottleneck", label("bert")),
            )
            checkpointed(process)
        assert alive(other)
    decision, sent = audit(tmp_path)
    assert (decision["decision"], decision["rule"], decision["run"]) == ("stop", "TrainingStalled", RESNET)
    assert (sent["pid"], sent["result"]) == (process.pid, "sent")
