"""`stepscope crosscheck` for tests: what it says, and a Prometheus that evaluates rules often."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.evaluation.settings import Settings
from stepscope.prometheus.rules.files import RULES
from stepscope.rules.parts.promql import Scraping

from tests.support.commands import stepscope
from tests.support.prometheus import Prometheus, serving

COMMITTED = Path(__file__).parents[2] / "rules" / RULES

CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: stepscope
    static_configs:
      - targets: ["{target}"]
    relabel_configs:
      - source_labels: [__address__]
        regex: "(.*):\\\\d+"
        target_label: instance
"""

COLUMNS = ("evaluations", "firing", "values", "by last scrape", "disagreements")


@contextmanager
def evaluating(target: str, rules: str, folder: Path, interval: str = "1s") -> Iterator[Prometheus]:
    """A Prometheus that scrapes the target every second, and evaluates each of these rules that often."""
    folder.mkdir()
    (folder / RULES).write_text(re.sub(r"(?m)^    interval: .*", f"    interval: {interval}", rules))
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target, rules=folder / RULES))
    with serving(folder / "prometheus.yml", folder / "data") as server:
        yield server


def crosscheck(*words: object) -> subprocess.CompletedProcess[str]:
    return stepscope("crosscheck", *words)


def table(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, int]]:
    """The numbers of the first table by rule and column; of one run."""
    rows = re.findall(r"(?m)^([A-Z]\w+) +simulated-\S+ +([\d, ]+)$", answer.stdout)
    return {
        rule: dict(zip(COLUMNS, (int(number.replace(",", "")) for number in numbers.split()), strict=True))
        for rule, numbers in rows
    }


# The rules that alert: every one of them is checked.
ALERTING = {one.name for one in Settings().rules() if one.prometheus_rules(Scraping()) is not None}
