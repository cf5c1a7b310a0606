"""LossNotFinite in promtool, whose series have no NaN: tests/prometheus/crosscheck has a loss that is NaN."""

from math import inf
from pathlib import Path

import numpy as np

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

SCRAPES = np.arange(81)  # every 15 s


def test_only_a_loss_that_stays_infinite_for_ten_minutes_alerts(rules: Path, tmp_path: Path) -> None:
    early, for_a_while = SCRAPES < 12, (SCRAPES > 8) & (SCRAPES < 40)
    cases = {
        "negative-infinity": ("loss", np.where(early, 2.0, -inf), 1),
        "infinite": ("Train/Loss", np.where(early, 2.0, inf), 1),
        "from-the-beginning": ("train_loss", np.full(81, inf), 1),
        "finite": ("loss", 2.0 - 0.01 * SCRAPES, 0),
        "negative": ("loss", -0.1 * SCRAPES, 0),
        "recovers": ("loss", np.where(for_a_while, inf, 2.0), 0),
        "validation": ("val_loss", np.full(81, inf), 0),
    }
    test = RuleTest(rules)
    for run, (name, values, fires) in cases.items():
        labels = f'{{job="stepscope",instance="node",run="{run}"'
        test.add(
            {
                f'stepscope_run_gauge{labels},rank="0",name="{name}"}}': values.tolist(),
                f"stepscope_run_age_seconds{labels}}}": (15.0 * SCRAPES).tolist(),
            }
        )
        test.firing("LossNotFinite", 600, int(run == "from-the-beginning"), instance="node", run=run)
        test.firing("LossNotFinite", 900, fires, instance="node", run=run)
        if name != "val_loss":
            test.status("LossNotFinite", 900, fires, run=run)
    # Until it has lasted, it is neither found nor healthy.
    for run in ("infinite", "recovers"):
        test.gives_nothing(f'stepscope:rule_status{{rule="LossNotFinite",run="{run}"}}', 500)
    test.status("LossNotFinite", 100, 0, run="infinite")
    test.run(tmp_path)
