"""Where the tests of private servers get theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from onefold.testing.servers import PrivateServer, ServerUnavailable


@pytest.fixture
def started() -> Iterator[Callable[[PrivateServer], None]]:
    """Starts servers and stops them after the test; one that this machine cannot run is a skip with its reason."""
    with ExitStack() as servers:

        def start(server: PrivateServer) -> None:
            try:
                servers.enter_context(server)
            except ServerUnavailable as reason:
                pytest.skip(str(reason))

        yield start
