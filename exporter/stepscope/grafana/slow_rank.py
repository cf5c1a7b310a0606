"""The slowest rank of a run, and the component in which it is slow: hidden variables for queries."""

from stepscope.grafana.queries import OF_RUN, last
from stepscope.grafana.variables import Variable, hidden, named
from stepscope.measurements.own_times import HOST
from stepscope.rules import straggler


def slowest_rank() -> Variable:
    own = last(f"{straggler.OWN}{{{OF_RUN}}}")
    return hidden(named("slowest", "Slowest rank", f"topk(1, max by (rank) ({own}))", "rank"))


def slow_component() -> Variable:
    """Returns the component that the slowest rank spends more time on than the others."""
    return hidden(named("part", "Slow component", f"topk(1, {slower_by('$__range')})", "component"))


def slower_by(over: str) -> str:
    """Returns the excess of the slowest rank over the others' median, in seconds per second, by component."""

    def spent(matcher: str) -> str:
        seconds = f'stepscope_step_component_seconds_total{{{OF_RUN}, rank{matcher}"$slowest"'
        parts = f'rate({seconds}, component!="communication"}}[{over}])'
        return f"{parts} or 1 - sum by (rank) (rate({seconds}}}[{over}]))"

    slower = f"max by (component) ({spent('=')}) - quantile by (component) (0.5, {spent('!=')})"
    return f'label_replace({slower}, "component", "{HOST}", "component", "")'
