"""A proxy before a backend's Postgres that can lose the one answer that matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import PsycopgDatabase
from onefold.testing.fault_proxy import Direction, FaultProxy
from tests.contract.backends import Backend
from tests.contract.rows import ASGI
from tests.support.patience import PATIENCE_S

#: How the server says that it has committed.
COMMITTED = b"COMMIT\0"


class CommitProxy(FaultProxy):
    """Cuts in front of the answer to the next COMMIT, be it one of its own or the end of a whole batch's."""

    _armed = False

    def lose_commit(self) -> None:
        self._armed = True

    def _allot(self, direction: Direction, link: Any, chunk: bytes) -> tuple[bytes, bool]:
        if self._armed and direction == "down" and COMMITTED in chunk:
            self._armed = False
            link.left = {"down": 0}
        return super()._allot(direction, link, chunk)


@pytest.fixture
def proxy(backend: Backend, request: pytest.FixtureRequest) -> Iterator[CommitProxy]:
    """Lets the backend reach its Postgres through a proxy only."""
    host, port = urlsplit(backend.address).hostname, urlsplit(backend.address).port
    assert host is not None
    assert port is not None
    with CommitProxy(host, port) as between:
        dsn = between.dsn(backend.address)
        # A connection that is refused is an answer for asyncpg; the psycopg pool waits for better times.
        wait_s = 1.0 if "cannot_be_asked" in request.node.name else PATIENCE_S
        database = AsyncpgDatabase(dsn) if backend.name in ASGI else PsycopgDatabase(dsn, acquire_timeout_s=wait_s)
        backend.serve(database=database, settings={"lease_s": 2})
        yield between
        backend.close()
