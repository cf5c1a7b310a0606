"""Makes the worlds of all scenarios on all cores: `make worlds`, before the tests of `make test`.

Otherwise the workers of pytest, which need them in the same order, would wait for each other.
"""

import multiprocessing
import os
import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from stepscope.demo.scenarios import all_scenarios

from tests.support.backfill import every_scenario_world
from tests.support.scenarios import WrittenScenario
from tests.support.servers import prepare_servers


def main() -> None:
    """Makes what is not there yet, the longest runs first."""
    prepare_servers()
    names = sorted(all_scenarios(), key=lambda name: -all_scenarios()[name].minutes)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        made: list[Future[Any]] = []
        made += [pool.submit(_evaluated, name) for name in names]
        if shutil.which("prometheus") and shutil.which("promtool"):
            made.append(pool.submit(every_scenario_world))
        for each in made:
            each.result()


def _evaluated(name: str) -> None:
    _ = WrittenScenario(name).recording


if __name__ == "__main__":
    main()
