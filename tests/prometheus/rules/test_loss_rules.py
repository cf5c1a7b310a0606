"""LossNotFinite and GradientsExploding in promtool. Its series have no NaN: those of the cross-check have."""

from math import inf

import numpy as np
import pytest

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

SCRAPES = np.arange(81)  # every 15 s


NAMES = {
    "LossNotFinite": ("loss", "Train/Loss", "train_loss"),
    "GradientsExploding": ("grad_norm", "Train/Grad_Norm", "grad_2.0_norm_total"),
}


@pytest.mark.parametrize("rule", NAMES)
def test_only_a_gauge_that_stays_infinite_for_ten_minutes_alerts(test: RuleTest, rule: str) -> None:
    plain, of_group, other = NAMES[rule]
    early, for_a_while = SCRAPES < 12, (SCRAPES > 8) & (SCRAPES < 40)
    cases = {
        "negative-infinity": (plain, np.where(early, 2.0, -inf), 1),
        "infinite": (of_group, np.where(early, 2.0, inf), 1),
        "from-the-beginning": (other, np.full(81, inf), 1),
        "finite": (plain, 2.0 - 0.01 * SCRAPES, 0),
        "negative": (plain, -0.1 * SCRAPES, 0),
        "recovers": (plain, np.where(for_a_while, inf, 2.0), 0),
        "validation": ("val_loss", np.full(81, inf), 0),
    }
    for run, (name, values, fires) in cases.items():
        labels = f'{{job="stepscope",instance="node",run="{run}"'
        test.add(
            {
                f'stepscope_run_gauge{labels},rank="0",name="{name}"}}': values.tolist(),
                f"stepscope_run_age_seconds{labels}}}": (15.0 * SCRAPES).tolist(),
            }
        )
        test.firing(rule, 600, int(run == "from-the-beginning"), instance="node", run=run)
        test.firing(rule, 900, fires, instance="node", run=run)
        if name != "val_loss":
            test.status(rule, 900, fires, run=run)
    # Until it has lasted, it is neither found nor healthy.
    for run in ("infinite", "recovers"):
        test.gives_nothing(f'stepscope:rule_status{{rule="{rule}",run="{run}"}}', 500)
    test.status(rule, 100, 0, run="infinite")
