"""The two ways to use asyncpg: a module that imports `way` and `database` has each of its tests run by both.
`fast_only` marks those about asyncpg's private names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

import pytest

from onefold.db.asyncpg import AsyncpgDatabase
from tests.db.drivers import public_only

fast_only = pytest.mark.parametrize("way", ["fast"], indirect=True)


@pytest.fixture(autouse=True, params=["fast", "public"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How asyncpg is used."""
    with public_only() if request.param == "public" else nullcontext():
        yield request.param


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[AsyncpgDatabase]:
    database = AsyncpgDatabase(postgres_dsn)
    yield database
    await database.close()
