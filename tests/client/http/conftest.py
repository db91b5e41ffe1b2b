"""Every test of this folder that takes a `kind` runs against all six clients, and none of them waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from onefold import RetryPolicy
from onefold.testing.no_waiting import no_waiting
from tests.client.http.clients import KINDS, Kind


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found = request.param
    assert isinstance(found, Kind)
    return found


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    with no_waiting():
        yield


@pytest.fixture
def closed_port() -> int:
    """Nobody listens here."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@pytest.fixture
def patient() -> RetryPolicy:
    """Limited by nothing but its attempts and its deadline."""
    return RetryPolicy(attempts_max=4, deadline_s=30.0, budget=None, breaker=None)
