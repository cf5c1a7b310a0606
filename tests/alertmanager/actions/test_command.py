"""The flags of `stepscope actions`: what would be reckless is refused before anything listens."""

import os
import subprocess
from pathlib import Path

import pytest
import requests

from tests.support.actions_process import COMMAND, TOKEN, a_notification, actions
from tests.support.waiting import SECONDS


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--act", "--act without a rule: add --stop-on RULE"),
        (
            "--act --stop-on GPUError",
            "--act without authentication: add --token-file FILE or --web.config.file FILE",
        ),
        (
            "--act --stop-on GPUError --token-file {good}",
            "--act without an audit: add --audit-file FILE",
        ),
        ("--stop-on .*", "--stop-on .*: not the name of a rule, such as TrainingStalled"),
        ("--token-file {missing}", "--token-file {missing}: no such file or directory"),
        ("--token-file {short}", "--token-file {short}: must be one word of at least 16 ASCII characters"),
        ("--token-file {words}", "--token-file {words}: must be one word"),
        ("--token-file {binary}", "--token-file {binary}: must be one word"),
        ("--audit-file {folder}", "--audit-file {folder}: must be a plain file that only user"),
        ("--audit-file {good}/x", "--audit-file {good} is not a directory: give the path of a directory"),
        ("--audit-file {link}", "--audit-file {link}: must be a plain file that only user"),
        ("--audit-file {fifo}", "--audit-file {fifo}: must be a plain file that only user"),
        ("--audit-file {loose}", "--audit-file {loose}: must be a plain file that only user"),
        ("--audit-file /tmp/x", "--audit-file /tmp "),
        ("--web.listen-address :0", "can be reached from other machines: require a token"),
        ("--web.listen-address 0.0.0.0:0", "--web.listen-address: 0.0.0.0 can be reached from other"),
        ("--web.listen-address 127.0.0.1", "must be [HOST]:PORT"),
    ],
)
def test_a_reckless_or_wrong_flag_is_one_line_and_status_2(
    flags: str, complaint: str, tmp_path: Path
) -> None:
    kinds = ("good", "short", "words", "binary", "missing", "link", "fifo", "loose")
    names = {name: str(tmp_path / name) for name in kinds}
    names["folder"] = str(tmp_path)
    (tmp_path / "link").symlink_to("good")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loose").touch()
    (tmp_path / "loose").chmod(0o666)
    (tmp_path / "good").write_text(TOKEN)
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "words").write_text("two words of a good length\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    words = [*COMMAND, "--web.listen-address=127.0.0.1:0"] if "listen" not in flags else COMMAND
    done = subprocess.run(
        [*words, *flags.format(**names).split()], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2
    assert complaint.format(**names) in done.stderr.splitlines()[-1]
    assert "listening" not in done.stderr


def test_out_of_the_box_it_is_a_dry_run_on_loopback_that_allows_no_rule(tmp_path: Path) -> None:
    with actions(f"--ledger-dir={tmp_path}") as node:
        assert any("dry run" in line and "none (no --stop-on or --profile-on)" in line for line in node.log)
        assert node.post(a_notification(), token=None).json() == {"decisions": []}


def test_with_a_token_other_machines_may_come(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with actions(f"--token-file={tmp_path / 'token'}", "--web.listen-address=0.0.0.0:0") as node:
        assert len([line for line in node.log if "listening on" in line]) >= 1


def test_a_password_does_in_place_of_a_token(tmp_path: Path) -> None:
    import bcrypt

    hashed = bcrypt.hashpw(b"pass", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n  alertmanager: {hashed}\n")
    with actions(f"--web.config.file={tmp_path / 'web.yml'}", f"--ledger-dir={tmp_path}") as node:
        url, body = f"{node.url}/alerts", a_notification()
        assert requests.post(url, json=body, timeout=SECONDS).status_code == 401
        wrong = requests.post(url, json=body, auth=("alertmanager", "wrong"), timeout=SECONDS)
        assert wrong.status_code == 401
        assert requests.post(url, json=body, auth=("alertmanager", "pass"), timeout=SECONDS).ok


def test_paths_and_methods_of_no_use_say_what_is(tmp_path: Path) -> None:
    with actions(f"--ledger-dir={tmp_path}") as node:
        healthy = requests.get(f"{node.url}/-/healthy", timeout=SECONDS)
        assert (healthy.status_code, healthy.text) == (200, "Healthy\n")
        other = requests.get(f"{node.url}/", timeout=SECONDS)
        assert (other.status_code, other.text) == (
            404,
            "Not found: notifications are posted to /alerts\n",
        )
        looked = requests.get(f"{node.url}/alerts", timeout=SECONDS)
        assert (looked.status_code, looked.headers["Allow"]) == (405, "POST")
