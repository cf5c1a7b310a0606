"""DataStarved, CommunicationBound and TrainingStalled in promtool."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.presence import LASTING_SECONDS
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping
from stepscope.rules.training_stalled import SHORTEST_STAY

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values
from tests.support.scrapes import only, scraped_steps
from tests.support.source import START, node_steps

pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def rules(rendered: Callable[..., Path]) -> Path:
    """The rule files with the same threshold for both components."""
    return rendered("CommunicationBound.threshold=20") / "stepscope.yml"


COMPONENTS = pytest.mark.parametrize(
    ("rule", "component"), [("DataStarved", "data_wait"), ("CommunicationBound", "communication")]
)


@COMPONENTS
def test_a_share_above_the_threshold_alerts_once_there_are_more_steps_than_patience(
    test: RuleTest, rule: str, component: str
) -> None:
    names = ("stepscope_step_duration_seconds", "stepscope_step_component_seconds")
    for run, share, fires in (("above", 0.21, 1), ("below", 0.19, 0), ("none", 0.0, 0)):
        steps = node_steps([5.0] * 24, rank=3, **{component: [5.0 * share] * 24})  # type: ignore[arg-type]
        test.add(only(scraped_steps([steps], 9, run), *names))
        test.equals(f'run_instance_rank:stepscope_{component}:ratio{{run="{run}"}}', 60, share)
        test.status(rule, 60, 0, run=run)  # 12 steps
        test.firing(rule, 60, 0, run=run)
        test.status(rule, 120, fires, run=run)  # 24 steps
        test.firing(rule, 120, fires, run=run, rank="3", instance="node-a")


def test_behind_the_end_of_a_run_its_communication_is_told_no_more_but_its_waiting_for_data_is(
    test: RuleTest,
) -> None:
    steps = node_steps([5.0] * 60, communication=[2.0] * 60, data_wait=[2.0] * 60)
    test.add(scraped_steps([steps], 40, end=300.0))
    for rule, goes_on in (("CommunicationBound", 0), ("DataStarved", 1)):
        test.firing(rule, 240, 1)
        test.firing(rule, 480, goes_on)
        test.status(rule, 480, goes_on)


@COMPONENTS
def test_the_share_is_of_the_steps_of_all_phases(test: RuleTest, rule: str, component: str) -> None:
    waiting = node_steps([1.0] * 60, **{component: [0.5] * 60})  # type: ignore[arg-type]
    others = node_steps([1.0] * 120, phase="eval", start=START + 60)
    test.add(only(scraped_steps([waiting, others], 13), "stepscope_step_duration", "stepscope_step_comp"))
    test.firing(rule, 60, 1)
    test.equals(f"run_instance_rank:stepscope_{component}:ratio", 180, 30 / 180)
    test.status(rule, 180, 0)


@COMPONENTS
def test_a_window_without_steps_has_no_share_and_one_with_a_short_step_has(
    rule: str, component: str, test: RuleTest
) -> None:
    """A pause of 25 min, then a step of half a second. The component counts on in the pause."""
    labels = 'job="stepscope",instance="node-a",run="run"'
    test.add({f"stepscope_samples_total{{{labels}}}": [30.0 * scrape for scrape in range(120)]})
    seconds = "stepscope_step_duration_seconds"
    for series, more, first, last in (
        (f"{seconds}_count", 'phase="train"', 10.0, 11.0),
        (f"{seconds}_sum", 'phase="train"', 5.0, 5.5),
        ("stepscope_step_component_seconds_total", f'component="{component}"', 1.0, 1.25),
    ):
        values = [first] * 100 + [last] * 20
        if more.startswith("component"):
            values = [first] * 10 + [last] * 90 + [last + 0.25] * 20
        test.add({f'{series}{{{labels},rank="0",{more}}}': values})
    share = f"run_instance_rank:stepscope_{component}:ratio"
    test.gives_nothing(share, 16 * 60)  # 0.25 s of no step
    test.gives_nothing(share, 20 * 60)  # nothing at all
    test.equals(share, 26 * 60, 0.5)
    test.status(rule, 26 * 60, 0)


def test_communication_costs_what_the_rank_of_the_run_that_communicates_least_spends(test: RuleTest) -> None:
    names = ("stepscope_step_duration_seconds", "stepscope_step_component_seconds")
    for node, shares in (("a", {0: 0.75, 1: 0.5, 2: 0.0625}), ("b", {3: 0.03125})):
        ranks = [
            node_steps([1.0] * 120, rank=rank, communication=[share] * 120) for rank, share in shares.items()
        ]
        test.add(only(scraped_steps(ranks, 9, instance=node), *names))
    test.firing("CommunicationBound", 120, 2, instance="a")
    for rank in (0, 1):
        lost = f'stepscope:rule_lost_ratio{{rule="CommunicationBound", instance="a", rank="{rank}"}}'
        test.equals(lost, 120, 0.03125)


def test_without_steps_there_is_no_target(test: RuleTest) -> None:
    test.add(scraped_steps([], 9))
    test.gives_nothing('stepscope:rule_status{rule=~"DataStarved|CommunicationBound|Straggler"}', 60)
    test.status("TrainingStalled", 60, 0)


def test_a_run_that_makes_no_step_for_20_times_the_usual_time_stands_still(test: RuleTest) -> None:
    short, long = node_steps([0.5] * 120), node_steps([6.0] * 25)  # until 60 s and 150 s
    cases = {
        "short-steps": ([short], None, 120, 135),  # a minute at least
        "long-steps": ([long], None, 270, 285),
        "ended": ([short], 90.0, 300, None),
        "few-steps": ([node_steps([0.5] * 20)], None, 300, None),
        "enough-steps": ([node_steps([0.5] * 21)], None, 60, 75),
    }
    names = ("stepscope_step_duration_seconds_count", "stepscope_run_", "stepscope_phase_seconds_total")
    for run, (steps, end, quiet_at, fires_at) in cases.items():
        test.add(only(scraped_steps(steps, 21, run, end=end), *names))
        test.status("TrainingStalled", quiet_at, 0, run=run)
        test.firing("TrainingStalled", quiet_at, 0, run=run)
        if fires_at is not None:
            test.status("TrainingStalled", fires_at, 1, run=run)
            test.firing("TrainingStalled", fires_at, 1, run=run, severity="critical")


def test_a_run_that_goes_on_is_no_longer_stalled(test: RuleTest) -> None:
    steps = [node_steps([0.5] * 120), node_steps([0.5] * 120, start=START + 150, first_number=121)]
    names = ("stepscope_step_duration_seconds_count", "stepscope_run_", "stepscope_phase_seconds_total")
    test.add(only(scraped_steps(steps, 21), *names))
    test.firing("TrainingStalled", 135, 1)
    test.firing("TrainingStalled", 165, 0)


def pausing(run: str, *stays: tuple[str, int, int], minutes: int = 100) -> dict[str, Values]:
    """A run of 0.5 s steps that makes none while a rank is in a component from one minute to another.

    Nothing runs on its GPU then.
    """
    count = 4 * minutes + 1  # of scrapes
    labels = f'job="stepscope",instance="node-a",run="{run}"'
    steps, age = [0.0], [0.2]
    places: dict[str, list[float | None]] = {}
    for scrape in range(1, count):
        inside = [stay for stay in stays if 4 * stay[1] < scrape <= 4 * stay[2]]
        for component, begin, _ in inside:
            places.setdefault(component, [None] * count)[scrape] = 15.0 * (scrape - 4 * begin)
        steps.append(steps[-1] + (0 if inside else 30))
        age.append(age[-1] + 15 if inside else 0.2)
    lives = [15.0 * scrape for scrape in range(count)]
    return {
        f"stepscope_run_age_seconds{{{labels}}}": lives,
        f"stepscope_run_first_step_time_seconds{{{labels}}}": [1.0] * count,
        f'stepscope_gpu_held_idle_seconds{{{labels},gpu="0",user="ann",pid="7"}}': age,
        f"stepscope_run_start_time_seconds{{{labels}}}": [0.0] * count,
        f"stepscope_run_last_step_age_seconds{{{labels}}}": age,
        f'stepscope_step_duration_seconds_count{{{labels},rank="0",phase="train"}}': steps,
        f'stepscope_phase_seconds_total{{{labels},rank="0",phase="train"}}': [0.5 * step for step in steps],
        **{
            f'stepscope_rank_component_age_seconds{{{labels},rank="0",component="{component}"}}': ages
            for component, ages in places.items()
        },
    }


def test_work_that_the_run_is_known_to_do_is_no_stall_while_it_lasts_as_usual(test: RuleTest) -> None:
    test.add(pausing("checkpoint", ("checkpoint", 10, 15)) | pausing("compile", ("compile", 10, 15)))
    test.add(pausing("long", ("checkpoint", 10, 25)) | pausing("hang", ("backward", 10, 15)))
    test.add(pausing("twice", ("checkpoint", 10, 25), ("checkpoint", 60, 80)))
    for run, minutes in (("checkpoint", (11, 13, 15, 16)), ("compile", (11, 13, 15, 16))):
        for minute in minutes:
            test.status("TrainingStalled", 60 * minute, 0, run=run)
    for run, at, fires in (
        ("hang", 10.75, 0),
        ("hang", 11, 1),
        ("long", 20, 0),
        ("long", 20.25, 1),  # longer than ten minutes, and none was before
        ("twice", 75, 0),
        ("twice", 80, 0),  # the one before took 15 minutes
    ):
        test.firing("TrainingStalled", 60 * at, fires, run=run, place="other", severity="critical")


def test_a_pause_is_no_stall_before_every_node_was_scraped_in_it(tmp_path: Path) -> None:
    """Rank 0 saves for 63 s between two scrapes of its node; that of the other rank is scraped after 62 s."""
    assert SHORTEST_STAY == LASTING_SECONDS
    rules = tmp_path / RULES
    rules.write_text(render(Options(scraping=Scraping(60)))[RULES])
    test = RuleTest(rules, interval=60)
    for run, age in (("saves", 62.0), ("stalled", 71.0)):
        here = pausing(run)
        there = {name.replace("node-a", "node-b"): values for name, values in here.items()}
        for name, values in there.items():
            if name.startswith("stepscope_run_last_step_age_seconds"):
                there[name] = [age if number == 30 else value for number, value in enumerate(values)]
        test.add(here | there)
    test.firing("TrainingStalled", 30 * 60, 0, run="saves")
    test.firing("TrainingStalled", 30 * 60, 1, run="stalled", instance="node-b", place="other")
    test.run(tmp_path)


def test_code_of_the_script_is_information_the_first_time_and_a_warning_if_it_lasts(test: RuleTest) -> None:
    """Text generation or an evaluation, of two minutes first, then of four and of nine."""
    test.add(pausing("generates", ("host", 10, 12), ("host", 50, 54), ("host", 90, 99)))
    test.add(pausing("hangs", ("host", 10, 25)))
    for run, at, severity in (
        ("generates", 11.25, "info"),
        ("generates", 54, None),
        ("generates", 98, None),  # eight minutes, twice as long as the one before
        ("generates", 98.25, "info"),
        ("hangs", 20, "info"),
        ("hangs", 20.25, "warning"),
    ):
        for place, one in (("script", "info"), ("long script", "warning"), ("other", "critical")):
            fires = int(one == severity)
            test.firing("TrainingStalled", 60 * at, fires, run=run, place=place, severity=one)


def test_a_job_that_waits_an_hour_for_its_next_work_is_told_of_once(test: RuleTest) -> None:
    """It works for half an hour in between; then it waits without an end."""
    test.add(pausing("queue", *(("host", begin, begin + 60) for begin in (30, 120, 210)), minutes=300))
    test.add(pausing("lost", ("host", 30, 90), ("host", 120, 300), minutes=300))
    wasted = {"run": "queue", "idle": "wasted"}
    told = {"run": "queue", "place": "long script", "severity": "warning"}
    for minute in range(34, 300, 2):
        first = minute <= 90
        test.firing("TrainingStalled", 60 * minute, int(first and minute > 40), **told)
        test.firing("IdleGPU", 60 * minute, int(first and minute > 45), **wasted)
    for rule, labels in (("TrainingStalled", told), ("IdleGPU", wasted)):
        test.firing(rule, 60 * 238, 0, **{**labels, "run": "lost"})
        test.firing(rule, 60 * 242, 1, **{**labels, "run": "lost"})


def test_a_notebook_whose_user_is_away_wastes_its_gpu_after_two_hours_and_is_no_stall(test: RuleTest) -> None:
    labels = 'job="stepscope",instance="node-a",run="notebook",rank="0",state="at a prompt"'
    test.add(pausing("notebook", ("host", 10, 150), minutes=160))
    test.add({f"stepscope_rank_process_state{{{labels}}}": [1.0] * 641})
    for minute in (24, 28, 128, 132, 148):
        test.firing("TrainingStalled", 60 * minute, 0)
        test.firing("IdleGPU", 60 * minute, int(minute > 26))
        test.firing("IdleGPU", 60 * minute, int(minute > 130), idle="wasted", severity="warning")


def test_a_run_whose_ranks_are_all_stopped_is_no_emergency(test: RuleTest) -> None:
    """Slurm suspends a job, or a user presses Ctrl-Z: for fifteen minutes."""
    for run, world_size in (("suspended", 1), ("one-of-two", 2)):
        labels = f'job="stepscope",instance="node-a",run="{run}"'
        states = [1.0 if 40 < scrape <= 100 else None for scrape in range(401)]
        test.add(pausing(run, ("backward", 10, 25)))
        test.add({f"stepscope_run_world_size{{{labels}}}": [float(world_size)] * 401})
        test.add({f'stepscope_rank_process_state{{{labels},rank="0",state="stopped"}}': states})
        for minute in (9, 11, 19, 20, 21, 25, 26):
            stalled = 11 <= minute <= 25
            severity = "critical" if world_size == 2 else "info" if minute < 20 else "warning"
            test.firing("TrainingStalled", 60 * minute, int(stalled), run=run)
            test.firing("TrainingStalled", 60 * minute, int(stalled), run=run, severity=severity)


def test_a_rank_that_waits_for_the_checkpoint_of_another_node_has_not_stalled(test: RuleTest) -> None:
    here, there = pausing("run", ("checkpoint", 10, 15)), pausing("run", ("communication", 10, 15))
    test.add(here | {name.replace("node-a", "node-b"): values for name, values in there.items()})
    test.status("TrainingStalled", 60 * 14, 0)
    test.status("TrainingStalled", 60 * 14, 0, instance="node-b")
