"""The backends of the key journal."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.journal.backends import Backend, backend_of, postgres_backend


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as backend:
        yield backend


@pytest.fixture
async def on_postgres(postgres_dsn: str) -> AsyncIterator[Backend]:
    async with postgres_backend(postgres_dsn) as backend:
        yield backend


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_path"))
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn
