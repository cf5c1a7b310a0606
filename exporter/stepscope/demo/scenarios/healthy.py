"""healthy: nothing to find."""

from __future__ import annotations

from stepscope.demo.scenario import Scenario, scenario


@scenario
class Healthy(Scenario):
    """A healthy node: every GPU computes nearly all the time.

    Eight ranks with one GPU each take about 0.36 s per step. 32 loader workers on 32 cores keep ahead of
    them, so a step waits only 2 ms for data. The exchange of gradients takes 4 %. GPUs are 96 to 100 % busy,
    their memory is 77 % full, and no rule fires.
    """

    name = "healthy"
