"""Flame graphs: how wide each function is, whose threads are drawn, and what a click shows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis
from stepscope.report.charts import flame_data, flame_graphs
from stepscope.runs.model import LineTime, StackTime, ThreadTime

from tests.support.analysis import nothing_found, rule
from tests.support.browser import console_errors, open_page

LOAD = StackTime("train", "data_wait", ("train.py:30", "load, data.py:14", "json.loads"), 60.0)
FORWARD = StackTime("train", "forward", ("train.py:31",), 30.0)
ALONE = StackTime("train", "data_wait", ("train.py:30",), 9.95)
RARE = StackTime("eval", "", ("train.py:40",), 0.05)
LINE = LineTime(
    "train", "data_wait", "data.py:14", "load", "json.loads", "train.py:30", "", {"running": 70.0}
)
STACKS = (LOAD, FORWARD, ALONE, RARE)


def of(rank: int, *stacks: StackTime, role: str = "training", ran: float = 50.0) -> ThreadTime:
    return ThreadTime("n1", rank, role, 1, 100.0, ran, 0.0, 0.01, (LINE,), stacks=stacks)


def run_of(*threads: ThreadTime) -> Analysis:
    return replace(nothing_found(), threads=list(threads))


def test_a_function_is_as_wide_as_its_time_and_below_its_caller() -> None:
    (graph,) = flame_graphs(run_of(of(0, *STACKS)))
    assert graph.name == "rank 0"
    assert sorted(
        flame[:4] for flame in graph.flames
    ) == [  # the evaluation loop would be too narrow to be seen
        (0, 0.0, 100.0, "rank 0"),
        (1, 0.0, 69.95, "data"),
        (1, 69.95, 30.0, "forward"),
        (2, 0.0, 69.95, "train.py:30"),
        (2, 69.95, 30.0, "train.py:31"),
        (3, 0.0, 60.0, "load, data.py:14"),
        (4, 0.0, 60.0, "json.loads"),
    ]
    callers = {flame.name: graph.flames[flame.caller].name for flame in graph.flames[1:]}
    assert callers["json.loads"] == "load, data.py:14"
    assert callers["forward"] == "rank 0"


def test_the_slow_rank_is_drawn_beside_the_one_in_the_middle_and_the_workers() -> None:
    ranks = [of(rank, LOAD, ran=10.0 * rank) for rank in range(5)]
    run = run_of(*ranks, of(0, FORWARD, role="loader worker"), of(1, role="child"))
    assert [graph.name for graph in flame_graphs(run)] == ["rank 2", "loader workers of rank 0"]
    accused = rule("Straggler", Status.FOUND, details={"rank": 4})
    names = [graph.name for graph in flame_graphs(replace(run, rules=[accused]))]
    assert names == ["rank 4", "rank 2", "loader workers of rank 0"]


def test_the_chart_has_each_name_once() -> None:
    (graph,) = flame_graphs(run_of(of(0, LOAD, StackTime("eval", "data_wait", LOAD.functions, 1.0))))
    data = flame_data(graph)
    assert len(data["names"]) == len(set(data["names"]))
    assert [data["names"][number] for _, _, _, number, _ in data["flames"]] == [
        flame.name for flame in graph.flames
    ]


def test_a_click_shows_one_function_over_the_whole_width_and_another_one_all(
    browser: webdriver.Chrome, page_of: Callable[[Analysis], Path]
) -> None:
    shown = """
      const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="flames-0"]'));
      const [axis] = chart.getOption().xAxis;
      return [axis.min, axis.max];
    """
    open_page(browser, page_of(run_of(of(0, *STACKS))))
    browser.execute_script("document.getElementById('code-folded').open = true")
    chart = browser.find_element("css selector", "[data-chart='flames-0']")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center'}); stepscope.draw(arguments[0])", chart
    )
    assert browser.execute_script(shown) == [0, 100]
    size = chart.size
    second_row = ActionChains(browser).move_to_element_with_offset(
        chart, round(0.4 * size["width"]), 34 - size["height"] // 2
    )
    second_row.click().perform()
    assert browser.execute_script(shown) == [pytest.approx(69.95), pytest.approx(99.95)]
    browser.execute_script(
        "stepscope.data = JSON.parse(JSON.stringify(stepscope.data))"
    )  # as the live page does
    browser.execute_script("stepscope.draw(arguments[0])", chart)
    assert browser.execute_script(shown) == [pytest.approx(69.95), pytest.approx(99.95)]
    ActionChains(browser).move_to_element_with_offset(chart, 0, 34 - size["height"] // 2).click().perform()
    assert browser.execute_script(shown) == [0, 100]
    assert console_errors(browser) == []
