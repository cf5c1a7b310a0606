"""`stepscope crosscheck` against a real Prometheus that scrapes a simulated node and evaluates the rules."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

from tests.support.crosscheck import ALERTING, COMMITTED, crosscheck, evaluating, table
from tests.support.demo import DemoProcess
from tests.support.prometheus import Prometheus, needs_prometheus

pytestmark = needs_prometheus

SPEED = 20  # simulated seconds a second
# Short windows, to have values of all rules within seconds: 1000 samples are taken in 25 s at this speed.
OPTIONS = Options(scraping=Scraping(1.0, 0.5 / SPEED))


class Servers:
    """One simulated node; one Prometheus with right rules and one with wrong ones."""

    def __init__(self, right: Prometheus, wrong: Prometheus, folder: Path) -> None:
        self.right, self.wrong = right, wrong
        self.short_windows = folder / "short-windows.yml"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("crosscheck")
    short_windows = render(OPTIONS)[RULES]
    share = "run_instance:stepscope_cpu_starved:ratio"
    wrong = short_windows.replace(f"{share} > 0.5", f"{share} > 0.99")
    assert wrong != short_windows
    # And in three groups series that there are not, as after a metric's renaming.
    wrong = wrong.replace("stepscope_run_start_time_seconds", "stepscope_run_begin_time_seconds")
    wrong = wrong.replace("stepscope_run_age_seconds", "stepscope_run_old_seconds")
    (folder / "short-windows.yml").write_text(short_windows)
    with ExitStack() as stack:
        node = stack.enter_context(DemoProcess("cpu-bottleneck", f"--speed={SPEED}"))
        target = node.url.removeprefix("http://")
        right = stack.enter_context(evaluating(target, COMMITTED.read_text(), folder / "right"))
        other = stack.enter_context(evaluating(target, wrong, folder / "wrong"))
        right.wait_for('ALERTS{alertname="StepscopeCPUBottleneck",alertstate="firing"}')
        # What is checked ends some seconds ago; by then the alert is in it.
        right.wait_for('ALERTS{alertname="StepscopeCPUBottleneck",alertstate="firing"} offset 10s')
        # By then the rule would fire, and has said for a while that it does not.
        other.wait_for("run_instance:stepscope_cpu_starved:samples offset 10s > 1000")
        yield Servers(right, other, folder)


def disagreeing(answer: subprocess.CompletedProcess[str]) -> set[str]:
    """The rules that disagree in more than the interval: to save time, all are evaluated every second."""
    assert answer.returncode == 1, answer.stdout
    said = answer.stdout.splitlines()[-1].removeprefix("Disagreements: ").removesuffix(".").split(", ")
    assert said == sorted(said)
    assert {*said} == ALERTING
    others = {rule for rule, row in table(answer).items() if row["disagreements"] > 1}
    without_status = r"(?m)^(\w+): \S+Z stepscope:rule_status.*: expected a status, Prometheus has nothing$"
    others |= {*re.findall(without_status, answer.stdout)}
    of_interval = re.findall(r"(?m)^(\w+): \S+Z interval: expected \d+, Prometheus has 1$", answer.stdout)
    assert {*of_interval, *others} == {*said}
    return others


def test_the_committed_rules_say_what_the_raw_counters_say(servers: Servers) -> None:
    """Without `--rules`, the parameters are those of a render without flags."""
    answer = crosscheck("--prometheus", servers.right.url)
    assert disagreeing(answer) == set()
    assert answer.stderr == ""
    row = table(answer)["CPUBottleneck"]
    assert row["evaluations"] > 10
    assert row["firing"] > 0  # at all of them, if the servers were slow to start
    assert any(other["firing"] < other["evaluations"] for other in table(answer).values())
    # Ratio and status each time, and the alert that fires.
    assert row["values"] >= 2 * row["evaluations"] + 5


@pytest.fixture(scope="module")
def of_wrong_rules(servers: Servers) -> subprocess.CompletedProcess[str]:
    return crosscheck("--prometheus", servers.wrong.url, "--rules", servers.short_windows)


def test_one_threshold_changed_by_hand_is_a_disagreement_that_names_the_rule(
    of_wrong_rules: subprocess.CompletedProcess[str],
) -> None:
    answer = of_wrong_rules
    assert disagreeing(answer) == {
        "CPUBottleneck",
        "CollectiveHang",
        "LossNotFinite",
        "MaxInitializationTime",
        "TrainingStalled",
    }
    assert re.search(
        r'(?m)^CPUBottleneck: \S+Z ALERTS\{audience="owner", instance="127\.0\.0\.1", job="stepscope", '
        r'kind="cause", rule="CPUBottleneck", run="simulated-cpu-bottleneck", scope="node", '
        r'severity="warning", symptom="idle GPUs"\}: '
        r"expected firing, Prometheus has nothing$",
        answer.stdout,
    )
    assert re.search(r"stepscope:rule_status\{.*\}: expected 1, Prometheus has 0", answer.stdout)


def test_a_rule_that_is_loaded_but_says_nothing_is_a_disagreement(
    of_wrong_rules: subprocess.CompletedProcess[str],
) -> None:
    assert re.search(
        r"(?m)^MaxInitializationTime: \S+Z stepscope:rule_status\{.*\}: "
        r"expected a status, Prometheus has nothing$",
        of_wrong_rules.stdout,
    )


def test_every_rule_that_is_checked_had_values_to_be_checked(
    of_wrong_rules: subprocess.CompletedProcess[str],
) -> None:
    rows = table(of_wrong_rules)
    assert rows.keys() == ALERTING
    without = {"CPUThrottled", "MemoryPressure"}  # the run is in no cgroup
    assert {rule: rows[rule]["values"] for rule in without} == dict.fromkeys(without, 0)
    for rule in rows.keys() - without - {"LossNotFinite", "MaxInitializationTime", "TrainingStalled"}:
        assert rows[rule]["values"] > rows[rule]["evaluations"] > 10, rule


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--run", "none"],
            "--run none: Prometheus has no samples of it in that time; it has simulated-cpu",
        ),
        (["--end", "1000000000"], "Prometheus has no samples of a run in that time; give another --start"),
        (["--start", "4000000000"], "--start is not before --end"),
        (
            ["--rules", "/nonexistent.yml"],
            "--rules /nonexistent.yml: cannot be read (No such file or directory)",
        ),
        (["--rules", __file__], "does not say how it was rendered; name a rendered rule file"),
        (["--start", "yesterday"], "'yesterday' must be a time such as 2026-11-20T12:00:00Z"),
    ],
)
def test_a_mistake_of_the_user_is_said_in_one_line(servers: Servers, flags: list[str], message: str) -> None:
    answer = crosscheck("--prometheus", servers.right.url, *flags)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1
