"""healthy: nothing to find."""

from __future__ import annotations

from trainwatch.demo.scenario import Scenario, scenario


@scenario
class Healthy(Scenario):
    """A node as it should be: every GPU computes nearly all the time.

    Eight ranks with a GPU each make a step of about 0.36 s; 32 loader workers for 32 cores keep ahead of
    them, so that a step waits 2 ms for its data, and an exchange of gradients takes 4 % of it. GPUs are 96
    to 100 % busy and 77 % full: no rule has anything to say.
    """

    name = "healthy"
