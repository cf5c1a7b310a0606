"""The cross-check of alerts on hardware, with a real Prometheus that scrapes a node with a failing GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stepscope.prometheus.crosscheck.compare import Outcome
from stepscope.prometheus.crosscheck.hardware import check_hardware
from stepscope.prometheus.crosscheck.rule_files import hardware_of
from stepscope.prometheus.crosscheck.server import Pace, Server
from stepscope.prometheus.rules.files import META, render
from stepscope.prometheus.rules.meta import HARDWARE
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.hardware import hardware_rules

from tests.support.crosscheck import evaluating
from tests.support.http_server import answering
from tests.support.prometheus import needs_prometheus

pytestmark = needs_prometheus

METRICS = b"""\
stepscope_gpu_row_remapping_failed{gpu="0"} 1
stepscope_gpu_row_remapping_failed{gpu="1"} 0
stepscope_gpu_row_remapping_pending{gpu="0"} 0
stepscope_gpu_row_remapping_pending{gpu="1"} 1
"""
DEFAULTS = Options()
SECONDS = 5  # of evaluations that are checked, one each
FAILED, PENDING = "stepscope_gpu_row_remapping_failed == 1", "stepscope_gpu_row_remapping_pending == 1"


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(METRICS)))
        self.end_headers()
        self.wfile.write(METRICS)

    def log_message(self, format: str, *words: object) -> None:
        pass


@contextmanager
def node() -> Iterator[str]:
    """The address of an exporter."""
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Metrics)) as port:
        yield f"127.0.0.1:{port}"


def checked(folder: Path, rules: str, options: Options = DEFAULTS) -> dict[str, Outcome]:
    """The outcomes by rule, of the last seconds of a Prometheus that has these rules."""
    with node() as target, evaluating(target, rules, folder / "server") as prometheus:
        long_ago = f"offset {SECONDS + 2}s"
        prometheus.wait_for(f"stepscope_gpu_row_remapping_failed {long_ago} == 1")
        with Server(prometheus.url) as server:
            end = server.now() - 1000
            found = check_hardware(server, hardware_of(options), server.pace(), end - 1000 * SECONDS, end)
    return {outcome.rule: outcome for outcome in found}


def without_pace(outcome: Outcome) -> list[tuple[str, object, object]]:
    """What differs but for the interval, which is a second for this test."""
    return [
        (dict(each.labels)["gpu"], each.expected, each.recorded)
        for each in outcome.disagreements
        if each.series == "ALERTS"
    ]


def test_alerts_that_prometheus_has_as_they_were_rendered_agree(tmp_path: Path) -> None:
    found = checked(tmp_path, render(Options())[META])
    assert found.keys() == {rule.__name__ for rule in hardware_rules()}
    rows = found["RowRemapping"]
    assert rows.firing >= 2 * (SECONDS - 1)  # one alert fails, the other is pending a reset
    assert not any(without_pace(outcome) for outcome in found.values())
    assert found["PCIeReplays"].firing == 0
    assert found["PCIeReplays"].evaluations >= SECONDS - 1
    intervals = [each.series for outcome in found.values() for each in outcome.disagreements]
    assert intervals == ["interval"]


def test_a_threshold_that_was_changed_by_hand_is_a_disagreement(tmp_path: Path) -> None:
    rules = render(Options())[META]
    wrong = rules.replace(FAILED, f"{FAILED[:-1]}2").replace(PENDING, f"{PENDING[:-1]}0")
    assert wrong != rules
    found = checked(tmp_path, wrong)
    assert sorted(without_pace(found["RowRemapping"]), key=str) == [
        ("0", "firing", None),
        ("0", None, "firing"),
        ("1", "firing", None),
    ]


def test_alerts_that_are_not_loaded_are_not_called_checked(tmp_path: Path) -> None:
    found = checked(tmp_path, "groups:\n- name: other\n  interval: 1s\n  rules: []\n")
    assert not any(outcome.evaluations or outcome.disagreements for outcome in found.values())


def test_a_namespace_that_is_added_to_all_alerts_is_no_difference(tmp_path: Path) -> None:
    options = Options(label=("namespace=stepscope",))
    outcome = checked(tmp_path, render(options)[META], options)["RowRemapping"]
    assert outcome.firing > 0
    assert without_pace(outcome) == []


def test_the_lean_profile_has_no_alerts_on_hardware_to_check() -> None:
    intended = hardware_of(Options(profile="lean"))
    with Server("http://127.0.0.1:9") as server:  # nobody answers there
        assert check_hardware(server, intended, {}, 0, 1) == []
        assert check_hardware(server, intended, {HARDWARE: Pace(60_000, [(0.0, 0.0)])}, 0, 1) == []
