"""`--metrics.profile`: what each profile publishes, derived from what rules, dashboards and reports read."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.commands.dashboards import dashboards
from stepscope.common.errors import UserError
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.profiles import FULL_ONLY, LEAN, PROFILES, Profile, ProfileFilter
from stepscope.prometheus.rules.files import EXISTING_CLUSTERS, RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.runs.prometheus import series, source
from stepscope.web.pages import WebMetrics

from tests.support.demo import Node, simulated

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "exporter.md"
NAME = re.compile(r"(?<![\w:])(?:stepscope|process)_\w+(?![\w:])")

# What nothing reads and the default profile has nevertheless, to find out why the exporter fails.
OWN = {
    "process_max_fds",
    "process_open_fds",
    "stepscope_collector_left_out_total",
    "stepscope_exporter_limit_reached_total",
    "stepscope_exporter_scrapes_total",  # `stepscope run` waits at its end until it grows
    "stepscope_ledgers_refused_total",
    "stepscope_web_config_last_reload_successful",
    "stepscope_web_refused_total",
}
USERS = {"stepscope_run_gauge"}  # numbers that users put into the ledger


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with 32 cores and 8 GPUs, which has trained for two minutes."""
    with simulated("healthy") as node:
        yield node.go(120)


@pytest.fixture(scope="module")
def families(node: Node) -> list[Family]:
    serving: Any = SimpleNamespace(
        refusals=SimpleNamespace(counts={}), config=SimpleNamespace(last_reload_successful=True)
    )
    request: Any = SimpleNamespace(headers={})
    return [*node.exporter.families(), *WebMetrics(serving).read(request)]


def rules(options: Options) -> dict[str, list[dict[str, Any]]]:
    """Each group's rules, without those for clusters without this exporter."""
    files = [text for name, text in render(options).items() if name != EXISTING_CLUSTERS]
    return {
        group["name"]: group["rules"]
        for text in files
        for group in yaml.load(text, yaml.CSafeLoader)["groups"]
    }


def read_by_rules(options: Options) -> set[str]:
    every = [rule for group in rules(options).values() for rule in group]
    texts = [rule["expr"] for rule in every] + [
        text for rule in every for text in rule.get("annotations", {}).values()
    ]
    return set(NAME.findall("\n".join(texts)))


def read_by_dashboards() -> set[str]:
    return set(NAME.findall("\n".join(queries(list(dashboards().values())))))


def queries(part: Any) -> Iterator[str]:
    """The queries of a dashboard's panels, variables and annotations."""
    if isinstance(part, list):
        for each in part:
            yield from queries(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from queries(value)


def series_of(family: Family) -> set[str]:
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    return {family.name + suffix for suffix in suffixes}


def scraped(node: Node, profile: Profile) -> list[str]:
    node.exporter._profile = ProfileFilter(profile)
    return [line for line in node.exporter.scrape("text").decode().splitlines() if line[0] != "#"]


def test_the_default_profile_is_exactly_what_rules_dashboards_and_reports_read(
    families: list[Family],
) -> None:
    read = read_by_rules(Options()) | read_by_dashboards()
    of_reports = re.compile("|".join((series.OF_RUN, series.OF_NODE, source.COUNTED, source.READ)))
    expected = {
        family.name
        for family in families
        if series_of(family) & read
        or any(map(of_reports.fullmatch, series_of(family)))
        or family.name in OWN | USERS
    }
    assert {family.name for family in families} - FULL_ONLY == expected
    assert {family.name for family in families} >= FULL_ONLY
    every = {name for family in families for name in series_of(family)}
    assert read <= every, "something reads a metric that the exporter does not have"


def test_the_lean_profile_is_what_its_rules_read_and_says_whose_run_it_is(families: list[Family]) -> None:
    read = read_by_rules(Options(profile="lean"))
    by_name = {family.name: family for family in families}
    assert LEAN.keys() <= by_name.keys()
    unread = {name for name in LEAN if not series_of(by_name[name]) & read}
    assert unread == {"stepscope_run_info", "stepscope_run_world_size"} - read
    assert LEAN.keys().isdisjoint(FULL_ONLY)


def test_with_the_lean_profile_only_whole_rules_are_rendered_that_find_their_series() -> None:
    lean, every = rules(Options(profile="lean")), rules(Options())
    names = {name.removeprefix("stepscope-") for name in yaml_groups(Options(profile="lean"), RULES)}
    assert len(names) > 10  # docs/rules.md lists them
    for name in names:
        assert lean[f"stepscope-{name}"] == every[f"stepscope-{name}"]
    recorded = {rule.get("record") for group in lean.values() for rule in group}
    everywhere = {rule.get("record") for group in every.values() for rule in group}
    read = {name for group in lean.values() for rule in group for name in everywhere if name in words(rule)}
    assert read <= recorded
    alerts = {rule["alert"] for rule in every["stepscope-meta"] if "alert" in rule}
    assert alerts - {rule.get("alert") for rule in lean["stepscope-meta"]} == {"StepscopeProfileDiffers"}


def yaml_groups(options: Options, file: str) -> list[str]:
    return [group["name"] for group in yaml.load(render(options)[file], yaml.CSafeLoader)["groups"]]


def words(rule: dict[str, Any]) -> set[str]:
    return set(re.findall(r"[\w:]+", rule["expr"]))


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("CPUBottleneck.cpu_threshold=80", 2),
        ("LowGPUUtilization.threshold_p5=12", 2),
        ("CPUBottleneck.threshold=40", 0),
        ("LoadBalancing.threshold=0.3", 0),
    ],
)
def test_a_bound_that_the_lean_profile_does_not_count_at_is_refused(
    word: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rules"
    assert main(["rules", "render", "--profile", "lean", "--set", word, "--out", str(out)]) == status
    if status:
        error = f"--set {word} is not available with --profile lean"
        assert error in capsys.readouterr().err
        assert not out.exists()
    else:
        assert main(["rules", "check", str(out)]) == 0


def test_a_rule_that_needs_more_cannot_be_the_only_one() -> None:
    with pytest.raises(UserError, match="--only LoadBalancing: needs metrics"):
        render(Options(profile="lean", only=("Straggler", "LoadBalancing")))


def test_the_docs_say_how_many_series_a_node_has_in_each_profile(node: Node) -> None:
    rows = re.findall(r"^\| `(lean|default|full)` \| ([\d,]+) \|", DOCS.read_text(), re.MULTILINE)
    said = {profile: int(count.replace(",", "")) for profile, count in rows}
    # Those of the server are not here: a series per reason of a refusal, the scrapes, and the last reload.
    assert said == {profile: len(scraped(node, profile)) for profile in PROFILES}


def test_every_series_of_a_smaller_profile_has_the_same_value_in_the_larger_one(node: Node) -> None:
    full, default, lean = (values(scraped(node, profile)) for profile in ("full", "default", "lean"))
    assert default.items() <= full.items()
    assert lean.items() <= default.items()


def values(lines: list[str]) -> dict[str, str]:
    """Values by series, without the exporter's own use of the machine and its build."""
    found = dict(line.rsplit(" ", 1) for line in lines)
    return {
        name: value for name, value in found.items() if not re.match("process_|stepscope_exporter_b", name)
    }


def test_a_lean_histogram_counts_every_sample_at_fewer_bounds(node: Node) -> None:
    lean = [line for line in scraped(node, "lean") if line.startswith("stepscope_gpu_utilization_samples")]
    of_one = [line for line in lean if 'gpu="0"' in line]
    assert [re.findall(r'_samples_(\w+)\{.*?(?:le="(.*?)")?\}', line)[0] for line in of_one] == [
        ("bucket", "0.1"),
        ("bucket", "0.7"),
        ("bucket", "1.0"),
        ("bucket", "+Inf"),
        ("sum", ""),
        ("count", ""),
    ]


def test_the_golden_lean_scrape(node: Node, golden: Callable[[Path, str], None]) -> None:
    text = "".join(f"{name} {value}\n" for name, value in values(scraped(node, "lean")).items())
    golden(GOLDEN / "scrape.lean.txt", masked(text))


def test_the_golden_list_of_what_only_the_full_scrape_has(
    node: Node, golden: Callable[[Path, str], None]
) -> None:
    more = values(scraped(node, "full")).items() - values(scraped(node, "default")).items()
    golden(
        GOLDEN / "scrape.full-only.txt", masked("".join(sorted(f"{key} {value}\n" for key, value in more)))
    )


def masked(text: str) -> str:
    return re.sub(r"(?m)(?<=^stepscope_run_info\{).*(?=\} 1$)", "...", text)
