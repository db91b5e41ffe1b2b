"""Where the tests of private servers get theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from onefold.testing.servers import PrivateServer
from tests.testing.servers.missing import unless_missing


@pytest.fixture
def started() -> Iterator[Callable[[PrivateServer], None]]:
    """Starts servers and stops them after the test."""
    with ExitStack() as servers:

        def start(server: PrivateServer) -> None:
            with unless_missing(type(server)):
                servers.enter_context(server)

        yield start
