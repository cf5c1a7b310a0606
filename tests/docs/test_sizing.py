"""The page on large clusters: what it renders and sends is what rules that compare nodes need."""

import re
from pathlib import Path

import pytest
import yaml
from stepscope.demo.scenarios import all_scenarios
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.groups import FINDING, STATUS
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scraped_nodes import of_target, played, read_by, scraped
from tests.support.scrapes import Series
from tests.support.smallest import smallest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "sizing.md").read_text()
MINUTE = 60
RENDERED = [
    words.split() for words in re.findall(r"^stepscope rules render .*--only (.*)$", PAGE, re.MULTILINE)
]
METRIC = re.compile(r"(?<![\w:])stepscope_\w+(?![\w:])")


@pytest.fixture(scope="module")
def expressions() -> dict[str, str]:
    """The expressions and queries in annotations of each rule."""
    return {
        rule.name: "\n".join(
            text
            for group in yaml.load(render(Options(only=(rule.name,)))[RULES], yaml.CSafeLoader)["groups"]
            for each in group["rules"]
            for text in (each["expr"], *each.get("annotations", {}).values())
        )
        for rule in alerting_rules(Options())
    }


def test_exactly_the_rules_that_compare_nodes_are_on_top(expressions: dict[str, str]) -> None:
    parts, top = RENDERED
    joined = {
        rule: [labels for labels in re.findall(r"(?:by|on) \(([^)]*)\)", text) if "instance" not in labels]
        for rule, text in expressions.items()
    }
    assert {rule for rule, labels in joined.items() if "cluster, run" in labels} == set(top)
    assert sorted(parts + top) == sorted(expressions)


def test_the_top_gets_every_series_that_its_rules_read(expressions: dict[str, str]) -> None:
    sent = re.compile(re.findall(r'regex: "(up\|.*)"', PAGE)[0])
    read = {name for rule in RENDERED[1] for name in METRIC.findall(expressions[rule])}
    assert {name for name in read if not sent.fullmatch(name)} == set()


def test_a_run_of_one_gpu_has_as_many_series_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_scenarios()["healthy"], "ranks", 1)
    written = re.findall(r"(?m)^\| `(\w+)`.*? \| (\d+) \|", PAGE.partition("many short runs cost?")[2])
    found = []
    for profile in ("default", "lean"):
        series = scraped("healthy", 2 * MINUTE, profile)
        of_run = {name: values for name, values in series.items() if 'run="' in name}
        of_one_gpu = {name: values for name, values in of_run.items() if not re.search('gpu="[^0]', name)}
        found += [(profile, f"{len(each)}") for each in (of_one_gpu, with_fewer_buckets(of_one_gpu))]
    assert written == found[:3]


def with_fewer_buckets(series: Series) -> Series:
    """Returns the series that Prometheus stores with the page's metric_relabel_configs."""
    (block,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", PAGE.partition("many short runs cost?")[2])[:1]
    (job,) = yaml.safe_load(block)["scrape_configs"]
    kept = dict(series)
    for rule in job["metric_relabel_configs"]:
        assert rule["action"] == "drop"
        for name in series:
            labels = {"__name__": name.partition("{")[0], **dict(re.findall(r'(\w+)="([^"]*)"', name))}
            if re.fullmatch(
                rule["regex"], ";".join(labels.get(label, "") for label in rule["source_labels"])
            ):
                kept.pop(name, None)
    return kept


@needs_prometheus
@pytest.mark.parametrize("scenario", smallest(["cpu-bottleneck", "imbalance", "small-batch"], {0}))
def test_rules_decide_the_same_with_fewer_buckets(scenario: str, tmp_path: Path) -> None:
    rules = REPOSITORY / "rules" / RULES
    length = 14 * MINUTE
    series = read_by(rules, played(scenario))
    test = RuleTest(rules)
    test.add(of_target(series, "all"))
    test.add(of_target(with_fewer_buckets(series), "fewer"))
    for time in range(10 * MINUTE, length, 2 * MINUTE):
        every, fewer = (f'{STATUS}{{instance="{instance}"}}' for instance in ("all", "fewer"))
        test.gives_nothing(f"{fewer} != ignoring (instance) {every}", time)
        test.gives_nothing(f"{fewer} unless ignoring (instance) {every}", time)
        test.gives_nothing(f"{every} unless ignoring (instance) {fewer}", time)
    found = f'count(count by (rule) (last_over_time({FINDING}{{instance="fewer"}}[45m]))) > 0'
    test.equals(f"{found} > bool 0", length - 15, 1)
    test.run(tmp_path)
