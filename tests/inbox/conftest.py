"""The backends of the inbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.inbox.backends import Backend, backend_of, create_tables, postgres_backend
from tests.support.reused_database import ReusedDatabase


@pytest.fixture(scope="session")
def inbox_database(postgres: PrivatePostgres) -> ReusedDatabase:
    return ReusedDatabase(postgres, create_tables, may_leave_sessions=True)


@pytest.fixture
def inbox_dsn(inbox_database: ReusedDatabase) -> Iterator[str]:
    """A database with the tables of inbox and outbox, and one for effects."""
    with inbox_database.ready() as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as backend:
        yield backend


@pytest.fixture
async def on_postgres(inbox_dsn: str) -> AsyncIterator[Backend]:
    async with postgres_backend(inbox_dsn) as backend:
        yield backend
