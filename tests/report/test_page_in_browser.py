"""The page as a reader has it: in a real browser, wide and narrow, light and dark, by keyboard, live."""

import base64
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from stepscope.common.status import Status
from stepscope.demo.scenarios import all_scenarios
from stepscope.evaluation.analysis import Analysis
from stepscope.report.html import SECTIONS, render_html
from stepscope.runs.model import LineTime, ProfileWindow, ThreadTime

from tests.support import analysis as made
from tests.support.browser import (
    COLOURS_OF,
    DRAW_ALL,
    OVERFLOW,
    console_errors,
    in_dark_mode,
    open_page,
    reached_by_keyboard,
    without_javascript,
)
from tests.support.scenarios import WrittenScenarios
from tests.support.smallest import smallest
from tests.support.waiting import wait_until

PageOf = Callable[[Analysis], Path]

UNFOLD_AND_DRAW_ALL = f"document.querySelectorAll('details').forEach((one) => one.open = true); {DRAW_ALL}"
# Elements that stick out of the page, other than in a box that scrolls by itself.
WIDER_THAN_THE_PAGE = """
  const boxed = (one) => one.closest(".scroll, .hidden, svg");
  const seen = [...document.querySelectorAll("main *")].filter((one) => one.checkVisibility() && !boxed(one));
  const wide = seen.filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
  return wide.map((one) => one.outerHTML.slice(0, 99));
"""
# Tables that the keyboard does not reach, and charts that say nothing to a screen reader.
UNREACHABLE = """
  const mute = (chart) => chart.role !== "img" || chart.ariaLabel.length < 20;
  const tables = [...document.querySelectorAll("table")].filter((one) => !one.closest("[tabindex='0']"));
  const charts = [...document.querySelectorAll("[data-chart]")].filter(mute);
  return [...tables, ...charts].map((one) => one.outerHTML.slice(0, 99));
"""
NOT_DRAWN = """
  const charts = [...document.querySelectorAll("[data-chart]")].filter((one) => !one.querySelector("canvas"));
  return charts.map((one) => one.dataset.chart);
"""


@pytest.fixture
def report(browser: webdriver.Chrome, page_of: PageOf) -> webdriver.Chrome:
    """The browser, with the page of a run whose loader is slow."""
    open_page(browser, page_of(made.slow_loader()))
    return browser


def check_as_a_reader(browser: webdriver.Chrome, page: Path) -> None:
    """Nothing complains, all is drawn, nothing is wider than the page, the keyboard reaches each table."""
    open_page(browser, page, 1440)
    browser.execute_script(UNFOLD_AND_DRAW_ALL)
    assert browser.execute_script(NOT_DRAWN) == []
    assert browser.execute_script(OVERFLOW) == 0
    assert browser.execute_script(WIDER_THAN_THE_PAGE) == []
    assert browser.execute_script(UNREACHABLE) == []
    resize(browser, 360)
    assert browser.execute_script(OVERFLOW) == 0
    assert browser.execute_script(WIDER_THAN_THE_PAGE) == []
    assert browser.execute_script("return window.hacked") is None
    assert console_errors(browser) == []


@pytest.mark.parametrize("analysis", made.EVERY_ANALYSIS, ids=lambda make: make.__name__)
def test_a_page_of_any_run_reads_well(
    browser: webdriver.Chrome, page_of: PageOf, analysis: Callable[[], Analysis]
) -> None:
    check_as_a_reader(browser, page_of(analysis()))


@pytest.mark.parametrize("name", smallest(sorted(all_scenarios()), {0}))
def test_the_page_of_a_scenario_reads_well(
    browser: webdriver.Chrome, page_of: PageOf, name: str, scenarios: WrittenScenarios
) -> None:
    check_as_a_reader(browser, page_of(scenarios.written(name).recording))


def resize(browser: webdriver.Chrome, width: int) -> None:
    """Waits until the charts have followed."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    widest = """
      const charts = [...document.querySelectorAll("[data-chart] canvas")];
      return Math.max(0, ...charts.map((one) => one.clientWidth));
    """
    wait_until(lambda: browser.execute_script(widest) < width, "the charts to be redrawn")


@pytest.mark.parametrize("dark", [False, True])
def test_charts_are_drawn_with_many_colours(browser: webdriver.Chrome, page_of: PageOf, dark: bool) -> None:
    in_dark_mode(browser, dark)
    open_page(browser, page_of(made.slow_loader()))
    browser.execute_script(UNFOLD_AND_DRAW_ALL)
    assert browser.execute_script(COLOURS_OF, "heatmap-0") > 100
    assert browser.execute_script(COLOURS_OF, "steps-train") > 10
    assert browser.execute_script(COLOURS_OF, "steps-eval") > 10
    assert browser.execute_script(COLOURS_OF, "durations") > 10


def test_a_link_to_a_view_that_is_folded_away_unfolds_it(report: webdriver.Chrome) -> None:
    unfolded = "return document.getElementById('memory').open"
    assert not report.execute_script(unfolded)
    report.execute_script("location.hash = 'memory'")
    wait_until(lambda: report.execute_script(unfolded), "the view to unfold")
    wait_until(lambda: report.execute_script(COLOURS_OF, "memory-0") > 5, "its chart to be drawn")


def test_steps_are_numbered_on_the_heatmap_where_there_is_room(report: webdriver.Chrome) -> None:
    numbers = """
      const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="heatmap-0"]'));
      const drawn = chart.getZr().storage.getDisplayList();
      const texts = drawn.filter((one) => one.type === "tspan" && one.style.font.startsWith("10px"));
      return texts.map((one) => Number(one.style.text));
    """
    report.execute_script(DRAW_ALL)
    few = report.execute_script(numbers)
    assert 4 < len(few) < 30
    for _ in range(4):
        report.execute_script("document.querySelector('[data-zoom=in]').click()")
    near = report.execute_script(numbers)
    assert len(near) > 3
    assert max(near) - min(near) < (max(few) - min(few)) / 8


def test_a_chart_is_drawn_when_the_reader_comes_near_it(report: webdriver.Chrome) -> None:
    report.execute_script("document.getElementById('details-folded').open = true")
    assert report.execute_script(COLOURS_OF, "steps-eval") == 0
    report.execute_script("document.querySelector(`[data-chart='steps-eval']`).scrollIntoView()")
    wait_until(lambda: report.execute_script(COLOURS_OF, "steps-eval") > 10, "the chart of eval steps")


def test_a_pinned_core_is_bright_and_an_idle_one_dark(browser: webdriver.Chrome, page_of: PageOf) -> None:
    open_page(browser, page_of(made.slow_loader(heatmaps=[made.heatmap("node-a", 0, 2)], timelines=[])))
    browser.execute_script(DRAW_ALL)
    pinned, idle = browser.execute_script("""
      const canvas = document.querySelector('[data-chart="heatmap-0"] canvas');
      const pixel = (y) => [...canvas.getContext("2d").getImageData(canvas.width / 2, y, 1, 1).data];
      return [pixel(8 + 13), pixel(8 + 26 + 13)];
    """)
    assert sum(pinned[:2]) > 300  # Viridis ends in yellow
    assert sum(idle[:2]) < 150  # and begins in dark violet


def test_dark_mode_darkens_page_and_charts(report: webdriver.Chrome) -> None:
    def brightness() -> int:
        colour = report.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    def axis_text() -> Any:
        return report.execute_script("""
          const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="steps-train"]'));
          return chart.getOption().xAxis[0].axisLabel.color;
        """)

    report.execute_script(UNFOLD_AND_DRAW_ALL)
    light, light_text = brightness(), axis_text()
    in_dark_mode(report, True)
    wait_until(lambda: axis_text() != light_text, "the chart's text to follow the dark mode")
    assert brightness() < 150 < light


WIDER = "return arguments[0].scrollWidth > arguments[0].clientWidth"


def test_a_table_wider_than_a_phone_scrolls_in_its_box_and_shows_that_it_goes_on(
    browser: webdriver.Chrome, page_of: PageOf
) -> None:
    open_page(browser, page_of(made.slow_loader()), 400)
    browser.execute_script("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 400
    boxes = browser.find_elements("css selector", ".scroll")
    wide = [box for box in boxes if browser.execute_script(WIDER, box)]
    assert wide
    for box in wide:
        assert box.get_attribute("tabindex") == "0"
        assert box.value_of_css_property("background-attachment") == "local, local, scroll, scroll"


def test_the_keyboard_reaches_every_table_and_control(report: webdriver.Chrome) -> None:
    report.execute_script(UNFOLD_AND_DRAW_ALL)
    stops = ".scroll, .switches input, [data-zoom], summary, main a, nav a"
    assert reached_by_keyboard(report, stops) > 25


def test_a_wide_table_scrolls_with_the_arrow_keys(browser: webdriver.Chrome, page_of: PageOf) -> None:
    open_page(browser, page_of(made.slow_loader()), 360)
    browser.execute_script("document.getElementById('usage-folded').open = true")
    browser.execute_script("document.querySelector('#usage .scroll').focus()")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT * 3).perform()
    scrolled = "return document.querySelector('#usage .scroll').scrollLeft"
    wait_until(lambda: browser.execute_script(scrolled) > 0, "the table to scroll")


def test_buttons_zoom_the_heatmap(report: webdriver.Chrome) -> None:
    zoom = """
      const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="heatmap-0"]'));
      const { start, end } = chart.getOption().dataZoom[0];
      return [start, end];
    """
    report.execute_script(DRAW_ALL)
    press = "document.querySelector(`[data-zoom='${arguments[0]}']`).click()"
    report.execute_script(press, "in")
    assert report.execute_script(zoom) == [25, 75]
    report.execute_script(press, "right")
    assert report.execute_script(zoom) == [50, 100]
    report.execute_script(press, "all")
    assert report.execute_script(zoom) == [0, 100]


def test_ranks_are_switched_off_and_the_slowest_are_shown_first(
    browser: webdriver.Chrome, page_of: PageOf
) -> None:
    shown = """
      const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="steps-train"]'));
      const selected = chart.getOption().legend[0].selected;
      return Object.keys(selected).filter((name) => selected[name]).sort();
    """
    ranks = [made.steps(rank, count=50, typical=0.1 + rank / 100) for rank in range(12)]
    open_page(browser, page_of(made.slow_loader(steps=ranks)))
    browser.execute_script(UNFOLD_AND_DRAW_ALL)
    assert browser.execute_script(shown) == sorted(f"Rank {rank}" for rank in range(4, 12))
    browser.execute_script("document.querySelector('#details .switches input').click()")
    assert "Rank 11" not in browser.execute_script(shown)


def test_without_javascript_the_sentences_and_tables_are_there(
    browser: webdriver.Chrome, page_of: PageOf
) -> None:
    page = page_of(made.slow_loader())
    with without_javascript(browser):
        open_page(browser, page)
        for summary in browser.find_elements("css selector", "details.section > summary"):
            summary.click()
        text = browser.find_element("tag name", "main").text
    for words in ("GPUs sat idle", "What to do", "p95", "Waiting for data", "cpu_threshold"):
        assert words in text
    assert "This chart needs JavaScript" in text
    assert "Zoom" not in browser.find_element("css selector", ".legend").text


def test_the_page_prints_all_charts_light_and_at_the_width_of_paper(
    browser: webdriver.Chrome, page_of: PageOf
) -> None:
    in_dark_mode(browser, True)
    open_page(browser, page_of(made.slow_loader()))
    browser.execute_script("""
      window.printed = {};
      const seen = (one) => one.checkVisibility();
      const charts = () => [...document.querySelectorAll("[data-chart]")].filter(seen);
      addEventListener("beforeprint", () => charts().forEach((element) => {
        const background = getComputedStyle(document.body).backgroundColor;
        printed[element.dataset.chart] = [element.querySelector("canvas").clientWidth, background];
      }));
    """)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    printed = browser.execute_script("return window.printed")
    assert {"heatmap-0", "steps-eval", "steps-train"} < set(printed)
    for width, background in printed.values():
        assert width < 720
        assert background == "rgb(255, 255, 255)"
    assert "printing" not in browser.execute_script("return document.documentElement.className")


class LivePage:
    """Serves what `text` holds at the moment, as the exporter's /report and /report/content."""

    def __init__(self) -> None:
        self.text = ""
        self.asked = 0
        self.asked_for: list[str] = []
        self.parts_the_page = True
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked += 1
                page.asked_for.append(self.path)
                content_only = self.path == "/report/content"
                body = page.text.partition("<script>" if content_only else "\0")[0].encode()
                self.send_response(404 if content_only and not page.parts_the_page else 200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/report"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def live() -> Iterator[LivePage]:
    page = LivePage()
    yield page
    page.stop()


def going_on(**changes: Any) -> str:
    return render_html(made.slow_loader(finished=False, **changes), refresh_seconds=1)


def state_of(browser: webdriver.Chrome) -> str:
    return browser.find_element("id", "state").text


@pytest.mark.parametrize("anchoring", ["auto", "none"])  # Safari does not keep the place by itself
def test_the_live_page_takes_in_news_and_keeps_the_readers_place(
    browser: webdriver.Chrome, live: LivePage, anchoring: str
) -> None:
    top = "return Math.round(document.getElementById('loading').getBoundingClientRect().top)"
    live.text = going_on()
    open_page(browser, live.address)
    assert state_of(browser).startswith("live, updated ")
    browser.execute_script(DRAW_ALL)
    browser.execute_script(
        """
      document.querySelector("[data-zoom='in']").click();
      document.getElementById("heatmap-0-table").open = true;
      document.getElementById("details-folded").open = true;
      document.getElementById("loading").scrollIntoView();
      window.canvas = document.querySelector('[data-chart="heatmap-0"] canvas');
      window.same = 1;
      document.documentElement.style.overflowAnchor = arguments[0];
    """,
        anchoring,
    )
    before = browser.execute_script(top)
    more = [made.rule(f"Another{index}", Status.FOUND, finding=f"News {index}.") for index in range(6)]
    live.text = going_on(rules=[*more, *made.slow_loader().rules])
    main = browser.find_element("id", "verdict")
    wait_until(lambda: "News 5." in main.text, "the news to appear")
    assert abs(browser.execute_script(top) - before) <= 2
    assert browser.execute_script("return window.same") == 1  # the page was not loaded again
    assert browser.execute_script("return document.getElementById('heatmap-0-table').open")
    assert browser.execute_script("return canvas.isConnected")
    assert (
        browser.execute_script("""
      const chart = echarts.getInstanceByDom(document.querySelector('[data-chart="heatmap-0"]'));
      return chart.getOption().dataZoom[0].start;
    """)
        == 25
    )
    browser.execute_script("document.querySelector(\"[data-zoom='all']\").click()")
    assert console_errors(browser) == []


def test_the_live_page_gets_the_sections_that_come_later(browser: webdriver.Chrome, live: LivePage) -> None:
    live.text = going_on()
    open_page(browser, live.address)
    line = LineTime("train", "data_wait", "data.py:14", "load", "", "", "", {"running": 90.0})
    thread = ThreadTime("node-a", 0, "training", 1, 90.0, 90.0, 0.0, 0.0, (line,))
    window = ProfileWindow("node-a", 0, 1, 2, None, made.START, 0.0, "open", "", "")
    sections = (
        "return [...document.querySelectorAll('main > section, nav a')].map((one) => one.id || one.hash)"
    )
    shown = list(SECTIONS)
    assert browser.execute_script(sections) == [*(f"#{each}" for each in shown), *shown]
    live.text = going_on(threads=[thread], windows=[window])
    place = shown.index("time") + 1
    shown[place:place] = ["code", "profile"]
    wait_until(lambda: len(browser.execute_script(sections)) > 2 * len(SECTIONS), "the lines to appear")
    assert browser.execute_script(sections) == [*(f"#{each}" for each in shown), *shown]
    assert "data.py:14" in str(browser.find_element("id", "code").get_attribute("textContent"))
    assert console_errors(browser) == []


@pytest.mark.parametrize("parts_the_page", [True, False])
def test_the_live_page_asks_only_for_what_changes_where_the_server_parts_it(
    browser: webdriver.Chrome, live: LivePage, parts_the_page: bool
) -> None:
    live.parts_the_page = parts_the_page
    live.text = going_on()
    open_page(browser, live.address)
    live.text = going_on(run="renamed")
    wait_until(lambda: browser.title.startswith("renamed"), "the page to follow")
    asked_again = {path for path in live.asked_for[1:] if path.startswith("/report")}
    assert asked_again == ({"/report/content"} if parts_the_page else {"/report/content", "/report"})


def test_the_live_page_says_when_nobody_answers_and_recovers(
    browser: webdriver.Chrome, live: LivePage
) -> None:
    live.text = going_on()
    open_page(browser, live.address)
    good, live.text = live.text, "<p>something else</p>"
    wait_until(lambda: "no answer since" in state_of(browser), "the page to notice")
    live.text = good
    wait_until(lambda: state_of(browser).startswith("live, updated"), "the page to recover")


def test_the_live_page_ends_with_the_final_report_and_asks_no_more(
    browser: webdriver.Chrome, live: LivePage
) -> None:
    live.text = going_on()
    open_page(browser, live.address)
    live.text = render_html(made.slow_loader())
    wait_until(lambda: state_of(browser) == "finished", "the page to notice the end")
    asked = live.asked
    time.sleep(2.5)  # two refreshes' time
    assert live.asked == asked


def test_a_live_page_that_was_saved_as_a_file_asks_for_nothing(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    page = tmp_path / "saved.html"
    page.write_text(going_on(), encoding="utf-8")
    open_page(browser, page)
    assert state_of(browser).startswith("as of ")
    time.sleep(1.5)
    assert console_errors(browser) == []
