"""The worlds of the inbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.inbox.worlds import World, postgres_world, world_of


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_of(request) as world:
        yield world


@pytest.fixture
async def on_postgres(postgres_dsn: str) -> AsyncIterator[World]:
    async with postgres_world(postgres_dsn) as world:
        yield world
