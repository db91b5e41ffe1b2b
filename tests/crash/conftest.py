"""Where the campaigns that kill processes fork them; and no garbage collection, which would hide what is held."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.crash.request_processes import RequestProcesses


@pytest.fixture(scope="session")
def processes() -> RequestProcesses:
    return RequestProcesses()


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """A connection, a lock or a cursor in a cycle of garbage is let go when the collector happens to come by: with it
    a leak shows now and then, without it always."""
    gc.disable()
    yield
    gc.enable()
