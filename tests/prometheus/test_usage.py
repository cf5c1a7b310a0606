"""`stepscope usage` of a week that a real Prometheus stored, with hours that anybody can add up.

Every series has a value every two minutes, and a server that forgets it just before the next one.
"""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.queries import wasted as wasted_of
from stepscope.prometheus.rules.files import USAGE, render
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.usage import CPU_UTILIZATION, GPUS
from stepscope.prometheus.usage import DAY, HOUR, STEP

from tests.support.backfill import Backfill
from tests.support.demo import START
from tests.support.grafana import Reader
from tests.support.prometheus import Prometheus, needs_prometheus, serving
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

BEGIN = START // STEP * STEP + 2 * HOUR  # of the week
END = BEGIN + 7 * DAY
BEFORE, AFTER = -1, 7 * 24 + 1  # hours since BEGIN
Hours = tuple[float, float]
OF_RUN = 'stepscope_step_duration_seconds_sum{run="RUN"}'


def of_node(node: str) -> str:
    return f'job="stepscope",instance="{node}"'


class Week:
    """What was scraped: a line for each value of each series."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, series: str, value: float, *times: Hours, grows: bool = False) -> None:
        """A value, or one that grows so much every second, from some hour to another."""
        for first, last in times:
            begin, end = (round(BEGIN + HOUR * hour) for hour in (first, last))
            for time in range(begin, end, STEP):
                self.lines.append(f"{series} {value * (time - begin) if grows else value} {time}\n")

    def node(self, node: str, *scraped: Hours) -> None:
        """Eight GPUs whose holders can be read."""
        self.add(f'stepscope_collector_success{{{of_node(node)},collector="gpu_holders"}}', 1, *scraped)
        for gpu in range(8):
            self.add(f'stepscope_gpu_up{{{of_node(node)},gpu="{gpu}"}}', 1, *scraped)

    def held(
        self, node: str, gpus: range, time: Hours, user: str, busy: float, watts: float, run: str = ""
    ) -> None:
        """GPUs that a process holds."""
        for gpu in gpus:
            of_gpu = f'{of_node(node)},gpu="{gpu}"'
            self.add(
                f'stepscope_gpu_held_idle_seconds{{{of_gpu},run="{run}",user="{user}",pid="9"}}', 0, time
            )
            self.add(f"stepscope_gpu_utilization_ratio{{{of_gpu}}}", busy, time)
            self.add(f"stepscope_gpu_power_watts{{{of_gpu}}}", watts, time)

    def free(self, node: str, gpus: range, *times: Hours, watts: float | None = None) -> None:
        for gpu in gpus:
            of_gpu = f'{of_node(node)},gpu="{gpu}"'
            self.add(f"stepscope_gpu_utilization_ratio{{{of_gpu}}}", 0, *times)
            if watts is not None:
                self.add(f"stepscope_gpu_power_watts{{{of_gpu}}}", watts, *times)

    def run(self, node: str, run: str, time: Hours, user: str, namespace: str) -> None:
        labels = f'{of_node(node)},run="{run}",user="{user}",namespace="{namespace}",pod="{run}-0"'
        self.add(f"stepscope_run_info{{{labels}}}", 1, time)

    def account(self, node: str, run: str, time: Hours, useful: float) -> None:
        for part, share in (("train/forward", useful), ("train/data_wait", 1 - useful)):
            labels = f'{of_node(node)},run="{run}",rank="0",part="{part}"'
            self.add(f"stepscope_account_seconds_total{{{labels}}}", share, time, grows=True)

    def pod(self, node: str, namespace: str, gpus: int, time: Hours, phase: str = "Running") -> None:
        pod = f'job="kube-state-metrics",instance="10.0.0.1:8080",namespace="{namespace}",pod="{namespace}-0"'
        request = f'{pod},container="main",node="{node}",resource="nvidia_com_gpu",unit="integer"'
        self.add(f"kube_pod_container_resource_requests{{{request}}}", gpus, time)
        for each in ("Running", "Succeeded"):
            self.add(f'kube_pod_status_phase{{{pod},phase="{each}"}}', float(each == phase), time)


def the_week() -> Week:
    """Two nodes of 8 GPUs on Kubernetes, of which kube-state-metrics was scraped on the first six days.

    The second one is not scraped for six hours, in which it gets another name.
    """
    week = Week()
    # ana trains for 48 h in a pod that stays for 12 h more, and is then listed as succeeded.
    whole = (BEFORE, AFTER)
    week.node("gpu-1", whole)
    week.held("gpu-1", range(8), (10, 58), "ana", busy=0.75, watts=400, run="train-a")
    week.run("gpu-1", "train-a", (10, 58), "ana", "vision")
    week.account("gpu-1", "train-a", (9.9, 58), useful=0.6)  # a rate takes two values
    week.pod("gpu-1", "vision", 8, (10, 70))
    week.pod("gpu-1", "vision", 8, (70, 75), phase="Succeeded")
    # ben's run fails after 10 h; it is not known what its steps do.
    week.held("gpu-1", range(4), (80, 90), "ben", busy=0.5, watts=300, run="train-b")
    week.run("gpu-1", "train-b", (80, 91), "ben", "speech")
    week.add(
        f'stepscope_run_ended_info{{{of_node("gpu-1")},run="train-b",reason="exit status 1"}}', 1, (90, 91)
    )
    week.pod("gpu-1", "speech", 4, (80, 90))
    # Two users share a namespace: which of them has its allocation is not known.
    for gpu, user in enumerate(("dan", "eve")):
        week.held("gpu-1", range(gpu, gpu + 1), (100, 102), user, busy=1, watts=500, run=f"of-{user}")
        week.run("gpu-1", f"of-{user}", (100, 102), user, "shared")
    week.pod("gpu-1", "shared", 2, (100, 102))
    week.free("gpu-1", range(2), (BEFORE, 10), (58, 80), (90, 100), (102, AFTER))
    week.free("gpu-1", range(2, 4), (BEFORE, 10), (58, 80), (90, AFTER))
    week.free("gpu-1", range(4, 8), (BEFORE, 10), (58, AFTER))
    # A pod holds 8 GPUs for a day, without a process; then a notebook without a run uses none of its GPU.
    week.node("gpu-2", (BEFORE, 100))
    week.node("renamed", (106, AFTER))
    week.pod("gpu-2", "llm", 8, (20, 44))
    week.pod("gpu-2", "lab", 1, (50, 55))
    week.held("gpu-2", range(1), (50, 55), "ana", busy=0, watts=100)
    # On the last day, nobody knows what is allocated.
    week.held("renamed", range(1), (150, 160), "ana", busy=1, watts=500)
    week.free("gpu-2", range(1), (BEFORE, 50), (55, 100), watts=60)
    week.free("gpu-2", range(1, 8), (BEFORE, 100), watts=60)
    week.free("renamed", range(1), (106, 150), (160, AFTER), watts=60)
    week.free("renamed", range(1, 8), (106, AFTER), watts=60)
    return week


class ForgetfulBackfill(Backfill):
    """Its server has a value no longer than until the next one."""

    @contextmanager
    def serving(self) -> Iterator[Prometheus]:
        (self.folder / "prometheus.yml").write_text("{}\n")
        flags = ("--storage.tsdb.retention.time=100y", f"--query.lookback-delta={STEP - 1}s")
        with serving(self.folder / "prometheus.yml", self.storage, *flags) as server:
            yield server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    backfill = ForgetfulBackfill(tmp_path_factory.mktemp("week"))
    scrapes, rules = backfill.folder / "week.om", backfill.folder / USAGE
    with scrapes.open("w") as file:
        file.writelines(sorted(the_week().lines, key=lambda line: int(line.split()[-1])))
    backfill.store([scrapes])
    groups = yaml.load(render(Options())[USAGE], yaml.CSafeLoader)["groups"]
    (owners,) = (group for group in groups if group["name"] == "stepscope-owners")
    (gpus,) = (rule for group in groups for rule in group["rules"] if rule.get("record") == GPUS)
    rules.write_text(yaml.safe_dump({"groups": [{**owners, "rules": [gpus, *owners["rules"]]}]}))
    backfill.evaluate([rules], END + HOUR - START)
    with backfill.serving() as server:
        yield server.url


def usage(capsys: pytest.CaptureFixture[str], url: str, *flags: str) -> str:
    assert main(["usage", "--prometheus", url, "--end", str(END), *flags]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def amounts(text: str) -> dict[tuple[str, str, str], tuple[float | None, ...]]:
    """What a CSV has by user, namespace and state: hours, kWh and dollars."""
    return {
        (row["user"], row["namespace"], row["state"]): tuple(
            float(row[name]) if row[name] else None for name in ("gpu_hours", "kwh", "dollars")
        )
        for row in csv.DictReader(text.splitlines())
    }


def of_states(
    user: str, namespace: str, **hours: float | None
) -> Mapping[tuple[str, str, str], float | None]:
    return {(user, namespace, state): amount for state, amount in hours.items()}


def test_a_week_has_the_hours_that_were_planted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = amounts(usage(capsys, url, "--week", "--format", "csv", "--price", "2"))
    expected = {
        **of_states(
            *("ana", "vision"),
            allocated=8 * 60,
            without_process=8 * 12,
            held=8 * 48,
            used=0.75 * 8 * 48,
            useful=0.6 * 8 * 48,
            idle=0.25 * 8 * 48,
            failed=0,
        ),
        **of_states(
            *("ben", "speech"),
            allocated=40,
            without_process=0,
            held=40,
            used=20,
            useful=None,
            idle=20,
            failed=40,
        ),
        **of_states(
            *("", "llm"), allocated=192, without_process=192, held=0, used=0, useful=0, idle=0, failed=0
        ),
        # The notebook's namespace is not known, but its node has no GPU without a process then.
        **of_states(*("", "lab"), allocated=5, without_process=0, held=0, used=0, useful=0, idle=0, failed=0),
        **of_states(
            *("ana", ""),
            allocated=None,
            without_process=None,
            held=15,
            used=10,
            useful=None,
            idle=5,
            failed=0,
        ),
        **of_states(
            *("", "shared"), allocated=4, without_process=0, held=0, used=0, useful=0, idle=0, failed=0
        ),
        **{
            key: amount
            for user in ("dan", "eve")
            for key, amount in of_states(
                *(user, "shared"),
                allocated=None,
                without_process=None,
                held=2,
                used=2,
                useful=None,
                idle=0,
                failed=0,
            ).items()
        },
        **of_states("", "", observed=2 * 8 * 168 - 8 * 6, not_observed=8 * 6),
    }
    hours = {key: each[0] for key, each in found.items()}
    assert hours.keys() == expected.keys()
    assert hours == {key: None if each is None else pytest.approx(each) for key, each in expected.items()}
    kwh = {key: each[1] for key, each in found.items() if each[1] is not None}
    assert kwh == pytest.approx(
        {
            # The free GPUs of its node report no power: what its pod drew after it is not known.
            ("ana", "vision", "held"): 8 * 0.4 * 48,
            ("ana", "vision", "useful"): 0.6 * 8 * 0.4 * 48,
            ("ana", "vision", "idle"): 0.25 * 8 * 0.4 * 48,
            ("ben", "speech", "allocated"): 4 * 0.3 * 10,
            ("ben", "speech", "without_process"): 0,
            ("ben", "speech", "held"): 4 * 0.3 * 10,
            ("ben", "speech", "idle"): 0.5 * 4 * 0.3 * 10,
            ("ben", "speech", "failed"): 4 * 0.3 * 10,
            ("", "llm", "allocated"): 0.06 * 192,
            ("", "llm", "without_process"): 0.06 * 192,
            # Its GPU was held by a process of no known namespace.
            ("", "lab", "without_process"): 0,
            ("ana", "", "held"): 0.1 * 5 + 0.5 * 10,
            ("ana", "", "idle"): 0.1 * 5,
            ("", "shared", "without_process"): 0,
            **{(user, "shared", "held"): 0.5 * 2 for user in ("dan", "eve")},
            **{(user, "shared", "idle"): 0 for user in ("dan", "eve")},
        }
    )
    for hours_, _, dollars in found.values():
        assert dollars == (None if hours_ is None else pytest.approx(2 * hours_))


def test_markdown_has_a_row_per_owner_and_names_what_is_not_known(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = usage(capsys, url, "--price", "2").splitlines()
    assert lines[0].startswith("# GPU hours from 20")
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert header[:4] == ["User", "Namespace", "Allocated", "Without process"]
    assert header[4:9] == ["Held", "Used", "Useful", "Idle", "Failed"]
    assert header[9:] == ["kWh", "kWh of useful", "kWh of idle", "Cost", "Cost of useful", "Cost of idle"]
    assert [row[:4] for row in rows] == [
        ["ana", "vision", "480", "96"],
        ["–", "llm", "192", "192"],
        ["ben", "speech", "40", "0"],
        ["ana", "–", "–", "–"],
        ["–", "lab", "5", "0"],
        ["–", "shared", "4", "0"],
        ["dan", "shared", "–", "–"],
        ["eve", "shared", "–", "–"],
        ["all", "", "721", "288"],
    ]
    assert rows[0][4:9] == ["384", "288", "230", "96", "0"]
    assert rows[0][9:] == ["154", "92.2", "38.4", "$960.00", "$460.80", "$384.00"]
    assert rows[1][9:] == ["11.5", "–", "11.5", "$384.00", "$0.00", "$384.00"]
    assert rows[4][9:] == ["–", "–", "0", "$10.00", "$0.00", "$0.00"]
    notes = "\n".join(line for line in lines if line.startswith("- "))
    assert "- Observed: 2640 GPU hours." in notes
    assert "- Not observed: 48 GPU hours, which are in no column." in notes
    assert "- Useful is unknown for 59 held GPU hours" in notes
    assert "- Energy is unknown for 96 GPU hours, whose GPUs reported no power, and for all" in notes
    assert "- No allocation was published in 96 of 168 h" in notes
    assert "compared" not in notes


def test_without_a_published_allocation_it_is_unknown_and_never_0(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = usage(capsys, url, "--days", "1")
    assert "| ana | – | – | – | 10 | 10 | – | 0 | 0 | 5 |" in text
    assert "- Allocation unknown: scrape kube-state-metrics (Kubernetes) or slurm_exporter (Slurm)" in text
    found = amounts(usage(capsys, url, "--days", "1", "--format", "csv"))
    assert found["ana", "", "allocated"] == (None, None, None)
    assert found["", "", "not_observed"][0] == pytest.approx(0)


def test_the_board_has_about_the_same_hours(url: str) -> None:
    board = Reader(Prometheus(url), dashboards()["stepscope-usage"], BEGIN, END, {"price": "2"})
    for title, hours in (("Allocated without a process", 288), ("Held", 384 + 40 + 15 + 4), ("Failed", 40)):
        (series,) = board.lines(title).values()
        assert series.values[0] == pytest.approx(hours, rel=0.05), title
    rows = {(row["User"], row["Namespace"]): row for row in board.table("GPU hours by user and namespace")}
    expected = {
        ("ana", "vision"): {
            "Held": 384,
            "Used": 288,
            "Useful": 230,
            "Idle": 96,
            "Energy (kWh)": 154,
            "Idle energy (kWh)": 38.4,
            "Cost": 768,
            "Cost of idle": 192,
        },
        ("–", "llm"): {"Without process": 192, "Idle energy (kWh)": 11.5, "Cost of idle": 384},
    }
    for owner, amounts_of_owner in expected.items():
        for column, amount in amounts_of_owner.items():
            assert rows[owner][column] == pytest.approx(amount, rel=0.05), (owner, column)
    assert rows["ana", "–"]["Held"] == pytest.approx(15, rel=0.05)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--end", str(BEGIN - 30 * DAY)], "has recorded no GPUs from"),
        (["--days", "0"], "'0' is not a number of days: give 1 to 9999, as in 30"),
        (["--week", "--days", "3"], "not allowed with argument --week"),
        (["--price", "much"], "'much' is not a price: give dollars per hour, as in 14.688"),
        (["--prometheus", "localhost"], "--prometheus localhost: is not a URL; give one such as http://"),
        (["--prometheus", "http://127.0.0.1:9"], "http://127.0.0.1:9: cannot be reached"),
    ],
)
def test_errors_are_one_line_with_cause_and_fix(
    url: str, flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", "--prometheus", url, *flags]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert error in written.err
    assert written.err.count("\n") == 1


def test_on_slurm_users_are_compared_with_their_processes_only_if_every_gpu_is_observed(
    tmp_path: Path,
) -> None:
    (tmp_path / USAGE).write_text(render(Options())[USAGE])
    minutes = 10
    without = "owner_instance:stepscope_gpus_without_process:count"
    for slurm_gpus, expected in ((8, 3), (16, None)):
        test = RuleTest(tmp_path / USAGE, interval=60)
        week = Week()
        week.node("gpu-1", (0, minutes / 60))
        week.held("gpu-1", range(1), (0, minutes / 60), "ana", busy=1, watts=300)
        week.free("gpu-1", range(1, 8), (0, minutes / 60))
        series = {line.rpartition("}")[0] + "}": float(line.split()[-2]) for line in week.lines}
        series |= {'slurm_user_gpus_running{user="ana"}': 4, "slurm_gpus_total{}": slurm_gpus}
        test.add({name: [value] * (minutes + 1) for name, value in series.items()})
        test.equals('owner_instance:stepscope_gpus_allocated:count{user="ana"}', 60 * minutes, 4)
        if expected is None:
            test.gives_nothing(without, 60 * minutes)
        else:
            test.equals(f'{without}{{user="ana"}}', 60 * minutes, expected)
        test.run(tmp_path)


def test_a_new_pod_of_the_exporter_loses_no_evaluation_if_the_name_of_its_pod_is_a_label(
    tmp_path: Path,
) -> None:
    """Ranges have the series of both pods. Prometheus evaluates such a rule for no node at all."""
    (tmp_path / USAGE).write_text(render(Options())[USAGE])
    test = RuleTest(tmp_path / USAGE, interval=60)
    minutes, restart = 20, 11
    week = Week()
    week.node("gpu-1", (0, minutes / 60))
    week.held("gpu-1", range(8), (0, minutes / 60), "ana", busy=0.5, watts=300, run="r")
    week.run("gpu-1", "r", (0, minutes / 60), "ana", "vision")
    of_rank = f'{of_node("gpu-1")},run="r",rank="0",part="train/forward"'
    series = {line.rpartition("}")[0] + "}": float(line.split()[-2]) for line in week.lines}
    for pod, from_, to in (("old", 0, restart), ("new", restart, minutes)):
        for name, value in series.items():
            of_pod = name.replace("{", f'{{exporter_pod="{pod}",')
            test.add({of_pod: [None] * from_ + [value] * (to - from_) + [float("nan")]})
        account = [60.0 * minute for minute in range(from_, to)]
        of_pod = f'stepscope_account_seconds_total{{exporter_pod="{pod}",{of_rank}}}'
        test.add({of_pod: [None] * from_ + account + [float("nan")]})
    for minute in (12, 14):
        test.equals("run_instance:stepscope_gpus_used:sum", 60 * minute, 4)
        test.equals("run_instance:stepscope_gpus_held_power:watts", 60 * minute, 2400)
        test.equals("run_instance:stepscope_gpus_useful:sum", 60 * minute, 8, 1e-6)
    test.run(tmp_path)


def test_no_share_becomes_unknown_or_more_than_1_while_there_are_no_steps_or_samples(
    tmp_path: Path,
) -> None:
    """For ten minutes, steps wait for half of their time. Then there are none, as in an evaluation."""
    (tmp_path / USAGE).write_text(render(Options())[USAGE])
    test = RuleTest(tmp_path / USAGE, interval=60)
    minutes = range(31)
    for run, in_barrier in (("paused", 0), ("barrier", 60)):
        of = f'job="stepscope",instance="n0",run="{run}",rank="0"'
        trained = [30.0 * min(minute, 10) for minute in minutes]
        waits = [15.0 * min(minute, 10) + in_barrier * max(minute - 10, 0) for minute in minutes]
        test.add({f'stepscope_step_duration_seconds_sum{{{of},phase="train"}}': trained})
        test.add({f'stepscope_step_component_seconds_total{{{of},component="communication"}}': waits})
    for node, per_minute in (("n0", 60), ("n1", 0)):  # on n1, a run has ended that is still published
        for part, share in (("sum", 0.25), ("count", 1)):
            of = f'job="stepscope",instance="{node}",run="r"'
            samples = [share * per_minute * minute for minute in minutes]
            test.add({f"stepscope_cpu_utilization_samples_{part}{{{of}}}": samples})
    test.equals(f"avg({CPU_UTILIZATION})", 1800, 0.25)
    wasted = wasted_of('run=~".*"').replace("$__range", "30m")
    test.equals(f"({wasted}) and on (run) {OF_RUN}".replace("RUN", "paused"), 1800, 0.5, 1e-6)
    test.equals(f"(({wasted}) and on (run) {OF_RUN}) <= bool 1".replace("RUN", "barrier"), 1800, 1)
    test.run(tmp_path)
