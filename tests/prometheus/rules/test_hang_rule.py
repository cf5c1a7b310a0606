"""CollectiveHang in promtool: who is missing, on which node, and what else ends a wait."""

import pytest

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import SCRAPE_SECONDS, Series

pytestmark = needs_prometheus

SCRAPES = 40  # ten minutes
BEGAN = 60.0  # the hang


def hung(
    ranks: dict[int, tuple[str, str]],
    run: str = "run",
    instance: str = "node-a",
    since_step: float = BEGAN,
    began: float = BEGAN,
    world_size: int = 4,
) -> Series:
    """The series of a node whose ranks are in such components, with these states, from `began` on."""
    times = [SCRAPE_SECONDS * number for number in range(SCRAPES)]

    def series(name: str, values: list[float | None], **labels: str) -> Series:
        target = {"job": "stepscope", "instance": instance, "run": run, **labels}
        written = ",".join(f'{label}="{value}"' for label, value in target.items())
        return {f"stepscope_{name}{{{written}}}": values}

    def aged(moment: float) -> list[float | None]:
        return [time - moment if time - moment >= 10 else None for time in times]

    found = {
        **series("run_start_time_seconds", [0.0] * SCRAPES),
        **series("run_age_seconds", [*map(float, times)]),
        **series("run_last_step_age_seconds", [max(0.0, time - since_step) for time in times]),
        **series("run_world_size", [float(world_size)] * SCRAPES),
    }
    for rank, (component, state) in ranks.items():
        found |= series("rank_process_state", [1.0] * SCRAPES, rank=str(rank), state=state)
        if component:
            labels = {"rank": str(rank), "component": component, "operation": ""}
            found |= series("rank_component_age_seconds", aged(began), **labels)
    return found


WAITS = ("communication", "waiting")


def test_a_missing_rank_fires_on_its_node_once_five_minutes_have_passed(test: RuleTest) -> None:
    test.add(hung({0: WAITS, 1: WAITS}, instance="node-a"))
    test.add(hung({2: WAITS, 3: ("data_wait", "running")}, instance="node-b"))
    test.equals('run_instance:stepscope_collective_hang:seconds{instance="node-a"}', BEGAN + 300, 300)
    test.status("CollectiveHang", BEGAN + 240, 0)
    test.status("CollectiveHang", BEGAN + 300, 0)  # exactly at the threshold
    test.status("CollectiveHang", BEGAN + 360, 1)
    test.firing("CollectiveHang", BEGAN + 360, 1, instance="node-b", stage="missing", severity="critical")
    test.firing("CollectiveHang", BEGAN + 360, 1)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("data_wait", "running"), " In data_wait for 6m 0s: rank 3 on node-a."),
        (
            ("communication", "stopped"),
            " In communication for 6m 0s: rank 3 on node-a. Process stopped: rank 3 on node-a.",
        ),
        (("", "dead"), " Process dead: rank 3 on node-a."),
        (("", "ended"), " Process ended: rank 3 on node-a."),
        (("", "running"), ""),
    ],
)
def test_the_description_says_what_the_missing_rank_does(
    test: RuleTest, missing: tuple[str, str], said: str
) -> None:
    test.add(hung({0: WAITS, 1: WAITS, 2: WAITS, 3: missing}))
    target = {"job": "stepscope", "instance": "node-a", "run": "run", "stage": "missing"}
    begin = (
        "Ranks of run run have waited in a collective for 6m 0s, and no rank has finished a step "
        "(fires after 1.25 min and 20 times the usual time of a step, or after 5 min)."
    )
    test.describes("CollectiveHang", BEGAN + 360, target, f"{begin}{said} Ranks that wait: 3 of 4.")


def test_if_all_wait_every_node_says_so_and_nobody_is_missing(test: RuleTest) -> None:
    for node, ranks in (("node-a", (0, 1)), ("node-b", (2, 3))):
        test.add(hung(dict.fromkeys(ranks, WAITS), instance=node))
    test.firing("CollectiveHang", BEGAN + 360, 2, stage="unknown")
    test.firing("CollectiveHang", BEGAN + 360, 0, stage="missing")


def test_what_is_no_hang(test: RuleTest) -> None:
    cases = {
        "checkpoint": hung({0: WAITS, 1: ("checkpoint", "running")}, "checkpoint"),
        "compile": hung({0: WAITS, 1: ("compile", "running")}, "compile"),
        "other-ranks-step": hung({0: WAITS, 1: ("data_wait", "waiting")}, "other-ranks-step", since_step=300),
        "nobody-waits": hung({0: ("data_wait", "waiting"), 1: ("", "running")}, "nobody-waits"),
        "stopped-alone": hung({0: ("communication", "stopped"), 1: ("", "running")}, "stopped-alone"),
    }
    for run, series in cases.items():
        test.add(series)
        test.status("CollectiveHang", BEGAN + 420, 0, run=run)
        test.firing("CollectiveHang", BEGAN + 420, 0, run=run)


def test_a_rank_that_steps_on_another_node_ends_the_hang(test: RuleTest) -> None:
    test.add(hung({0: WAITS}, instance="node-a"))
    test.add(hung({1: ("", "running")}, instance="node-b", since_step=500))
    test.firing("CollectiveHang", BEGAN + 420, 0)
