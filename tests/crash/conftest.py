"""One private Postgres for the campaigns that only lose connections; those that kill servers start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.testing.servers import PrivatePostgres


@pytest.fixture(scope="session")
def crash_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server
