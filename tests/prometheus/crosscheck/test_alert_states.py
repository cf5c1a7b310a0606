"""What Prometheus makes of a condition with `for` and `keep_firing_for`, second by second."""

from stepscope.prometheus.crosscheck.compare import same
from stepscope.prometheus.crosscheck.expected import alert_states

GPU = frozenset({("gpu", "0")})


def states(condition: str, pending: float = 0, keep_firing: float = 0) -> str:
    """A letter a second: p(ending), f(iring) or -; `condition` has an x where it holds."""
    times = [1000 * second for second in range(len(condition))]
    holds = [frozenset({GPU} if letter == "x" else ()) for letter in condition]
    found = alert_states(times, holds, pending, keep_firing)
    return "".join(state.get(GPU, "-")[0] for state in found)


def test_an_alert_fires_while_its_condition_holds() -> None:
    assert states("-xx-x") == "-ff-f"


def test_with_for_it_is_pending_first_and_begins_anew_after_a_gap() -> None:
    assert states("xx-xxxx", pending=2) == "pp-ppff"


def test_with_keep_firing_it_fires_on_for_so_long() -> None:
    assert states("x-----", keep_firing=3) == "ffff--"


def test_a_condition_that_comes_back_lets_the_keeping_begin_anew() -> None:
    assert states("x--x----", keep_firing=3) == "fffffff-"


def test_what_never_fired_is_not_kept() -> None:
    assert states("x---", pending=2, keep_firing=3) == "p---"


def test_values_are_the_same_to_a_billionth() -> None:
    assert same(0.5, 0.5 + 9e-10)
    assert not same(0.5, 0.5 + 2e-9)
    assert same(1200.0, 1200.0000005)
    assert not same(1200.0, 1200.00001)


def test_no_value_and_no_number_are_the_same_as_themselves_only() -> None:
    assert same(None, None)
    assert same(float("nan"), float("nan"))
    assert not same(None, float("nan"))
    assert not same(0.0, None)
    assert not same(float("nan"), 0.0)
