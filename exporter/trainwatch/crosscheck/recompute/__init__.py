"""The value and state of each rule, computed anew from raw series and the rule's parameters.

Nothing of the rules' PromQL is used here: each function says in plain Python what its rule means, so that a
wrong expression and a wrong threshold both show. Where a rule reads what another one of its group has
recorded, so does the function: each recorded value is checked by itself. The expected states are in the order
of the rule's alerts.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainwatch.crosscheck.recompute import runs
from trainwatch.crosscheck.recompute.expected import Recompute

CHECKED: Mapping[str, Recompute] = {
    "Dataloader": runs.dataloader,
    "MaxInitializationTime": runs.max_initialization_time,
}
