"""One fork server for the campaigns that kill processes; and no garbage collection, which would hide what is held."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.crash.fork_server import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """A connection, a lock or a cursor in a cycle of garbage is let go when the collector happens to come by: with it
    a leak shows now and then, without it always."""
    gc.disable()
    yield
    gc.enable()
