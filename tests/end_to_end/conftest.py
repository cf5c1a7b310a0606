"""Films: one scenario with Debian's servers, and in `make trials` all with every kind of servers."""

from collections.abc import Iterator

import pytest
from stepscope.demo.scenarios import all_scenarios

from tests.support.film import Film, film
from tests.support.servers import DEBIAN, Containers, Programs

ONE, ALL = ("cpu-bottleneck",), tuple(all_scenarios())
OLDER = Programs(DEBIAN)  # than those on the PATH, which all other tests meet
FILMS = [
    pytest.param((OLDER, ONE), id="one"),
    *(
        pytest.param((servers, ALL), id=f"all-{name}", marks=pytest.mark.trial)
        for name, servers in {"older": OLDER, "newer": Programs(), "containers": Containers()}.items()
    ),
]


@pytest.fixture(scope="package", params=FILMS)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Film]:
    servers, scenarios = request.param
    if reason := servers.missing():
        pytest.skip(reason)
    with film(servers, scenarios, tmp_path_factory.mktemp("film")) as first:
        if not first.disturbed:
            yield first
            return
    # The machine had no time for it, so it shows nothing: once more.
    with film(servers, scenarios, tmp_path_factory.mktemp("film")) as second:
        yield second
