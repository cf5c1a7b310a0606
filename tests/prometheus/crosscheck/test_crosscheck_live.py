"""`stepscope crosscheck --prometheus`: a server that has scraped a simulated node and evaluated rules.

The scrapes are those of the simulation's clock, and each rule was evaluated at its moments: no machine is too
busy for that. With real clocks, tests/end_to_end checks a server that evaluates.
"""

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from stepscope.prometheus.crosscheck.compare import check_rules
from stepscope.prometheus.crosscheck.offline.check import evaluate
from stepscope.prometheus.crosscheck.offline.prometheus import CONFIG, LocalPrometheus
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.prometheus.crosscheck.rule_files import metrics, read_groups, rules_of
from stepscope.prometheus.crosscheck.server import Server
from stepscope.prometheus.crosscheck.stored import ScrapeTimes, Window
from stepscope.prometheus.rules.files import RULES
from stepscope.prometheus.rules.options import Options

from tests.support.commands import refusal
from tests.support.crosscheck import ALERTING, COMMITTED, crosscheck, table
from tests.support.prometheus import needs_prometheus, serving
from tests.support.scenarios import WrittenScenarios
from tests.support.scrapes import SCRAPE_SECONDS

pytestmark = needs_prometheus

# Changes by hand: a threshold, an interval, and series that there are not, as after a metric's renaming.
CHANGES = {
    "run_instance:stepscope_cpu_starved:ratio > 0.5": "run_instance:stepscope_cpu_starved:ratio > 0.99",
    "stepscope_run_start_time_seconds": "stepscope_run_begin_time_seconds",
    "stepscope_run_age_seconds": "stepscope_run_old_seconds",
    "- name: stepscope-Dataloader\n    interval: 4m": "- name: stepscope-Dataloader\n    interval: 2m",
}
SAY_NOTHING = {"LossNotFinite", "MaxInitializationTime"}
WRONG = sorted({"CPUBottleneck", "CollectiveHang", "Dataloader", "TrainingStalled", *SAY_NOTHING})
UNEVALUATED = "BatchSize"


class Checked(NamedTuple):
    url: str
    window: Window

    @property
    def times(self) -> tuple[str, str]:
        """Returns the run's, as flags."""
        return f"--start={self.window.start / 1000}", f"--end={self.window.end / 1000}"


@pytest.fixture(scope="module")
def server(scenarios: WrittenScenarios, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checked]:
    """A Prometheus that has scraped a run, and evaluated the committed rules with changes, but one."""
    folder = tmp_path_factory.mktemp("crosscheck")
    rules = committed = COMMITTED.read_text()
    for old, new in CHANGES.items():
        assert old in rules, old
        rules = rules.replace(old, new)
    (folder / RULES).write_text(rules)
    (folder / "prometheus.yml").write_text(f"{CONFIG}rule_files: [{RULES}]\n")
    flags = ("--storage.tsdb.retention.time=100y", "--web.enable-remote-write-receiver")
    run = RecordedRun(scenarios.written("cpu-bottleneck").recording_directory)
    groups = read_groups(rules, RULES)
    begin = round(1000 * run.start)
    moments = range(begin, round(1000 * run.end) + 1, 1000 * SCRAPE_SECONDS)
    with serving(folder / "prometheus.yml", folder / "data", *flags) as running:
        store = LocalPrometheus(running.url)
        store.write(run.scraped(moments, metrics([*groups, *read_groups(committed, RULES)]), lambda _: None))
        with Server(running.url) as reading:
            evaluated = [group for group in groups if group.name != f"stepscope-{UNEVALUATED}"]
            evaluate(reading, store, evaluated, begin, moments[-1], lambda _: None)
        scrapes = ScrapeTimes(1000 * SCRAPE_SECONDS, unseen=0)
        yield Checked(running.url, Window(run.name, begin, moments[-1], scrapes, restarted=None))


@pytest.fixture(scope="module")
def answer(server: Checked) -> subprocess.CompletedProcess[str]:
    """Without `--rules`, the parameters are those of a render without flags."""
    return crosscheck("--prometheus", server.url, *server.times)


def test_rules_that_were_changed_by_hand_disagree_and_no_others(
    answer: subprocess.CompletedProcess[str],
) -> None:
    assert (answer.returncode, answer.stderr) == (1, "")
    assert answer.stdout.splitlines()[-1] == f"Disagreements: {', '.join(WRONG)}."
    rows = table(answer)
    assert rows.keys() == ALERTING
    assert {rule for rule, row in rows.items() if row["disagreements"]} == {*WRONG}
    assert {rule for rule, row in rows.items() if row["firing"]} == {"DataStarved", "LowGPUUtilization"}
    # The run is in no cgroup, and publishes no norm of gradients.
    silent = {"CPUThrottled", "MemoryPressure", "GradientsExploding", UNEVALUATED}
    for rule in rows.keys() - silent - {*WRONG}:
        assert rows[rule]["values"] >= rows[rule]["evaluations"] > 2, rule


def test_a_disagreement_names_the_moment_the_series_and_both_values(
    answer: subprocess.CompletedProcess[str],
) -> None:
    assert re.search(
        r'(?m)^CPUBottleneck: \S+Z ALERTS\{audience="owner", instance="\S+", job="stepscope", '
        r'kind="cause", rule="CPUBottleneck", run="simulated-cpu-bottleneck", scope="node", '
        r'severity="warning", symptom="idle GPUs"\}: '
        r"expected firing, Prometheus has nothing$",
        answer.stdout,
    )
    assert re.search(r"stepscope:rule_status\{.*\}: expected 1, Prometheus has 0", answer.stdout)
    assert re.search(r"(?m)^Dataloader: \S+Z interval: expected 240, Prometheus has 120$", answer.stdout)


def test_a_rule_that_is_evaluated_but_says_nothing_disagrees_at_each_evaluation(
    answer: subprocess.CompletedProcess[str],
) -> None:
    for rule in SAY_NOTHING:
        row = table(answer)[rule]
        assert row["disagreements"] >= row["evaluations"] > 2, rule


def test_a_rule_that_is_loaded_but_not_evaluated_disagrees_if_the_server_ran_all_the_time(
    server: Checked,
) -> None:
    options = Options()
    with Server(server.url) as reading:
        checked = check_rules(reading, options, rules_of(options), reading.pace(), [server.window])
    said = {(found.rule, found.expected) for outcome in checked for found in outcome.disagreements}
    assert {rule for rule, expected in said if expected == "a status"} == {UNEVALUATED}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--run", "none"],
            "--run none: Prometheus has no samples of it in that time; it has simulated-cpu",
        ),
        (
            ["--start", "1", "--end", "1000000000"],
            "Prometheus has no samples of a run in that time; give another --start",
        ),
        (["--start", "4000000000"], "--start is not before --end"),
        (
            ["--rules", "/nonexistent.yml"],
            "--rules /nonexistent.yml: cannot be read (No such file or directory)",
        ),
        (["--rules", __file__], "does not say how it was rendered; name a rendered rule file"),
        (["--start", "yesterday"], "'yesterday' must be a time such as 2026-11-20T12:00:00Z"),
    ],
)
def test_a_mistake_of_the_user_is_said_in_one_line(server: Checked, flags: list[str], message: str) -> None:
    assert message in refusal("crosscheck", "--prometheus", server.url, *server.times, *flags)
