"""slow-start: the first step comes late."""

from __future__ import annotations

from stepscope.demo.scenario import Scenario, scenario


@scenario
class SlowStart(Scenario):
    """The data set is fetched and unpacked before the first step, while the processes already hold the GPUs.

    The model is on the GPUs from the start: their memory is in use. But the first step ends only after 23
    minutes (MaxInitializationTime, whose threshold is 20). GPUs are idle until then (LowGPUUtilization,
    IdleGPU), and busy afterwards.
    """

    name = "slow-start"
    fires = frozenset({"IdleGPU", "LowGPUUtilization", "MaxInitializationTime"})
    minutes = 27
    setup_seconds = 23 * 60.0
