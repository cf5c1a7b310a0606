"""Processes that do not use Stepscope may be notebooks or servers: nobody says that they train."""

from pathlib import Path

import yaml
from stepscope.rules import all_rules

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

UNNAMED, NAMED = "unnamed-20261120T132700", ("resnet-1", "unnamed-experiment-1a2b3c4d")
SCRAPES, END = 80, 1185.0


def test_an_idle_gpu_of_theirs_is_no_fault_of_a_training_and_has_no_status(test: RuleTest) -> None:
    for run in (UNNAMED, *NAMED):
        labels = f'job="stepscope",instance="{run}",run="{run}"'
        count = [30.0 * number for number in range(SCRAPES)]
        test.add({f"stepscope_samples_total{{{labels}}}": count})
        test.add({f'stepscope_gpu_utilization_samples_count{{{labels},gpu="0"}}': count})
        for bound in ("0.1", "0.7"):
            test.add({f'stepscope_gpu_utilization_samples_bucket{{{labels},gpu="0",le="{bound}"}}': count})
    test.firing("LowGPUUtilization", END, len(NAMED))
    for run in NAMED:
        test.firing("LowGPUUtilization", END, 1, run=run)
    test.status("LowGPUUtilization", END, len(NAMED))
    test.gives_nothing(f'stepscope:rule_status{{rule="LowGPUUtilization",run="{UNNAMED}"}}', END)


def test_only_rules_about_the_hardware_and_idle_gpus_judge_them(rules: Path) -> None:
    groups = yaml.load(rules.read_text(), yaml.CSafeLoader)["groups"]
    judging = {
        group["name"].removeprefix("stepscope-")
        for group in groups
        if not any("unnamed-" in rule["expr"] for rule in group["rules"])
    }
    assert judging == {name for name, rule in all_rules().items() if rule.any_process}
    assert {"IdleGPU", "ThermalThrottling", "GPUError"} <= judging
    assert not {"LowGPUUtilization", "DataStarved", "GPUMemoryNearlyFull"} & judging
