"""The numbers that the hooks of frameworks publish. The frameworks themselves are in test_frameworks.py."""

from pathlib import Path

from stepscope.training.layout import SETTINGS

from tests.support.training_script import Finished, run_to_end

PREPARE = """
from stepscope.training.frameworks.published import after, publish
class Trainer:
    def log(self, values): return values.get("loss")
after(Trainer, "log", lambda result, trainer, values: publish(values))
"""


def run(script: str, ledgers: Path, **environment: str) -> Finished:
    return run_to_end(PREPARE + script, ledgers, environment)


def test_numbers_that_a_framework_logs_are_published_and_what_it_returns_stays(ledgers: Path) -> None:
    found = run(
        """
stepscope.start()
assert Trainer().log({"loss": 2, "rate": 0.5, "name": "linear", "tensor": object(), "a" * 99: 1}) == 2
assert Trainer.log.__name__ == "log"
""",
        ledgers,
    )
    assert (found.totals.gauges, found.errors) == ({"loss": 2, "rate": 0.5}, "")


def test_before_the_run_has_started_nothing_is_published_and_no_run_starts(ledgers: Path) -> None:
    found = run('Trainer().log({"loss": 2}); stepscope.start()', ledgers)
    assert found.totals.gauges == {}


def test_only_rank_0_publishes_because_all_ranks_log_the_same(ledgers: Path) -> None:
    found = run('stepscope.start(rank=1, world_size=2); Trainer().log({"loss": 2})', ledgers)
    assert found.totals.gauges == {}


def test_a_gauge_of_the_script_wins_over_the_framework_s(ledgers: Path) -> None:
    found = run(
        """
stepscope.gauge("loss", 1)
Trainer().log({"loss": 2, "epoch": 3})
stepscope.gauge("epoch", 4)
Trainer().log({"loss": 5, "epoch": 6})
""",
        ledgers,
    )
    assert found.totals.gauges == {"loss": 1, "epoch": 4}


def test_a_framework_that_logs_much_leaves_the_script_all_its_gauges(ledgers: Path) -> None:
    found = run(
        """
stepscope.start()
Trainer().log({f"metric {number}": number for number in range(100)})
for number in range(32): stepscope.gauge(f"own {number}", number)
""",
        ledgers,
    )
    names = list(found.totals.gauges)
    assert names == [f"metric {n}" for n in range(16)] + [f"own {n}" for n in range(32)]


def test_a_framework_that_logs_much_leaves_room_for_the_settings_that_hooks_find(ledgers: Path) -> None:
    found = run(
        """
from stepscope.training.layout import SETTINGS
stepscope.start()
publish({f"metric {number}": number for number in range(100)})
publish(dict.fromkeys(SETTINGS, 1))
publish({"metric 100": 100})
for number in range(32): stepscope.gauge(f"own {number}", number)
""",
        ledgers,
    )
    own = {f"own {n}" for n in range(32)}
    assert found.totals.gauges.keys() == {f"metric {n}" for n in range(16)} | SETTINGS | own


def test_a_failure_is_said_once_ends_the_hook_and_never_reaches_the_script(ledgers: Path) -> None:
    found = run(
        """
stepscope.start()
class Broken(dict):
    def items(self): raise RuntimeError("no items")
assert Trainer().log(Broken(loss=1)) == 1
assert Trainer().log(Broken(loss=2)) == 2
""",
        ledgers,
    )
    assert found.errors == "stepscope: log is no longer hooked: RuntimeError: no items\n"


def test_a_version_without_the_function_is_left_alone(ledgers: Path) -> None:
    found = run('after(Trainer, "renamed", publish); after(None, "log", publish); stepscope.start()', ledgers)
    assert found.errors == ""
