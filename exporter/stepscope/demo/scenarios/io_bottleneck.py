"""io-bottleneck: storage is too slow for the loader's workers."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario


@scenario
class IoBottleneck(Scenario):
    """Workers wait for slow storage, and GPUs wait for them.

    As in cpu-bottleneck, a batch arrives every 2.4 s, but here workers spend 90 % of that on reads from a
    network file system. Cores are hardly busy and wait for I/O 55 to 80 % of the time. GPUs are idle in most
    samples (IOBottleneck, DataStarved, LowGPUUtilization).
    """

    name = "io-bottleneck"
    fires = frozenset({"IOBottleneck", "DataStarved", "LowGPUUtilization"})
    cpu = (0.04, 0.12)
    io_wait = (0.55, 0.8)
    disk_bytes = 240e6
    fetch_seconds = 9.6
    fetch_cpu_share = 0.08

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.25, random, data_wait=2.15, width=0.05)
