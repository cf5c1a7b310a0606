"""thermal: GPUs are too hot to run at full speed."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario


@scenario
class Thermal(Scenario):
    """Cooling is insufficient: heat throttles all GPUs for 60 % of the time.

    At 88 degrees the driver limits the clocks to 1.2 instead of 1.98 GHz (ThermalThrottling). Steps take 1.3
    times as long as on a healthy node, but utilisation stays near 100 %. All GPUs are equally hot, so no rank
    waits for another.
    """

    name = "thermal"
    fires = frozenset({"ThermalThrottling"})
    celsius = 88.0

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.36 * 1.3, random)

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        return 0.6
