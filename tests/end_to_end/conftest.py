"""The film of all scenarios, shown once for each kind of servers that is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.film import Film, film
from tests.support.servers import Containers, Programs, Servers


@pytest.fixture(scope="package", params=[Programs(), Containers()], ids=["programs", "containers"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Film]:
    servers: Servers = request.param
    if reason := servers.missing():
        pytest.skip(reason)
    with film(servers, tmp_path_factory.mktemp("film")) as first:
        if not first.disturbed:
            yield first
            return
    # The machine had no time for it, so it shows nothing: once more.
    with film(servers, tmp_path_factory.mktemp("film")) as second:
        yield second
