"""The worlds of the inbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.inbox.worlds import World, postgres_world, sqlite_world


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "sqlite":
        async with sqlite_world(request.getfixturevalue("sqlite_path")) as world:
            yield world
    else:
        async with postgres_world(request.getfixturevalue("postgres_dsn")) as world:
            yield world


@pytest.fixture
async def on_postgres(postgres_dsn: str) -> AsyncIterator[World]:
    async with postgres_world(postgres_dsn) as world:
        yield world
