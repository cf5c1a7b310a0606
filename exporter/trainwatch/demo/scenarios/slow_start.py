"""slow-start: the first step comes late."""

from __future__ import annotations

from trainwatch.demo.scenario import Scenario, scenario


@scenario
class SlowStart(Scenario):
    """The data set is fetched and unpacked before the first step, while the GPUs are already taken.

    The model is on the GPUs at once (their memory is in use), but the first step comes only after 23
    minutes (MaxInitializationTime: 20 are too many). GPUs do nothing meanwhile (LowGPUUtilization); then
    all is well.
    """

    name = "slow-start"
    fires = frozenset({"LowGPUUtilization", "MaxInitializationTime"})
    minutes = 27
    setup_seconds = 23 * 60.0
